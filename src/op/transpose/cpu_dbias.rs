//! Reference of the transpose with sums of columns (spec quantize 9.6).
#![allow(unsafe_code)]

use crate::backend::args::{Outcome, TransposeDbiasArgs};
use crate::backend::buf::{Buf, load};
use crate::backend::cpu::{transposed, vectorized};
use crate::backend::pool::parallel;
use crate::numeric::{Element, dispatch};
use crate::types::cudaStream_t;

/// Rows whose sum is one row of the workspace.
const BLOCK: usize = 128;
/// Columns of a task.
const WIDTH: usize = 512;

/// `output[c][r] = input[r][c]`, `dbias[c] = cast(sum over r of float(input[r][c]) * scale_inv)`
pub(crate) unsafe extern "C-unwind" fn transpose_dbias(
    args: *const TransposeDbiasArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.dtype, [E4M3, E5M2], I =>
        dispatch!(a.dbias_dtype, [F32, F16, BF16], O => {
            // SAFETY: plan() has checked the buffers, and the dtypes are those of the arguments.
            unsafe { run::<I, O>(a) };
            Outcome::OK
        }, else Outcome::unimplemented("transpose_dbias: dbias dtype")),
    else Outcome::unimplemented("transpose_dbias: dtype"))
}

/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
unsafe fn run<I: Element, O: Element>(a: &TransposeDbiasArgs) {
    let (rows, cols, numel) = (a.rows, a.cols, a.rows * a.cols);
    let blocks = rows.div_ceil(BLOCK);
    // SAFETY: the caller's promise; inputs and outputs are distinct.
    let (from, output, dbias, partial, scale) = unsafe {
        (
            Buf::<I>::new(a.input, numel),
            Buf::<I>::new(a.output, numel),
            Buf::<O>::new(a.dbias, cols),
            Buf::<f32>::new(a.workspace.cast(), blocks * cols),
            load(a.scale_inv).unwrap_or(1.0),
        )
    };
    // SAFETY: nobody writes to the input.
    let input = unsafe { from.slice(0, numel) };
    if rows > 0 {
        // SAFETY: the output is ours.
        unsafe {
            let fetch = |row, col, len| from.prefetch(row * cols + col, len);
            transposed(rows, cols, output, fetch, |row, col, tile: &mut [I]| {
                tile.copy_from_slice(&input[row * cols + col..][..tile.len()]);
                0
            })
        };
    }
    let across = cols.div_ceil(WIDTH);
    parallel(blocks * across).for_each(|task| {
        let (block, col) = (task / across, task % across * WIDTH);
        let (first, width) = (block * BLOCK, WIDTH.min(cols - col));
        // SAFETY: each task has its own part of the workspace.
        let sums = unsafe { partial.slice_mut(block * cols + col, width) };
        sums.fill(0.0);
        let lines = &input[first * cols..rows.min(first + BLOCK) * cols];
        for eight in lines.chunks(8 * cols) {
            // Sums of 4 rows are added in pairs.
            let mut fours = [[0.0; WIDTH]; 2];
            for (four, lines) in fours.iter_mut().zip(eight.chunks(4 * cols)) {
                lines.chunks(cols).for_each(|line| add(&line[col..][..width], scale, four));
            }
            let [a, b] = fours;
            sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a + b);
        }
    });
    for col in 0..cols {
        let mut lanes = [0.0; 8];
        for block in 0..blocks {
            // SAFETY: the tasks are done.
            lanes[block % 8] += unsafe { partial.slice(block * cols + col, 1)[0] };
        }
        // SAFETY: the tasks are done, and there are `cols` sums.
        unsafe { dbias.slice_mut(col, 1)[0] = O::from_f32(lanes.iter().sum()) };
    }
}

vectorized! {
    /// `sums += input * scale`
    fn add<I: Element>(input: &[I], scale: f32, sums: &mut [f32; WIDTH]) {
        for (x, sum) in input.iter().zip(sums) {
            *sum += x.to_f32() * scale;
        }
    }
}
