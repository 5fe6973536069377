//! Reference of the draw of tokens.
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, SampleTokensArgs};
use crate::backend::buf::Buf;
use crate::backend::memory;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::random::philox;
use crate::types::cudaStream_t;
use std::cmp::Reverse;

/// The weight of the greatest logit.
const WHOLE: u64 = 1 << 31;

/// Bits of a float, so that they order as unsigned numbers.
fn order(x: f32) -> u32 {
    let bits = x.to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

pub(crate) unsafe extern "C-unwind" fn sample_tokens(
    args: *const SampleTokensArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { sample_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("sample_tokens: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn sample_as<T: Element>(a: &SampleTokensArgs) {
    let &SampleTokensArgs { rows, cols, top_k, temperature, top_p, .. } = a;
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (logits, tokens, [seed, offset]) = unsafe {
        (
            Buf::<T>::new(a.logits, rows * cols),
            Buf::<i32>::new(a.tokens.cast(), rows),
            *a.rng_state.cast::<[u64; 2]>(),
        )
    };
    parallel(rows).for_each_init(Vec::new, |x: &mut Vec<f32>, row| {
        let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
        memory::resize(x, cols);
        // SAFETY: nobody writes to the logits.
        let from = unsafe { logits.slice(row * cols, cols) };
        x.iter_mut().zip(from).for_each(|(x, from)| *x = number(from.to_f32()));
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |x: f32| match x == most {
            true => WHOLE,
            false => (((x - most) / temperature).exp() * WHOLE as f32) as u64,
        };
        let mut kept: Vec<usize> = memory::collect(0..cols);
        if top_k < cols || top_p < 1.0 {
            kept.sort_unstable_by_key(|&i| (Reverse(order(x[i])), i));
            kept.truncate(top_k);
            let sum: u64 = kept.iter().map(|&i| weight(x[i])).sum();
            let needed = (f64::from(top_p) * sum as f64).ceil() as u64;
            let mut so_far = 0;
            let enough = kept.iter().position(|&i| {
                so_far += weight(x[i]);
                so_far >= needed
            });
            kept.truncate(enough.map_or(kept.len(), |last| last + 1));
            kept.sort_unstable();
        }
        let sum: u64 = kept.iter().map(|&i| weight(x[i])).sum();
        let words = philox(seed, offset, row as u64);
        let drawn = u64::from(words[0]) | u64::from(words[1]) << 32;
        let drawn = ((u128::from(drawn) * u128::from(sum)) >> 64) as u64;
        let mut so_far = 0;
        let token = kept.iter().find(|&&i| {
            so_far += weight(x[i]);
            so_far > drawn
        });
        // SAFETY: each row is the task of one thread.
        unsafe { tokens.slice_mut(row, 1)[0] = token.map_or(0, |&i| i as i32) };
    });
}
