//! Reference of the transposes of NVFP4 data and scales (spec optim_nvfp4, section 18).
#![allow(unsafe_code)]

use crate::backend::args::{Nvfp4ScaleTransposeArgs, Nvfp4TransposeArgs, Outcome};
use crate::backend::buf::Buf;
use crate::backend::pool::chunks_mut;
use crate::types::cudaStream_t;

/// Element (c, r) of the output is element (r, c) of the input.
pub(crate) unsafe extern "C-unwind" fn transpose(
    args: *const Nvfp4TransposeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let bytes = a.rows * a.cols / 2;
    // SAFETY: the arguments are valid: both matrices have this many bytes.
    let (input, output) = unsafe {
        (
            Buf::<u8>::new(a.input, bytes).slice(0, bytes),
            Buf::<u8>::new(a.output, bytes).slice_mut(0, bytes),
        )
    };
    let (pitch, rows) = (a.cols / 2, a.rows);
    chunks_mut(output, rows / 2).for_each(|(col, line)| {
        let code = |row: usize| input[row * pitch + col / 2] >> (col % 2 * 4) & 0xF;
        for (pair, byte) in line.iter_mut().enumerate() {
            *byte = code(2 * pair) | code(2 * pair + 1) << 4;
        }
    });
    Outcome::OK
}

/// `output[r][c] = r / 16 < row_tiles ? input[16 c][r / 16] : 0`
pub(crate) unsafe extern "C-unwind" fn scale_transpose(
    args: *const Nvfp4ScaleTransposeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    let input_bytes = 16 * (a.cols - 1) * a.input_stride + a.row_tiles;
    // SAFETY: the arguments are valid: the last scale that is read or written is within these sizes.
    let (input, output) = unsafe {
        (
            Buf::<u8>::new(a.input, input_bytes).slice(0, input_bytes),
            Buf::<u8>::new(a.output, (a.rows - 1) * a.output_stride + a.cols),
        )
    };
    for row in 0..a.rows {
        // SAFETY: the rows do not overlap, and one is written at a time.
        let line = unsafe { output.slice_mut(row * a.output_stride, a.cols) };
        let tile = row / 16;
        for (col, to) in line.iter_mut().enumerate() {
            *to = if tile < a.row_tiles { input[16 * col * a.input_stride + tile] } else { 0 };
        }
    }
    Outcome::OK
}
