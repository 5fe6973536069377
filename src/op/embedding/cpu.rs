//! Reference of the embedding. Each step is rounded to float32, in the order that the CUDA kernels have.
#![allow(unsafe_code)]

use crate::backend::args::{EmbeddingArgs, NVTEX_ROW_SUM_PART, Outcome, RowKeysArgs, SumRowsArgs};
use crate::backend::buf::Buf;
use crate::backend::memory::zeros;
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::types::{NVTEDType, cudaStream_t};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};

/// Numbers of rows as they lie in memory.
#[derive(Clone, Copy)]
enum Indices {
    Int32(Buf<i32>),
    Int64(Buf<i64>),
}

impl Indices {
    /// # Safety
    /// As [`Buf::new`].
    unsafe fn new(ptr: *const c_void, dtype: NVTEDType, len: usize) -> Self {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            match dtype {
                NVTEDType::kNVTEInt32 => Self::Int32(Buf::new(ptr, len)),
                _ => Self::Int64(Buf::new(ptr, len)),
            }
        }
    }

    /// An index that is not negative.
    fn get(self, at: usize) -> Option<usize> {
        // SAFETY: nobody writes to the indices.
        let index = unsafe {
            match self {
                Self::Int32(indices) => i64::from(indices.slice(at, 1)[0]),
                Self::Int64(indices) => indices.slice(at, 1)[0],
            }
        };
        usize::try_from(index).ok()
    }
}

pub(crate) unsafe extern "C-unwind" fn embedding(
    args: *const EmbeddingArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.weight_dtype, [F32, F16, BF16], W => dispatch!(a.output_dtype, [F32, F16, BF16], O => {
        // SAFETY: the caller vouches for the arguments, and these are their dtypes.
        unsafe { embedding_as::<W, O>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("embedding: output dtype")), else
        Outcome::unimplemented("embedding: weight dtype"))
}

/// # Safety
/// The arguments are valid and have the dtypes `W` and `O`.
unsafe fn embedding_as<W: Element, O: Element>(a: &EmbeddingArgs) {
    let &EmbeddingArgs { count, rows, cols, position_rows, start, total, period, scale, .. } = a;
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (tokens, weight, positions, position_weight, output) = unsafe {
        (
            Indices::new(a.tokens, a.token_dtype, count),
            Buf::<W>::new(a.weight, a.rows * cols),
            (!a.positions.is_null()).then(|| Indices::new(a.positions, a.token_dtype, count)),
            Buf::<W>::optional(a.position_weight, a.position_rows * cols),
            Buf::<O>::new(a.output, count * cols),
        )
    };
    let wrong = AtomicI32::new(0);
    parallel(count).with_min_len(8192 / cols.min(8192)).for_each(|t| {
        let token = tokens.get(t);
        let row = token.and_then(|token| token.checked_sub(start)).filter(|row| *row < rows);
        let position = positions.map_or(Some(t % period), |positions| positions.get(t));
        let position = position.filter(|position| *position < position_rows);
        let mistakes = i32::from(token.is_none_or(|token| token >= total))
            + i32::from(position_weight.is_some() && position.is_none());
        wrong.fetch_add(mistakes, Ordering::Relaxed);
        // SAFETY: nobody writes to the tables, and each row of the output is the task of one thread.
        let (x, p, y) = unsafe {
            (
                row.map(|row| weight.slice(row * cols, cols)),
                position_weight.zip(position).map(|(table, p)| table.slice(p * cols, cols)),
                output.slice_mut(t * cols, cols),
            )
        };
        for (c, y) in y.iter_mut().enumerate() {
            let x = x.map_or(0.0, |x| scale * x[c].to_f32());
            *y = O::from_f32(p.map_or(x, |p| x + p[c].to_f32()));
        }
    });
    if !a.wrong.is_null() {
        // SAFETY: the caller vouches for the number; nobody else uses it.
        unsafe { *a.wrong = (*a.wrong).wrapping_add(wrong.into_inner()) };
    }
}

pub(crate) unsafe extern "C-unwind" fn row_keys(
    args: *const RowKeysArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the caller vouches for the arguments, and nobody else uses the outputs.
    let (indices, keys, values) = unsafe {
        (
            (!a.indices.is_null()).then(|| Indices::new(a.indices, a.index_dtype, a.count)),
            Buf::<u32>::new(a.keys.cast(), a.count).slice_mut(0, a.count),
            Buf::<i32>::new(a.values.cast(), a.count).slice_mut(0, a.count),
        )
    };
    for i in 0..a.count {
        let index = indices.map_or(Some(i % a.period), |indices| indices.get(i));
        let row = index.and_then(|index| index.checked_sub(a.start)).filter(|row| *row < a.rows);
        keys[i] = row.unwrap_or(a.rows) as u32;
        values[i] = i as i32;
    }
    Outcome::OK
}

pub(crate) unsafe extern "C-unwind" fn sum_rows(
    args: *const SumRowsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.input_dtype, [F32, F16, BF16], I => dispatch!(a.output_dtype, [F32, F16, BF16], O => {
        // SAFETY: the caller vouches for the arguments, and these are their dtypes.
        unsafe { sum_rows_as::<I, O>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("sum_rows: output dtype")), else
        Outcome::unimplemented("sum_rows: input dtype"))
}

/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
unsafe fn sum_rows_as<I: Element, O: Element>(a: &SumRowsArgs) {
    let (cols, scale) = (a.cols, a.scale);
    // SAFETY: the caller keeps to the `# Safety` section of this function, and nobody writes to what is read.
    let (input, keys, values, output) = unsafe {
        (
            Buf::<I>::new(a.input, a.count * cols),
            Buf::<u32>::new(a.keys.cast(), a.count).slice(0, a.count),
            Buf::<i32>::new(a.values.cast(), a.count).slice(0, a.count),
            Buf::<O>::new(a.output, a.rows * cols),
        )
    };
    let starts = |i: &usize| *i == 0 || keys[*i] != keys[i - 1];
    let runs: Vec<usize> =
        (0..a.count).filter(starts).take_while(|&i| (keys[i] as usize) < a.rows).collect();
    let scratch = || (zeros::<f32>(cols), zeros::<f32>(cols));
    parallel(runs.len()).for_each_init(scratch, |(sum, part), run| {
        let (first, key) = (runs[run], keys[runs[run]]);
        let end = first + keys[first..].partition_point(|other| *other == key);
        let mut at = first;
        while at < end {
            let part_end = (at / NVTEX_ROW_SUM_PART + 1) * NVTEX_ROW_SUM_PART;
            part.fill(0.0);
            for &row in &values[at..end.min(part_end)] {
                // SAFETY: nobody writes to the input.
                let x = unsafe { input.slice(row as usize * cols, cols) };
                part.iter_mut().zip(x).for_each(|(sum, x)| *sum += x.to_f32());
            }
            match at == first {
                true => sum.copy_from_slice(part),
                false => sum.iter_mut().zip(part.iter()).for_each(|(sum, x)| *sum += x),
            }
            at = part_end;
        }
        // SAFETY: each row of the output is the task of one thread, since keys that are equal lie together.
        let y = unsafe { output.slice_mut(key as usize * cols, cols) };
        for (y, sum) in y.iter_mut().zip(sum.iter()) {
            *y = O::from_f32(y.to_f32() + scale * sum);
        }
    });
}
