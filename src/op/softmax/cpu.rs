//! Reference of the softmax (spec pointwise_norm, section 9). Sums are float64.
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, SoftmaxArgs, SoftmaxMask};
use crate::backend::buf::Buf;
use crate::backend::cpu::{narrow, vectorized};
use crate::backend::memory::resize;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::types::cudaStream_t;

/// What a masked score becomes.
const MASKED: f32 = -10000.0;
/// Partial sums and maxima of a row: element `i` goes to number `i % LANES`.
const LANES: usize = 16;

pub(crate) unsafe extern "C-unwind" fn softmax(
    args: *const SoftmaxArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { softmax_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("softmax: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn softmax_as<T: Element>(a: &SoftmaxArgs) {
    let &SoftmaxArgs { matrices, queries, keys, scale, visible: form, .. } = a;
    let (rows, matrices_per_mask) = (matrices * queries, a.matrices_per_mask);
    let masked = form == SoftmaxMask::NVTEX_SOFTMAX_BYTES && a.results.is_null();
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, results, output, mask) = unsafe {
        let mask_len = matrices.div_ceil(matrices_per_mask) * queries * keys;
        (
            Buf::<T>::new(a.input, rows * keys),
            Buf::<T>::optional(a.results, rows * keys),
            Buf::<T>::new(a.output, rows * keys),
            masked.then(|| Buf::<u8>::new(a.mask.cast(), mask_len)),
        )
    };
    parallel(rows).with_min_len(8192 / keys.min(8192)).for_each_init(Vec::new, |t, row| {
        let (matrix, query) = (row / queries, row % queries);
        let end = match form {
            SoftmaxMask::NVTEX_SOFTMAX_CAUSAL => query + 1,
            SoftmaxMask::NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT => {
                (query + 1 + keys).saturating_sub(queries)
            }
            _ => keys,
        };
        let visible = end.min(keys);
        let start = row * keys;
        let load = |buffer: Buf<T>, scale: f32, to: &mut Vec<f32>| {
            resize(to, visible);
            // Most often the next row is of this thread, too, and is loaded while this one is computed.
            buffer.prefetch(start + keys, visible);
            // SAFETY: nobody else writes to this row, and this thread does so later.
            widen(unsafe { buffer.slice(start, visible) }, scale, to);
        };
        load(input, if results.is_some() { 1.0 } else { scale }, t);
        if let Some(results) = results {
            let mut y = Vec::new();
            load(results, 1.0, &mut y);
            gradients(t, &y, scale);
        } else {
            if let Some(mask) = mask {
                let first = (matrix / matrices_per_mask * queries + query) * keys;
                // SAFETY: the mask is only read.
                let mask = unsafe { mask.slice(first, visible) };
                for (t, _) in t.iter_mut().zip(mask).filter(|(_, byte)| **byte == 1) {
                    *t = MASKED;
                }
            }
            normalize(t);
        }
        // SAFETY: each row is written by its own task, once it has been read.
        let output = unsafe { output.slice_mut(start, keys) };
        let (seen, unseen) = output.split_at_mut(visible);
        narrow(t, seen);
        unseen.fill(T::from_f32(0.0));
    });
}

vectorized! {
    fn widen<T: Element>(from: &[T], scale: f32, to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32() * scale);
    }
}

/// The exponential of a number up to 0: 0 where it would be subnormal, NaN for NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer n, whose exponent bits 127 more make 2^n.
    const SHIFT: f32 = 12_582_912.0 + 127.0;
    // ln 2 in two parts, the first one with few enough bits for exact products.
    const LN_2: (f32, f32) = (0.693_359_4, -0.000_212_194_44);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let f = n.mul_add(-LN_2.1, n.mul_add(-LN_2.0, x));
    // The series to the sixth power: f is at most half of ln 2.
    let p = (1.0f32 / 720.0).mul_add(f, 1.0 / 120.0);
    let p = p.mul_add(f, 1.0 / 24.0);
    let p = p.mul_add(f, 1.0 / 6.0);
    let p = p.mul_add(f, 0.5);
    let p = p.mul_add(f, 1.0);
    let p = p.mul_add(f, 1.0);
    let power = p * f32::from_bits(shifted.to_bits() << 23);
    if x < -87.0 { 0.0 } else { power }
}

vectorized! {
    /// Scores to probabilities.
    fn normalize(t: &mut [f32]) {
        // NaN is no maximum; it spreads by the sum.
        let mut most = [f32::NEG_INFINITY; LANES];
        let raise = |(most, &t): (&mut f32, &f32)| *most = if t > *most { t } else { *most };
        let (whole, rest) = t.as_chunks_mut::<LANES>();
        whole.iter().for_each(|t| most.iter_mut().zip(t).for_each(raise));
        most.iter_mut().zip(&*rest).for_each(raise);
        let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0.0f64; LANES];
        let add = |(sum, t): (&mut f64, &mut f32)| {
            *t = exp(*t - most);
            *sum += f64::from(*t);
        };
        whole.iter_mut().for_each(|t| sums.iter_mut().zip(t).for_each(add));
        sums.iter_mut().zip(rest).for_each(add);
        let sum: f64 = sums.iter().sum();
        let weight = if most == MASKED { 0.0 } else { (1.0 / sum) as f32 };
        t.iter_mut().for_each(|t| *t *= weight);
    }
}

/// Gradients g of probabilities y to those of the scores.
fn gradients(g: &mut [f32], y: &[f32], scale: f32) {
    let sum = dot(g, y) as f32;
    slopes(g, y, scale, sum);
}

vectorized! {
    fn dot(g: &[f32], y: &[f32]) -> f64 {
        let mut sums = [0.0f64; LANES];
        let add = |((sum, &g), &y): ((&mut f64, &f32), &f32)| *sum += f64::from(g) * f64::from(y);
        let ((g, g_rest), (y, y_rest)) = (g.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        g.iter().zip(y).for_each(|(g, y)| sums.iter_mut().zip(g).zip(y).for_each(add));
        sums.iter_mut().zip(g_rest).zip(y_rest).for_each(add);
        sums.iter().sum()
    }
}

vectorized! {
    fn slopes(g: &mut [f32], y: &[f32], scale: f32, sum: f32) {
        g.iter_mut().zip(y).for_each(|(g, &y)| *g = scale * (y * (*g - sum)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_within_two_units() {
        for i in 0..200_000 {
            let x = -(i as f32) * 87.0 / 200_000.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            let unit = f64::from(f32::EPSILON) * want;
            assert!((got - want).abs() <= 2.0 * unit, "exp({x}): {got} for {want}");
        }
        assert_eq!(
            [exp(0.0), exp(-87.5), exp(-10000.0), exp(f32::NEG_INFINITY)],
            [1.0, 0.0, 0.0, 0.0]
        );
        assert!(exp(f32::NAN).is_nan());
    }
}
