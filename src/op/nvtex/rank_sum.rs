//! Sums and maxima over ranks: x0 + x1 + ... in FP32 in the order of the ranks, rounded once. So the bits depend
//! neither on who comes first, nor on what moves the data, nor on how they are divided.
#![allow(unsafe_code, clippy::too_many_arguments)]

use crate::backend::args::Outcome;
use crate::numeric::{BF16, Element, F16, F32};
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;

/// Elements that are reduced at once, in memory that stays in the cache.
const BLOCK: usize = 1024;

/// Whether values of a dtype can be added.
pub(crate) fn can_reduce(dtype: NVTEDType) -> bool {
    use NVTEDType::*;
    matches!(dtype, kNVTEFloat32 | kNVTEFloat16 | kNVTEBFloat16)
}

/// Reduces `count` elements of each source into `to`, which may be one of them, to the sum or with `max` to the
/// greatest.
///
/// # Safety
/// All have `count` elements of the dtype, at multiples of its size, and nobody else writes there.
pub(crate) unsafe fn reduce(
    dtype: NVTEDType,
    max: bool,
    sources: &[*const u8],
    to: *mut u8,
    count: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        match dtype {
            NVTEDType::kNVTEFloat16 => reduce_as::<F16>(max, sources, to, count),
            NVTEDType::kNVTEBFloat16 => reduce_as::<BF16>(max, sources, to, count),
            _ => reduce_as::<F32>(max, sources, to, count),
        }
    }
}

/// # Safety
/// As [`reduce`].
unsafe fn reduce_as<T: Element>(max: bool, sources: &[*const u8], to: *mut u8, count: usize) {
    let mut sums = [0f32; BLOCK];
    let mut at = 0;
    while at < count {
        let len = BLOCK.min(count - at);
        for (place, source) in sources.iter().enumerate() {
            // SAFETY: the sources have that many elements.
            let values = unsafe { std::slice::from_raw_parts(source.cast::<T>().add(at), len) };
            let sums = sums[..len].iter_mut().zip(values.iter().map(|value| value.to_f32()));
            match (place, max) {
                (0, _) => sums.for_each(|(sum, value)| *sum = value),
                (_, false) => sums.for_each(|(sum, value)| *sum += value),
                (_, true) => sums.for_each(|(sum, value)| *sum = greater(*sum, value)),
            }
        }
        for (i, sum) in sums[..len].iter().enumerate() {
            // SAFETY: so does `to`.
            unsafe { to.cast::<T>().add(at + i).write(T::from_f32(*sum)) };
        }
        at += len;
    }
}

/// The greater of two values; NaN if one of them is, so that it is not lost.
fn greater(a: f32, b: f32) -> f32 {
    if a >= b || a.is_nan() { a } else { b }
}

pub(crate) unsafe extern "C-unwind" fn rank_sum(
    slots: *const c_void,
    pitch: usize,
    ranks: usize,
    to: *mut c_void,
    count: usize,
    dtype: NVTEDType,
    max: bool,
    _: cudaStream_t,
) -> Outcome {
    let slot = |rank| slots.cast::<u8>().wrapping_add(rank * pitch);
    let slots: Vec<_> = (0..ranks).map(slot).collect();
    // SAFETY: the caller of a table entry vouches for its arguments.
    unsafe { reduce(dtype, max, &slots, to.cast(), count) };
    Outcome::OK
}
