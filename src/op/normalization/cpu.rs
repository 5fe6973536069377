//! Reference of the normalizations (spec pointwise_norm 8.3, 8.5). Sums are in float64, all else is
//! in float32.
#![allow(unsafe_code)]

use crate::backend::args::{Gamma, NormBackwardArgs, NormForwardArgs, Outcome, QuantizeArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::vectorized;
use crate::numeric::{BF16, Element, F16, dispatch};
use crate::op::cast;
use crate::types::{NVTE_Norm_Type, NVTEDType, NVTEScalingMode, cudaStream_t};
use rayon::prelude::*;

/// Elements that a task handles at least, so that waking a thread pays.
const TASK: usize = 1 << 14;

pub(crate) unsafe extern "C-unwind" fn forward(
    args: *const NormForwardArgs,
    s: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let c = &a.cast;
    let z = dispatch!(c.input_dtype, [F32, F16, BF16], X =>
        dispatch!(a.gamma.dtype, [F32, F16, BF16], G =>
            // SAFETY: as above, and the dtypes are those of the arguments.
            unsafe { normalized::<X, G>(a) },
        else return Outcome::unimplemented("norm_forward: dtype of gamma")),
    else return Outcome::unimplemented("norm_forward: dtype of x"));
    if c.rows == 0 && c.mode != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        return Outcome::OK;
    }
    let (input, input_dtype) = (z.as_ptr().cast(), NVTEDType::kNVTEFloat32);
    let cast = QuantizeArgs { input, input_dtype, ..*c };
    // SAFETY: as above, with the values in place of x.
    unsafe { cast::cpu::quantize(&cast, s) }
}

/// `len` elements from `start` on as floats.
///
/// # Safety
/// Nobody writes to them meanwhile.
unsafe fn floats<T: Element>(from: Buf<T>, start: usize, len: usize) -> Vec<f32> {
    let mut to = vec![0.0; len];
    // SAFETY: the caller's promise.
    widen(unsafe { from.slice(start, len) }, &mut to);
    to
}

vectorized! {
    fn widen<T: Element>(from: &[T], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(x, y)| *y = x.to_f32());
    }
}

vectorized! {
    fn narrow<T: Element>(from: &[f32], to: &mut [T]) {
        from.iter().zip(to).for_each(|(&x, y)| *y = T::from_f32(x));
    }
}

/// The weight that rows are multiplied by.
///
/// # Safety
/// There are `cols` elements of `G`.
unsafe fn weight<G: Element>(gamma: &Gamma, cols: usize) -> Vec<f32> {
    // SAFETY: the caller's promise.
    let mut weight = unsafe { floats(Buf::<G>::new(gamma.data, cols), 0, cols) };
    if gamma.zero_centered {
        weight.iter_mut().for_each(|g| *g += 1.0);
    }
    if gamma.rounded {
        weight.iter_mut().for_each(|g| *g = G::from_f32(*g).to_f32());
    }
    weight
}

