//! Reference of amax and casts of a part of a matrix (spec quantize 10.5 and 10.6).
#![allow(unsafe_code)]

use crate::backend::args::*;
use crate::backend::buf::Buf;
use crate::backend::memory::zeros;
use crate::backend::pool::parallel;
use crate::numeric::{Element, amax_bits, dispatch};
use crate::op::cast::cpu_block::reciprocal;
use crate::types::{NVTEScalingMode, cudaStream_t};
use std::ops::Range;

impl Shard {
    /// For a row, the columns that the shard has, and where in the shard the first of them is.
    pub(super) fn columns(&self) -> impl Fn(usize) -> (Range<usize>, usize) + Sync {
        let (start, end, cols) = (self.start, self.start + self.length, self.cols);
        move |row| {
            let at = row * cols;
            let (first, last) =
                (start.saturating_sub(at).min(cols), end.saturating_sub(at).min(cols));
            if first >= last { (0..0, 0) } else { (first..last, at + first - start) }
        }
    }
}

/// Largest magnitudes of the blocks of a matrix.
pub(crate) unsafe extern "C-unwind" fn partial_amax(
    args: *const PartialAmaxArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.shard.dtype, [F32, F16, BF16], T => {
        // SAFETY: the arguments are valid, and the dtype of the call is the one that they name.
        unsafe {
            if a.mode == NVTEScalingMode::NVTE_MXFP8_1D_SCALING {
                blocks_of_32::<T>(a);
            } else {
                blocks_of_128::<T>(a);
            }
        }
        Outcome::OK
    }, else Outcome::unimplemented("partial_amax: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtype `T`.
unsafe fn blocks_of_128<T: Element>(a: &PartialAmaxArgs) {
    let s = &a.shard;
    let (columns_of, rows, across) = (s.columns(), s.rows, s.cols.div_ceil(128));
    let (stride, step) = (a.rowwise_stride, a.block_step);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let input = unsafe { Buf::<T>::new(s.input, s.length).slice(0, s.length) };
    // SAFETY: the caller's promise: the strides do not lead out of the buffer.
    let amax = unsafe { Buf::<f32>::new(a.rowwise, usize::MAX) };
    parallel(rows.div_ceil(128)).for_each(|block| {
        let mut maxima = zeros(across);
        for row in block * 128..rows.min(block * 128 + 128) {
            let (columns, at) = columns_of(row);
            for (x, col) in input[at..][..columns.len()].iter().zip(columns) {
                maxima[col / 128] = amax_bits(x.to_f32()).max(maxima[col / 128]);
            }
        }
        for (i, bits) in maxima.into_iter().enumerate() {
            // SAFETY: each block has its own entry.
            unsafe { amax.slice_mut(block * stride + i * step, 1)[0] = f32::from_bits(bits) };
        }
    });
}

/// # Safety
/// As `blocks_of_128`.
unsafe fn blocks_of_32<T: Element>(a: &PartialAmaxArgs) {
    let s = &a.shard;
    let (columns_of, rows, padded) = (s.columns(), s.rows, s.cols.next_multiple_of(128));
    let (down, row_stride, col_stride) = (rows.div_ceil(32), a.rowwise_stride, a.colwise_stride);
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, rowwise, colwise) = unsafe {
        (
            Buf::<T>::new(s.input, s.length).slice(0, s.length),
            Buf::<T>::optional(a.rowwise, rows * row_stride),
            Buf::<T>::optional(a.colwise, down * col_stride),
        )
    };
    parallel(down).for_each(|block| {
        let mut by_col = zeros(padded);
        let mut by_row = zeros(padded / 32);
        let write = |to: &mut [T], maxima: &[u32]| {
            for (to, &bits) in to.iter_mut().zip(maxima) {
                *to = T::from_f32(f32::from_bits(bits));
            }
        };
        for row in block * 32..rows.min(block * 32 + 32) {
            let (columns, at) = columns_of(row);
            by_row.fill(0);
            for (x, col) in input[at..][..columns.len()].iter().zip(columns) {
                let bits = amax_bits(x.to_f32());
                by_col[col] = bits.max(by_col[col]);
                by_row[col / 32] = bits.max(by_row[col / 32]);
            }
            if let Some(rowwise) = rowwise {
                // SAFETY: each row has its own entries.
                let to = unsafe { rowwise.slice_mut(row * row_stride, padded / 32) };
                write(to, &by_row);
            }
        }
        if let Some(colwise) = colwise {
            // SAFETY: each block of rows has its own entries.
            let to = unsafe { colwise.slice_mut(block * col_stride, padded) };
            write(to, &by_col);
        }
    });
}

/// Casts a shard.
pub(crate) unsafe extern "C-unwind" fn partial_cast(
    args: *const PartialCastArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.shard.dtype, [F32, F16, BF16], I =>
        dispatch!(a.output_dtype, [E4M3, E5M2], O => {
            // SAFETY: the arguments are valid, and the dtypes of the call are those that they name.
            unsafe { cast::<I, O>(a) };
            Outcome::OK
        }, else Outcome::unimplemented("partial_cast: output dtype")),
    else Outcome::unimplemented("partial_cast: input dtype"))
}

/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
unsafe fn cast<I: Element, O: Element>(a: &PartialCastArgs) {
    let s = &a.shard;
    let mxfp8 = a.mode == NVTEScalingMode::NVTE_MXFP8_1D_SCALING;
    let (row_stride, col_stride, step) = (a.rowwise_stride, a.colwise_stride, a.block_step);
    let columns_of = s.columns();
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, rowwise, colwise) = unsafe {
        (
            Buf::<I>::new(s.input, s.length).slice(0, s.length),
            Buf::<O>::optional(a.rowwise, s.length),
            Buf::<O>::optional(a.colwise, s.length),
        )
    };
    // SAFETY: the caller's promise: the strides do not lead out of the buffer.
    let scales = unsafe { Buf::<f32>::new(a.rowwise_scales, usize::MAX) };
    // SAFETY: the caller's promise: the strides do not lead out of the buffers.
    let codes = [a.rowwise_scales, a.colwise_scales]
        .map(|codes| unsafe { Buf::<u8>::new(codes, usize::MAX) });
    let row_factor = |row: usize, col: usize| {
        // SAFETY: each block has an entry.
        unsafe {
            match mxfp8 {
                true => reciprocal(codes[0].slice(row * row_stride + col / 32, 1)[0]),
                false => scales.slice(row / 128 * row_stride + col / 128 * step, 1)[0],
            }
        }
    };
    let col_factor = |row: usize, col: usize| {
        // SAFETY: there is a code for each block of each column.
        reciprocal(unsafe { codes[1].slice(row / 32 * col_stride + col, 1)[0] })
    };
    let rows = s.start / s.cols..(s.start + s.length).div_ceil(s.cols);
    parallel(rows.len()).for_each(|i| {
        let row = rows.start + i;
        let (columns, at) = columns_of(row);
        let input = &input[at..][..columns.len()];
        let convert = |to: Option<Buf<O>>, factor: &dyn Fn(usize) -> f32| {
            let Some(to) = to else { return };
            // SAFETY: each row has its own part of the output.
            let to = unsafe { to.slice_mut(at, input.len()) };
            for ((x, y), col) in input.iter().zip(to).zip(columns.clone()) {
                *y = O::from_f32(x.to_f32() * factor(col));
            }
        };
        convert(rowwise, &|col| row_factor(row, col));
        convert(colwise, &|col| col_factor(row, col));
    });
}
