//! Reference of the transposes (spec quantize 9.5 and 9.7), and the tiling that casts share with them.
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, SwapFirstDimsArgs, TransposeArgs};
use crate::backend::buf::Buf;
use crate::backend::cpu::{is_noop, vectorized};
use crate::backend::pool::parallel;
use crate::types::cudaStream_t;

/// `output[c][r] = input[r][c]`
pub(crate) unsafe extern "C-unwind" fn transpose(
    args: *const TransposeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    // SAFETY: as above.
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
        let input = Buf::<T>::new(a.input, numel).slice(0, numel);
        let output = Buf::<T>::new(a.output, numel);
        // A single column lies in memory as a single row.
        let (rows, cols) = if cols == 1 { (1, rows) } else { (rows, cols) };
        transposed(rows, cols, output, |row, col, tile| {
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
    // SAFETY: as above; input and output are distinct.
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

/// Writes a `[rows, cols]` matrix, transposed, to `output`. `fill(row, col, to)` makes the elements
/// of a row from a column on; the largest of its results is returned.
///
/// # Safety
/// `output` has `rows * cols` elements that nobody else uses meanwhile.
pub(crate) unsafe fn transposed<T: Copy + Default + Send + Sync>(
    rows: usize,
    cols: usize,
    output: Buf<T>,
    fill: impl Fn(usize, usize, &mut [T]) -> u32 + Sync + Send,
) -> u32 {
    // Tiles of two cache lines each way; longer the one way if the matrix is narrow the other way.
    let side = 128 / size_of::<T>();
    let tile_cols =
        (side * side / rows.next_power_of_two().min(side)).min(cols.next_power_of_two());
    let tile_rows = (side * side / tile_cols).min(rows.next_power_of_two());
    let across = cols.div_ceil(tile_cols);
    let tile = |scratch: &mut (Vec<T>, Vec<T>), task: usize| {
        let (row, col) = (task / across * tile_rows, task % across * tile_cols);
        let (height, width) = (tile_rows.min(rows - row), tile_cols.min(cols - col));
        if rows == 1 {
            // SAFETY: tiles write disjoint parts of the output.
            return fill(0, col, unsafe { output.slice_mut(col, width) });
        }
        let (mut from, mut to) = (&mut scratch.0[..], &mut scratch.1[..]);
        let mut max = 0;
        for (r, line) in from.chunks_exact_mut(tile_cols).take(height).enumerate() {
            max = fill(row + r, col, &mut line[..width]).max(max);
        }
        // Each perfect shuffle rotates the bits of the index (row, column) by one place.
        for _ in 0..tile_rows.trailing_zeros() {
            shuffle(from, to);
            std::mem::swap(&mut from, &mut to);
        }
        for (c, line) in from.chunks_exact(tile_rows).take(width).enumerate() {
            // SAFETY: tiles write disjoint parts of the output.
            let out = unsafe { output.slice_mut((col + c) * rows + row, height) };
            out.copy_from_slice(&line[..height]);
        }
        max
    };
    let scratch = || {
        let area = vec![T::default(); tile_rows * tile_cols];
        (area.clone(), area)
    };
    parallel(rows.div_ceil(tile_rows) * across).max_init(scratch, tile)
}

vectorized! {
    /// Interleaves the two halves of `from`.
    fn shuffle<T: Copy>(from: &[T], to: &mut [T]) {
        let (low, high) = from.split_at(from.len() / 2);
        for ((pair, &a), &b) in to.chunks_exact_mut(2).zip(low).zip(high) {
            pair[0] = a;
            pair[1] = b;
        }
    }
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