/// The values that are cast; writes the sum, mu and rsigma.
///
/// # Safety
/// The arguments are valid; x and gamma are of `X` and `G`.
unsafe fn normalized<X: Element, G: Element>(a: &NormForwardArgs) -> Vec<f32> {
    let (rows, cols) = (a.cast.rows, a.cast.cols);
    let layer = a.norm == NVTE_Norm_Type::LayerNorm;
    // SAFETY: the caller's promise.
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
    // SAFETY: as above.
    let beta = unsafe { Buf::<G>::optional(a.beta, cols).map(|beta| floats(beta, 0, cols)) };
    let beta = beta.unwrap_or_else(|| vec![0.0; cols]);
    let (epsilon, output_dtype) = (a.epsilon as f64, a.cast.output_dtype);
    let mut values = vec![0f32; rows * cols];
    let normalize = |(row, v): (usize, &mut [f32])| {
        // SAFETY: the caller's promise; each task has its own rows.
        let mut x = unsafe { floats(input, row * cols, cols) };
        if let Some(residual) = residual {
            // SAFETY: as above. `sum` may be x or the residual, whose row has been read.
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
        let mu = if layer { x.iter().map(|&x| x as f64).sum::<f64>() / n } else { 0.0 };
        let squares = x.iter().map(|&x| (x as f64 - mu) * (x as f64 - mu)).sum::<f64>();
        let rsigma = (1.0 / (squares / n + epsilon).sqrt()) as f32;
        let mu = mu as f32;
        for (((v, x), g), b) in v.iter_mut().zip(&x).zip(&gamma).zip(&beta) {
            *v = g * (rsigma * (x - mu)) + b;
        }
        // SAFETY: as above.
        unsafe {
            rsigmas.slice_mut(row, 1)[0] = rsigma;
            if layer {
                mus.slice_mut(row, 1)[0] = mu;
            }
        }
        match output_dtype {
            // What an amax is taken of.
            NVTEDType::kNVTEFloat16 => v.iter_mut().for_each(|v| *v = F16::from_f32(*v).to_f32()),
            NVTEDType::kNVTEBFloat16 => v.iter_mut().for_each(|v| *v = BF16::from_f32(*v).to_f32()),
            _ => {}
        }
    };
    let each = (TASK / cols).max(1);
    values.par_chunks_mut(cols).with_min_len(each).enumerate().for_each(normalize);
    values
}

pub(crate) unsafe extern "C-unwind" fn backward(
    args: *const NormBackwardArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.x_dtype, [F32, F16, BF16], X =>
        dispatch!(a.gamma.dtype, [F32, F16, BF16], G => {
            // SAFETY: as above, and the dtypes are those of the arguments.
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
    // SAFETY: the caller's promise.
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
    // The sums over these rows each: few, and the same on every machine.
    let each = rows.div_ceil(32).max((TASK / cols).max(1));
    let sums = |task: usize| {
        let (mut dgamma, mut dbeta) = (vec![0f64; cols], vec![0f64; cols]);
        for row in task * each..rows.min((task + 1) * each) {
            let (mu, rsigma) = (mus.map_or(0.0, |mus| mus[row]), rsigmas[row]);
            // SAFETY: the caller's promise; each task has its own rows.
            let (dz, x) = unsafe { (floats(dz, row * cols, cols), floats(x, row * cols, cols)) };
            let y: Vec<f32> = x.iter().map(|x| rsigma * (x - mu)).collect();
            let d: Vec<f32> = gamma.iter().zip(&dz).map(|(g, dz)| g * dz).collect();
            let mean = |sum: f64| (sum / cols as f64) as f32;
            let mean_dy = mean(d.iter().zip(&y).map(|(&d, &y)| d as f64 * y as f64).sum());
            let mean_d = if layer { mean(d.iter().map(|&d| d as f64).sum()) } else { 0.0 };
            let mut gradient: Vec<f32> =
                d.iter().zip(&y).map(|(d, y)| rsigma * (d - (mean_dy * y + mean_d))).collect();
            if let Some(add) = add {
                // SAFETY: as above.
                let add = unsafe { floats(add, row * cols, cols) };
                gradient.iter_mut().zip(add).for_each(|(dx, add)| *dx += add);
            }
            // SAFETY: as above. dx may be one of the inputs, whose row has been read.
            narrow(&gradient, unsafe { dx.slice_mut(row * cols, cols) });
            for ((i, dz), y) in dz.iter().enumerate().zip(&y) {
                dgamma[i] += *dz as f64 * *y as f64;
                dbeta[i] += *dz as f64;
            }
        }
        [dgamma, dbeta]
    };
    let parts: Vec<_> = (0..rows.div_ceil(each)).into_par_iter().map(sums).collect();
    for (i, to) in [a.dgamma, a.dbeta].into_iter().enumerate().take(1 + usize::from(layer)) {
        let sum = |col| parts.iter().fold(0.0, |sum, part| sum + part[i][col]) as f32;
        let total: Vec<f32> = (0..cols).map(sum).collect();
        // SAFETY: the caller's promise.
        narrow(&total, unsafe { Buf::<G>::new(to, cols).slice_mut(0, cols) });
    }
}
