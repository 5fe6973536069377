//! Reference of the softmax (spec pointwise_norm, section 9). Sums are float64.
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, SoftmaxArgs, SoftmaxMask};
use crate::backend::buf::Buf;
use crate::backend::memory::resize;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::types::cudaStream_t;

/// What a masked score becomes.
const MASKED: f32 = -10000.0;

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
        let load = |buffer: Buf<T>, to: &mut Vec<f32>| {
            resize(to, visible);
            // SAFETY: nobody else writes to this row, and this thread does so later.
            let from = unsafe { buffer.slice(start, visible) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
        };
        load(input, t);
        if let Some(results) = results {
            let mut y = Vec::new();
            load(results, &mut y);
            gradients(t, &y, scale);
        } else {
            t.iter_mut().for_each(|t| *t *= scale);
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
        seen.iter_mut().zip(t.iter()).for_each(|(y, &t)| *y = T::from_f32(t));
        unseen.fill(T::from_f32(0.0));
    });
}

/// Scores to probabilities.
fn normalize(t: &mut [f32]) {
    // `f32::max` ignores NaN, which then spread by the sum.
    let most = t.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    t.iter_mut().for_each(|t| *t = (*t - most).exp());
    let sum: f64 = t.iter().map(|&e| f64::from(e)).sum();
    let weight = if most == MASKED { 0.0 } else { (1.0 / sum) as f32 };
    t.iter_mut().for_each(|t| *t *= weight);
}

/// Gradients g of probabilities y to those of the scores.
fn gradients(g: &mut [f32], y: &[f32], scale: f32) {
    let sum: f64 = g.iter().zip(y).map(|(&g, &y)| f64::from(g) * f64::from(y)).sum();
    g.iter_mut().zip(y).for_each(|(g, &y)| *g = scale * (y * (*g - sum as f32)));
}
