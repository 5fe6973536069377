//! Reference of the requantization from row-wise to column-wise MXFP8 (spec quantize 8).
#![allow(unsafe_code)]

use super::cpu_block::{e8m0, exp2, reciprocal};
use crate::backend::args::{Outcome, RequantizeArgs};
use crate::backend::buf::Buf;
use crate::backend::pool::parallel;
use crate::numeric::{BF16, E4M3, Element, amax_bits, dispatch};
use crate::types::cudaStream_t;

/// Rows and columns of a block, and sides of the tiles of codes.
const BLOCK: usize = 32;
const TILE: usize = 128;

pub(crate) unsafe extern "C-unwind" fn requantize(
    args: *const RequantizeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.input_dtype, [E4M3, E5M2], I => {
        // SAFETY: the arguments are valid, and the dtype of the call is the one that they name.
        unsafe { run::<I>(a) };
        Outcome::OK
    }, else Outcome::unimplemented("requantize: input dtype"))
}

/// Index of a code in tiles of 128 lines and 4 blocks, `across` of them along the blocks.
fn tiled(line: usize, block: usize, across: usize) -> usize {
    (line / TILE * across + block / 4) * 512 + line % 32 * 16 + line % TILE / 32 * 4 + block % 4
}

/// # Safety
/// The arguments are valid and have the dtype `I`.
unsafe fn run<I: Element>(a: &RequantizeArgs) {
    let (rows, cols, numel) = (a.rows, a.cols, a.rows * a.cols);
    let (code_stride, through_bf16) = (a.code_stride, a.through_bf16);
    // SAFETY: the caller's promise; inputs and outputs are distinct.
    let (input, codes, colwise, row_codes, col_codes, dequantized, offsets) = unsafe {
        (
            Buf::<I>::new(a.input, numel).slice(0, numel),
            Buf::<u8>::new(a.codes.cast(), rows * a.code_stride),
            Buf::<E4M3>::new(a.colwise, numel),
            Buf::<u8>::new(a.rowwise_codes.cast(), numel / BLOCK),
            Buf::<u8>::new(a.colwise_codes.cast(), numel / BLOCK),
            Buf::<BF16>::optional(a.dequantized, numel),
            Buf::<i64>::new(a.offsets.cast(), a.num_groups + 1).slice(0, a.num_groups + 1),
        )
    };
    parallel(rows / BLOCK).for_each(|band| {
        let first = band * BLOCK;
        let owner = offsets.windows(2).find_map(|ends| {
            // A negative offset becomes one that is too large.
            let [begin, end] = [ends[0], ends[1]].map(|at| at as usize / cols);
            (begin..end).contains(&first).then_some((begin, end))
        });
        let Some((begin, end)) = owner else { return };
        // Wrong offsets still give groups of whole tiles, which contain these rows.
        let tile = first / TILE * TILE;
        let (begin, end) = (begin / TILE * TILE, end.max(tile + TILE).min(rows));
        let down = (end - begin) / TILE;
        for left in (0..cols).step_by(BLOCK) {
            let mut values = [[0.0; BLOCK]; BLOCK];
            let mut most = [0; BLOCK];
            for (r, values) in values.iter_mut().enumerate() {
                let (row, block) = (first + r, left / BLOCK);
                // SAFETY: the caller keeps to the `# Safety` section of this function.
                let code = unsafe { codes.slice(row * code_stride + block, 1)[0] };
                // SAFETY: the entries and elements from here on are of this band alone.
                unsafe { row_codes.slice_mut(tiled(row, block, cols / TILE), 1)[0] = code };
                for (c, v) in values.iter_mut().enumerate() {
                    *v = input[row * cols + left + c].to_f32() * exp2(code);
                    let short = BF16::from_f32(*v);
                    if let Some(dequantized) = dequantized {
                        // SAFETY: the matrix is as large as the input, and only this task writes this element.
                        unsafe { dequantized.slice_mut(row * cols + left + c, 1)[0] = short };
                    }
                    if through_bf16 {
                        *v = short.to_f32();
                    }
                    most[c] = amax_bits(*v).max(most[c]);
                }
            }
            for c in 0..BLOCK {
                let code = e8m0(f32::from_bits(most[c]) * (1.0 / E4M3::DTYPE.fp8_max()));
                let at = begin / BLOCK * cols + tiled(left + c, (first - begin) / BLOCK, down);
                // SAFETY: there is a code for each block of each column, and only this task writes this one.
                unsafe { col_codes.slice_mut(at, 1)[0] = code };
                for (r, values) in values.iter().enumerate() {
                    let y = E4M3::from_f32(values[c] * reciprocal(code));
                    // SAFETY: the matrix is as large as the input, and only this task writes this element.
                    unsafe { colwise.slice_mut((first + r) * cols + left + c, 1)[0] = y };
                }
            }
        }
    });
}
