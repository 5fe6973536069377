//! Reference of the rows of experts (spec gemm_comm, section 11.3).
#![allow(unsafe_code)]

use crate::backend::args::{ExpertRowsArgs, Outcome, ZeroGapsArgs};
use crate::backend::buf::Buf;
use crate::backend::memory::zeros;
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;

pub(crate) unsafe extern "C-unwind" fn expert_rows(
    args: *const ExpertRowsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let choices = a.tokens * a.topk;
    // SAFETY: there are so many elements, and no array shares memory with another.
    let (sizes, starts, rows, map) = unsafe {
        (
            Buf::<i64>::new(a.sizes.cast(), 2).slice_mut(0, 2),
            Buf::<i64>::new(a.starts.cast(), a.experts).slice_mut(0, a.experts),
            Buf::<i32>::new(a.rows.cast(), choices).slice_mut(0, choices),
            Buf::<i32>::new(a.map.cast(), a.planes * a.tokens).slice_mut(0, a.planes * a.tokens),
        )
    };
    let expert_of = |i: usize| {
        // SAFETY: the array has an entry for each choice.
        let chosen = unsafe { read(a.chosen, a.chosen_dtype, i) };
        let expert = usize::try_from(chosen).ok()?.checked_sub(a.first)? / a.group.max(1);
        Some(expert).filter(|&expert| expert < a.experts)
    };
    // With groups a token has one row of each.
    let row_of = |i: usize| {
        let expert = expert_of(i);
        let mut earlier = i / a.topk * a.topk..i;
        expert.filter(|_| a.group == 0 || earlier.all(|j| expert_of(j) != expert))
    };
    let limit = if a.limit == 0 { usize::MAX } else { a.limit };
    let mut lengths: Vec<usize> = zeros(a.experts);
    (0..choices).filter_map(row_of).for_each(|expert| lengths[expert] += 1);
    let mut end = 0usize;
    let mut next: Vec<usize> = zeros(a.experts);
    for (expert, &length) in lengths.iter().enumerate() {
        let rows = if a.fixed { limit } else { length.min(limit) };
        let padded = if a.fixed { rows } else { rows.next_multiple_of(a.alignment) };
        (starts[expert], next[expert]) = (end as i64, end);
        let count = padded.min(a.capacity.saturating_sub(end));
        end = end.saturating_add(padded);
        // SAFETY: there is an entry for each expert.
        unsafe {
            write(a.counts, a.counts_dtype, expert, count);
            write(a.lengths.cast(), NVTEDType::kNVTEInt64, expert, length);
        }
    }
    // SAFETY: there is one entry.
    unsafe { write(a.total, a.counts_dtype, 0, end) };
    (sizes[0], sizes[1]) = (a.tokens as i64, a.topk as i64);
    map.fill(-1);
    for (i, place) in rows.iter_mut().enumerate() {
        *place = match row_of(i) {
            Some(expert) => {
                let row = next[expert];
                next[expert] += 1;
                let there = row < a.capacity && row - (starts[expert] as usize) < limit;
                if there { row as i32 } else { -1 }
            }
            None => -1,
        };
        map[i % a.topk * a.tokens + i / a.topk] = *place;
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn zero_gaps(
    args: *const ZeroGapsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: there are so many elements, and the output shares no memory with the others.
    let (starts, lengths, output) = unsafe {
        (
            Buf::<i64>::new(a.starts.cast(), a.experts).slice(0, a.experts),
            Buf::<i64>::new(a.lengths.cast(), a.experts).slice(0, a.experts),
            Buf::<u8>::new(a.output, a.rows * a.width).slice_mut(0, a.rows * a.width),
        )
    };
    let limit = if a.limit == 0 { usize::MAX } else { a.limit };
    for (expert, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
        let end = starts.get(expert + 1).map_or(a.rows, |&next| a.rows.min(next as usize));
        let first = end.min(start as usize + limit.min(length as usize));
        output[first * a.width..end * a.width].fill(0);
    }
    Outcome::OK
}

/// # Safety
/// The array has an entry `i` of its dtype.
unsafe fn read(array: *const c_void, dtype: NVTEDType, i: usize) -> i64 {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        match dtype {
            NVTEDType::kNVTEInt64 => array.cast::<i64>().add(i).read(),
            _ => array.cast::<i32>().add(i).read().into(),
        }
    }
}

/// Writes an entry of an array that may be null.
///
/// # Safety
/// The array is null or has an entry `i` of its dtype.
unsafe fn write(array: *mut c_void, dtype: NVTEDType, i: usize, value: usize) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        match dtype {
            _ if array.is_null() => {}
            NVTEDType::kNVTEInt64 => array.cast::<i64>().add(i).write(value as i64),
            _ => array.cast::<i32>().add(i).write(value as i32),
        }
    }
}
