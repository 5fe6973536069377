//! Reference of the greatest elements (spec moe_layout, section 13).
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, TopkArgs};
use crate::backend::buf::Buf;
use crate::backend::memory::collect;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::types::cudaStream_t;
use std::cmp::Reverse;

/// Bits of a float, so that they order as unsigned numbers.
fn order(x: f32) -> u32 {
    let bits = x.to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

pub(crate) unsafe extern "C-unwind" fn topk(args: *const TopkArgs, _: cudaStream_t) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [F32, F16, BF16], T => {
        // SAFETY: the caller vouches for the arguments, and `T` is their dtype.
        unsafe { topk_as::<T>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("topk: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn topk_as<T: Element>(a: &TopkArgs) {
    let (cols, k) = (a.cols, a.k);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (keys, lengths, top_keys, top_indices) = unsafe {
        (
            Buf::<T>::new(a.keys, a.rows * cols),
            Buf::<i32>::optional(a.lengths.cast(), a.rows),
            Buf::<T>::new(a.top_keys, a.rows * k),
            Buf::<i32>::new(a.top_indices.cast(), a.rows * k),
        )
    };
    parallel(a.rows).for_each(|row| {
        // SAFETY: each row is the task of one thread.
        let (keys, length, top_keys, top_indices) = unsafe {
            (
                keys.slice(row * cols, cols),
                lengths.map_or(cols, |lengths| lengths.slice(row, 1)[0].max(0) as usize),
                top_keys.slice_mut(row * k, k),
                top_indices.slice_mut(row * k, k),
            )
        };
        let mut found = collect(0..length.min(cols));
        if k < found.len() {
            found.select_nth_unstable_by_key(k, |&i| (Reverse(order(keys[i].to_f32())), i));
            found.truncate(k);
            found.sort_unstable();
        }
        top_keys.fill(T::from_f32(-1.0));
        top_indices.fill(-1);
        for (at, &i) in found.iter().enumerate() {
            (top_keys[at], top_indices[at]) = (keys[i], i as i32);
        }
    });
}
