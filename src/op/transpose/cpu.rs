//! Reference of the transposes (spec quantize 9.5 and 9.7).
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, SwapFirstDimsArgs, TransposeArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::{is_noop, transposed};
use crate::backend::pool::parallel;
use crate::types::cudaStream_t;

/// `output[c][r] = input[r][c]`
pub(crate) unsafe extern "C-unwind" fn transpose(
    args: *const TransposeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: the flag is null or points to a float.
    if unsafe { is_noop(a.noop) } {
        return Outcome::OK;
    }
    match a.element_size {
        1 => run::<u8>(a),
        2 => run::<u16>(a),
        4 => run::<u32>(a),
        _ => Outcome::unimplemented("transpose: element size"),
    }
}

fn run<T: Copy + Default + Send + Sync>(a: &TransposeArgs) -> Outcome {
    let (rows, cols, numel) = (a.rows, a.cols, a.rows * a.cols);
    // SAFETY: the caller of a table entry vouches for pointers and shape; the matrices are distinct.
    unsafe {
        let from = Buf::<T>::new(a.input, numel);
        let input = from.slice(0, numel);
        let output = Buf::<T>::new(a.output, numel);
        // A single column lies in memory as a single row.
        let (rows, cols) = if cols == 1 { (1, rows) } else { (rows, cols) };
        let fetch = |row, col, len| from.prefetch(row * cols + col, len);
        transposed(rows, cols, output, fetch, |row, col, tile| {
            tile.copy_from_slice(&input[row * cols + col..][..tile.len()]);
            0
        });
    }
    Outcome::OK
}

/// `output[j][i] = input[i][j]` of rows of bytes
pub(crate) unsafe extern "C-unwind" fn swap_first_dims(
    args: *const SwapFirstDimsArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let (first, second, bytes) = (a.first, a.second, a.row_bytes);
    let numel = first * second * bytes;
    // SAFETY: plan() has checked the bytes of both, and that they do not overlap.
    let (input, output) = unsafe {
        (Buf::<u8>::new(a.input, numel).slice(0, numel), Buf::<u8>::new(a.output, numel))
    };
    parallel(second).for_each(|j| {
        // SAFETY: each task writes its own part of the output.
        let to = unsafe { output.slice_mut(j * first * bytes, first * bytes) };
        for (i, row) in to.chunks_exact_mut(bytes).enumerate() {
            row.copy_from_slice(&input[(i * second + j) * bytes..][..bytes]);
        }
    });
    Outcome::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy + Default + Send + Sync + PartialEq + TryFrom<u64>>() {
        let shapes = [
            (1, 1),
            (1, 70_000),
            (70_000, 1),
            (2, 3),
            (3, 20_001),
            (20_001, 3),
            (128, 128),
            (333, 517),
        ];
        for (rows, cols) in shapes {
            let input: Vec<T> = (0..(rows * cols) as u64)
                .map(|i| T::try_from(i * 31 % 251).unwrap_or_default())
                .collect();
            let mut output = vec![T::default(); rows * cols + 1];
            let args = TransposeArgs {
                input: input.as_ptr().cast(),
                output: output.as_mut_ptr().cast(),
                noop: std::ptr::null(),
                rows,
                cols,
                element_size: size_of::<T>(),
            };
            // SAFETY: the arrays have the shapes that the arguments say.
            unsafe { transpose(&args, std::ptr::null_mut()) };
            for (i, x) in input.iter().enumerate() {
                assert!(output[i % cols * rows + i / cols] == *x, "{rows}x{cols}: element {i}");
            }
            assert!(output[rows * cols] == T::default(), "{rows}x{cols}: past the end");
        }
    }

    #[test]
    fn transposes_any_shape() {
        check::<u8>();
        check::<u16>();
        check::<u32>();
    }
}
