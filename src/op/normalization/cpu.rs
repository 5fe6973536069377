//! Reference of the normalizations (spec pointwise_norm 8.3, 8.5). Sums are in float64, those of a few elements of
//! forward passes and all else in float32.
#![allow(unsafe_code)]

use crate::backend::args::{Cast, Gamma, NormBackwardArgs, NormForwardArgs, Outcome, QuantizeArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::{narrow, vectorized, widen};
use crate::backend::memory::{collect, resize, zeros};
use crate::backend::pool::{chunks_mut, parallel};
use crate::numeric::{BF16, Element, F16, dispatch};
use crate::op::cast;
use crate::types::{NVTE_Norm_Type, NVTEDType, NVTEScalingMode, cudaStream_t};
use std::marker::PhantomData;
use std::ptr::null_mut;

/// Elements that a task handles at least, so that waking a thread pays.
const TASK: usize = 1 << 14;
/// Elements that are normalized before they are cast, at least: a thread's part of them stays in its cache.
const BAND: usize = 1 << 17;
/// Partial sums of a row: element `i` goes to sum `i % LANES`.
const LANES: usize = 16;

pub(crate) unsafe extern "C-unwind" fn forward(
    args: *const NormForwardArgs,
    s: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let c = &a.cast;
    let normalize = dispatch!(c.input_dtype, [F32, F16, BF16], X =>
        dispatch!(a.gamma.dtype, [F32, F16, BF16], G => normalize::<X, G>,
        else return Outcome::unimplemented("norm_forward: dtype of gamma")),
    else return Outcome::unimplemented("norm_forward: dtype of x"));
    let per_tensor = c.mode == NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
    if c.rows == 0 && !per_tensor {
        return Outcome::OK;
    }
    // Rows that are cast in place of each other need memory for a band of them at a time; a cast
    // that transposes, or that takes a scale from several rows, wants all.
    let band = match per_tensor && c.colwise.is_null() {
        true => (BAND / c.cols.max(1)).clamp(1, c.rows.max(1)),
        false => c.rows,
    };
    let mut z = zeros::<f32>(band * c.cols);
    let mut first = 0;
    loop {
        let rows = band.min(c.rows - first);
        let z = &mut z[..rows * c.cols];
        // SAFETY: the arguments are valid, and the dtypes of the call are those that they name.
        unsafe { normalize(a, first, z) };
        let cast = Cast {
            input: z.as_ptr().cast(),
            input_dtype: NVTEDType::kNVTEFloat32,
            rowwise: match c.rowwise.is_null() {
                true => c.rowwise,
                false => c.rowwise.wrapping_byte_add(first * c.cols * c.output_dtype.bits() / 8),
            },
            rows,
            ..*c
        };
        // SAFETY: the arguments are valid; the computed values take the place of x.
        let outcome = unsafe { cast::cpu::quantize(&QuantizeArgs { cast }, s) };
        first += rows;
        if first == c.rows || outcome.status != Outcome::OK.status {
            return outcome;
        }
    }
}

/// `len` elements from `start` on as floats.
///
/// # Safety
/// Nobody writes to them meanwhile.
unsafe fn floats<T: Element>(from: Buf<T>, start: usize, len: usize) -> Vec<f32> {
    let mut to = zeros(len);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    widen(unsafe { from.slice(start, len) }, &mut to);
    to
}

/// The sum of the terms of elements: element `i` goes to sum `i % COUNT`, by way of a float32 for each `RUN` of them.
#[inline(always)]
fn sum_by(x: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    const COUNT: usize = 4 * LANES;
    const RUN: usize = 8;
    let mut totals = [0.0f64; COUNT];
    for run in x.chunks(RUN * COUNT) {
        let mut sums = [0.0f32; COUNT];
        let add = |(sum, &x): (&mut f32, &f32)| *sum += term(x);
        let (whole, rest) = run.as_chunks::<COUNT>();
        whole.iter().for_each(|x| sums.iter_mut().zip(x).for_each(add));
        sums.iter_mut().zip(rest).for_each(add);
        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
    }
    let mut len = COUNT;
    while len > 1 {
        len /= 2;
        for i in 0..len {
            totals[i] += totals[i + len];
        }
    }
    totals[0]
}

vectorized! {
    fn sum_of(x: &[f32]) -> f64 {
        sum_by(x, |x| x)
    }
}

vectorized! {
    /// The sum of the squares of the distances from `mu`.
    fn squares_of(x: &[f32], mu: f32) -> f64 {
        sum_by(x, |x| (x - mu) * (x - mu))
    }
}

vectorized! {
    fn dot_of(x: &[f32], y: &[f32]) -> f64 {
        let mut sums = [0.0f64; LANES];
        let add = |((sum, &x), &y): ((&mut f64, &f32), &f32)| *sum += x as f64 * y as f64;
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        x.iter().zip(y).for_each(|(x, y)| sums.iter_mut().zip(x).zip(y).for_each(add));
        sums.iter_mut().zip(x_rest).zip(y_rest).for_each(add);
        sums.iter().sum()
    }
}

vectorized! {
    fn add_to_sums(dz: &[f32], y: &[f32], dgamma: &mut [f64], dbeta: &mut [f64]) {
        for (((&dz, &y), dgamma), dbeta) in dz.iter().zip(y).zip(dgamma).zip(dbeta) {
            *dgamma += dz as f64 * y as f64;
            *dbeta += dz as f64;
        }
    }
}

vectorized! {
    fn scaled(x: &[f32], mu: f32, rsigma: f32, gamma: &[f32], beta: &[f32], v: &mut [f32]) {
        for (((v, x), g), b) in v.iter_mut().zip(x).zip(gamma).zip(beta) {
            *v = g * (rsigma * (x - mu)) + b;
        }
    }
}

vectorized! {
    fn round_to<T: Element>(v: &mut [f32], dtype: PhantomData<T>) {
        let PhantomData = dtype;
        v.iter_mut().for_each(|v| *v = T::from_f32(*v).to_f32());
    }
}

/// The weight that rows are multiplied by.
///
/// # Safety
/// There are `cols` elements of `G`.
unsafe fn weight<G: Element>(gamma: &Gamma, cols: usize) -> Vec<f32> {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let mut weight = unsafe { floats(Buf::<G>::new(gamma.data, cols), 0, cols) };
    if gamma.zero_centered {
        weight.iter_mut().for_each(|g| *g += 1.0);
    }
    if gamma.rounded {
        weight.iter_mut().for_each(|g| *g = G::from_f32(*g).to_f32());
    }
    weight
}

/// The values of the rows from `first` on that are cast; writes their sum, mu and rsigma.
///
/// # Safety
/// The arguments are valid; x and gamma are of `X` and `G`.
unsafe fn normalize<X: Element, G: Element>(a: &NormForwardArgs, first: usize, values: &mut [f32]) {
    let (rows, cols) = (a.cast.rows, a.cast.cols);
    let layer = a.norm == NVTE_Norm_Type::LayerNorm;
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, residual, sum, gamma, mus, rsigmas) = unsafe {
        (
            Buf::<X>::new(a.cast.input, rows * cols),
            Buf::<X>::optional(a.residual, rows * cols),
            Buf::<X>::new(a.sum, rows * cols),
            weight::<G>(&a.gamma, cols),
            Buf::<f32>::new(a.mu.cast(), rows),
            Buf::<f32>::new(a.rsigma.cast(), rows),
        )
    };
    // SAFETY: the caller's promise: beta is null or has an element for each column.
    let beta = unsafe { Buf::<G>::optional(a.beta, cols).map(|beta| floats(beta, 0, cols)) };
    let beta = beta.unwrap_or_else(|| zeros(cols));
    let (epsilon, output_dtype) = (a.epsilon as f64, a.cast.output_dtype);
    // The amax is that of the values rounded to the output's dtype.
    let rounds = !a.cast.amax.is_null();
    let normalize = |x: &mut Vec<f32>, (row, v): (usize, &mut [f32])| {
        let row = first + row;
        resize(x, cols);
        // Most often the next row is of this thread, too, and is loaded while this one is computed.
        input.prefetch((row + 1) * cols, cols);
        // SAFETY: the caller's promise; each task has its own rows.
        widen(unsafe { input.slice(row * cols, cols) }, x);
        if let Some(residual) = residual {
            // SAFETY: the caller's promise; each task has its own rows. `sum` may be x or the residual,
            // whose row has been read.
            unsafe {
                let residual = floats(residual, row * cols, cols);
                let sum = sum.slice_mut(row * cols, cols);
                for ((x, r), sum) in x.iter_mut().zip(residual).zip(sum) {
                    *sum = X::from_f32(*x + r);
                    *x = sum.to_f32();
                }
            }
        }
        let n = cols as f64;
        let mu = if layer { (sum_of(x) / n) as f32 } else { 0.0 };
        let rsigma = (1.0 / (squares_of(x, mu) / n + epsilon).sqrt()) as f32;
        scaled(x, mu, rsigma, &gamma, &beta, v);
        // SAFETY: the caller's promise: an element for each row, which only this task writes.
        unsafe {
            rsigmas.slice_mut(row, 1)[0] = rsigma;
            if layer {
                mus.slice_mut(row, 1)[0] = mu;
            }
        }
        match output_dtype {
            _ if !rounds => {}
            NVTEDType::kNVTEFloat16 => round_to(v, PhantomData::<F16>),
            NVTEDType::kNVTEBFloat16 => round_to(v, PhantomData::<BF16>),
            _ => {}
        }
        0
    };
    let each = (TASK / cols).max(1);
    chunks_mut(values, cols).with_min_len(each).max_init(Vec::new, normalize);
}

