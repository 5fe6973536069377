//! Reference of dropout (spec pointwise_norm, section 10).
#![allow(unsafe_code)]

use crate::backend::args::{DropoutArgs, Outcome};
use crate::backend::buf::{Buf, load};
use crate::backend::pool::{chunks, parallel};
use crate::numeric::{Element, dispatch};
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
        for first in range(task).step_by(16) {
            let len = 16.min(range(task).end - first);
            let mut x = [I::default(); 16];
            let mut added = residual.map(|_| x);
            // SAFETY: this task alone uses these parts of the buffers.
            let (mask, output) = unsafe {
                x[..len].copy_from_slice(input.slice(first, len));
                if let (Some(added), Some(residual)) = (&mut added, residual) {
                    added[..len].copy_from_slice(residual.slice(first, len));
                }
                (mask.slice_mut(first / 8, len.div_ceil(8)), output.slice_mut(first, len))
            };
            if let Some((seed, offset)) = rng {
                let bits = kept(seed, offset, (before + first / 16) as u64, least)
                    & (u16::MAX >> (16 - len));
                mask.copy_from_slice(&bits.to_le_bytes()[..mask.len()]);
            }
            for (i, (x, y)) in x.iter().zip(output).enumerate() {
                let x = scale_inv.map_or(x.to_f32(), |scale_inv| x.to_f32() * scale_inv);
                // SAFETY: nobody writes to the bias.
                let bias = bias.map(|bias| unsafe { bias.slice((first + i) % cols, 1)[0] });
                let x = bias.map_or(x, |bias| x + bias.to_f32());
                let keep = mask[i / 8] >> (i % 8) & 1 != 0;
                let kept = if keep { x * scale } else { 0.0 };
                let sum = added.map_or(kept, |added| added[i].to_f32() + kept);
                *y = O::from_f32(sum);
            }
        }
    });
}

/// The mask of elements 16 c to 16 c + 15: bits whose byte is at least `least`.
fn kept(seed: u64, offset: u64, c: u64, least: u8) -> u16 {
    let (counter, from) = (offset / 4, (offset % 4) as usize);
    let a = philox(seed, counter, c);
    // Offsets are multiples of 4 as a rule.
    let b = if from == 0 { [0; 4] } else { philox(seed, counter.wrapping_add(1), c) };
    let words: [u32; 8] = std::array::from_fn(|i| if i < 4 { a[i] } else { b[i - 4] });
    (0..16).fold(0, |bits, i| {
        let byte = i / 8 + if i % 2 == 0 { 2 } else { 0 };
        let keep = words[from + i % 8 / 2].to_le_bytes()[byte] >= least;
        bits | u16::from(keep) << i
    })
}

/// Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3; 2011).
pub(crate) fn philox(key: u64, low: u64, high: u64) -> [u32; 4] {
    philox_of::<10>(key, low, high)
}

/// The same of other rounds; from seven on it passes the tests of its authors.
pub(crate) fn philox_of<const ROUNDS: usize>(key: u64, low: u64, high: u64) -> [u32; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    let mut c = [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32];
    for _ in 0..ROUNDS {
        let [a, b] = [(0xD251_1F53, c[0]), (0xCD9E_8D57, c[2])]
            .map(|(factor, word): (u32, u32)| u64::from(factor) * u64::from(word));
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[cfg(test)]
mod tests {
    /// The known answers that the authors publish with Random123.
    #[test]
    fn philox_gives_the_published_words() {
        let philox = |low, high, key| super::philox(key, low, high);
        assert_eq!(philox(0, 0, 0), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(
            philox(u64::MAX, u64::MAX, u64::MAX),
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
        );
        assert_eq!(
            philox(0x85A3_08D3_243F_6A88, 0x0370_7344_1319_8A2E, 0x299F_31D0_A409_3822),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }
}
