//! Reference of dropout (spec pointwise_norm, section 10).
#![allow(unsafe_code)]

use crate::backend::args::{DropoutArgs, Outcome};
use crate::backend::buf::{Buf, load};
use crate::backend::cpu::{narrow, vectorized, widen};
use crate::backend::pool::{chunks, parallel};
use crate::numeric::{Element, dispatch};
use crate::random::draws;
use crate::types::cudaStream_t;

pub(crate) unsafe extern "C-unwind" fn dropout(
    args: *const DropoutArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.input_dtype, [F32, F16, BF16, E4M3, E5M2], I =>
        dispatch!(a.output_dtype, [F32, F16, BF16], O => {
            // SAFETY: the caller vouches for the arguments, and `I` and `O` are their dtypes.
            unsafe { dropout_as::<I, O>(a) };
            Outcome::OK
        }, else Outcome::unimplemented("dropout: output dtype")),
    else Outcome::unimplemented("dropout: input dtype"))
}

/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
unsafe fn dropout_as<I: Element, O: Element>(a: &DropoutArgs) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, residual, bias, output, mask, scale_inv, rng) = unsafe {
        (
            Buf::<I>::new(a.input, a.numel),
            Buf::<I>::optional(a.residual, a.numel),
            Buf::<I>::optional(a.bias, a.cols),
            Buf::<O>::new(a.output, a.numel),
            Buf::<u8>::new(a.mask.cast(), a.numel.div_ceil(8)),
            if I::FP8 { load(a.scale_inv) } else { None },
            (!a.rng_state.is_null()).then(|| (*a.rng_state, *a.rng_state.add(1))),
        )
    };
    let scale = 1.0 / (1.0 - a.probability);
    let least = (a.probability * 256.0) as u8;
    let (cols, before) = (a.cols, a.first);
    // Each range begins with a group of 16 elements.
    let (tasks, range) = chunks(a.numel);
    parallel(tasks).for_each(|task| {
        for first in range(task).step_by(BLOCK) {
            let len = BLOCK.min(range(task).end - first);
            let (mut values, mut factors) = ([0.0; BLOCK], [0.0; BLOCK]);
            let values = &mut values[..len];
            // SAFETY: this task alone uses these parts of the buffers; the output may be an input.
            let mask = unsafe {
                widen(input.slice(first, len), values);
                mask.slice_mut(first / 8, len.div_ceil(8))
            };
            if let Some((seed, offset)) = rng {
                for (i, mask) in mask.chunks_mut(2 * LANES).enumerate() {
                    let group = before + first / 16 + LANES * i;
                    let bits = kept(seed, offset, group as u64, least).map(u16::to_le_bytes);
                    let count = mask.len();
                    mask.copy_from_slice(&bits.as_flattened()[..count]);
                }
                // Bits of no element are 0.
                if !len.is_multiple_of(8) {
                    mask[len / 8] &= u8::MAX >> (8 - len % 8);
                }
            }
            if let Some(scale_inv) = scale_inv {
                values.iter_mut().for_each(|value| *value *= scale_inv);
            }
            if let Some(bias) = bias {
                let mut at = 0;
                while at < len {
                    let column = (first + at) % cols;
                    let end = len.min(at + cols - column);
                    // SAFETY: nobody writes to the bias.
                    add(unsafe { bias.slice(column, end - at) }, &mut values[at..end]);
                    at = end;
                }
            }
            to_factors(mask, scale, &mut factors);
            weigh(values, &factors);
            // SAFETY: nobody writes to the residual, and this task alone uses this part of the output.
            unsafe {
                if let Some(residual) = residual {
                    add(residual.slice(first, len), values);
                }
                narrow(values, output.slice_mut(first, len));
            }
        }
    });
}

/// Elements that are computed at a time: whole groups of 16.
const BLOCK: usize = 512;

vectorized! {
    /// The factors of elements whose bits keep them, and 0.
    fn to_factors(mask: &[u8], scale: f32, factors: &mut [f32]) {
        for (factors, &bits) in factors.as_chunks_mut::<8>().0.iter_mut().zip(mask) {
            for (i, factor) in factors.iter_mut().enumerate() {
                *factor = if bits >> i & 1 != 0 { scale } else { 0.0 };
            }
        }
    }
}

vectorized! {
    /// What is dropped becomes 0, even infinity.
    fn weigh(values: &mut [f32], factors: &[f32]) {
        for (value, &factor) in values.iter_mut().zip(factors) {
            let weighed = *value * factor;
            *value = if factor == 0.0 { 0.0 } else { weighed };
        }
    }
}

vectorized! {
    fn add<T: Element>(from: &[T], values: &mut [f32]) {
        from.iter().zip(values).for_each(|(from, value)| *value += from.to_f32());
    }
}

/// Groups of 16 elements whose random numbers are drawn at a time.
const LANES: usize = 16;

vectorized! {
    /// The masks of groups from c on: bits whose byte is at least `least`.
    fn kept(seed: u64, offset: u64, c: u64, least: u8) -> [u16; LANES] {
        let (counter, from) = (offset / 4, (offset % 4) as usize);
        let mut words = [[0; LANES]; 8];
        words[..4].copy_from_slice(&draws::<10, LANES>(seed, counter, c));
        // Offsets are multiples of 4 as a rule.
        if from != 0 {
            words[4..].copy_from_slice(&draws::<10, LANES>(seed, counter.wrapping_add(1), c));
        }
        let mut masks = [0; LANES];
        for i in 0..16 {
            let byte = i / 8 + if i % 2 == 0 { 2 } else { 0 };
            for (mask, word) in masks.iter_mut().zip(&words[from + i % 8 / 2]) {
                let keep = (word >> (8 * byte)) as u8 >= least;
                *mask |= u16::from(keep) << i;
            }
        }
        masks
    }
}