pub(crate) unsafe extern "C-unwind" fn backward(
    args: *const NormBackwardArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.x_dtype, [F32, F16, BF16], X =>
        dispatch!(a.gamma.dtype, [F32, F16, BF16], G => {
            // SAFETY: the arguments are valid, and the dtypes of the call are those that they name.
            unsafe { gradients::<X, G>(a) };
            Outcome::OK
        }, else Outcome::unimplemented("norm_backward: dtype of gamma")),
    else Outcome::unimplemented("norm_backward: dtype of x"))
}

/// # Safety
/// The arguments are valid; x and gamma are of `X` and `G`.
unsafe fn gradients<X: Element, G: Element>(a: &NormBackwardArgs) {
    let (rows, cols) = (a.rows, a.cols);
    let layer = a.norm == NVTE_Norm_Type::LayerNorm;
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (dz, x, add, mus, rsigmas, gamma, dx) = unsafe {
        (
            Buf::<G>::new(a.dz, rows * cols),
            Buf::<X>::new(a.x, rows * cols),
            Buf::<G>::optional(a.add, rows * cols),
            Buf::<f32>::optional(a.mu.cast(), rows).map(|mus| mus.slice(0, rows)),
            Buf::<f32>::new(a.rsigma.cast(), rows).slice(0, rows),
            weight::<G>(&a.gamma, cols),
            Buf::<X>::new(a.dx, rows * cols),
        )
    };
    let wanted = [a.add_sums, a.dx_sums].map(|sums| !sums.is_null());
    // The sums over these rows each: few, and the same on every machine.
    let each = rows.div_ceil(32).max((TASK / cols).max(1));
    let sums = |task: usize| {
        let (mut dgamma, mut dbeta) = (zeros::<f64>(cols), zeros::<f64>(cols));
        let [mut of_add, mut of_dx] =
            wanted.map(|wanted| zeros::<f64>(if wanted { cols } else { 0 }));
        for row in task * each..rows.min((task + 1) * each) {
            let (mu, rsigma) = (mus.map_or(0.0, |mus| mus[row]), rsigmas[row]);
            // SAFETY: the caller's promise; each task has its own rows.
            let (dz, x) = unsafe { (floats(dz, row * cols, cols), floats(x, row * cols, cols)) };
            let y = collect(x.iter().map(|x| rsigma * (x - mu)));
            let d = collect(gamma.iter().zip(&dz).map(|(g, dz)| g * dz));
            let mean = |sum: f64| (sum / cols as f64) as f32;
            let mean_dy = mean(dot_of(&d, &y));
            let mean_d = if layer { mean(sum_of(&d)) } else { 0.0 };
            let slope = |(d, y): (&f32, &f32)| rsigma * (d - (mean_dy * y + mean_d));
            let mut gradient = collect(d.iter().zip(&y).map(slope));
            if let Some(add) = add {
                // SAFETY: the caller's promise: `add` is a matrix like dx.
                let add = unsafe { floats(add, row * cols, cols) };
                of_add.iter_mut().zip(&add).for_each(|(sum, &add)| *sum += f64::from(add));
                gradient.iter_mut().zip(add).for_each(|(dx, add)| *dx += add);
            }
            of_dx.iter_mut().zip(&gradient).for_each(|(sum, &dx)| *sum += f64::from(dx));
            // SAFETY: the caller's promise; each row belongs to one task. dx may be an input, whose row has
            // been read.
            narrow(&gradient, unsafe { dx.slice_mut(row * cols, cols) });
            add_to_sums(&dz, &y, &mut dgamma, &mut dbeta);
        }
        [dgamma, dbeta, of_add, of_dx]
    };
    let parts = parallel(rows.div_ceil(each)).map(sums);
    let dbeta = if layer { a.dbeta } else { null_mut() };
    for (i, to) in [a.dgamma, dbeta, a.add_sums, a.dx_sums].into_iter().enumerate() {
        if to.is_null() {
            continue;
        }
        let sum = |col| parts.iter().fold(0.0, |sum, part| sum + part[i][col]) as f32;
        let total = collect((0..cols).map(sum));
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        narrow(&total, unsafe { Buf::<G>::new(to, cols).slice_mut(0, cols) });
    }
}
