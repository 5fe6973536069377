//! What programs written for the other library rely on where products are refused: its words, which they
//! search for in messages, and refusals of what this library can do. Only a process that uses this library in
//! place of that one gets either.

use super::*;
use crate::env::drop_in;
use GemmEpilogue::*;

/// Operands or options that the other library's products cannot have.
pub(super) const NOT_SUPPORTED: &str = "CUBLAS_STATUS_NOT_SUPPORTED";
/// An epilogue that FP8 blocks do not have.
pub(super) const NO_EPILOGUE: &str = "Epilogue requested outside of the available";
/// Both operands in square blocks.
pub(super) const BOTH_SQUARE: &str =
    "Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported";
/// A dtype that an epilogue of FP8 blocks does not have.
const NO_DTYPE: &str = "an unsupported value or parameter was passed";
/// A size that FP8 blocks do not have.
const NO_SIZE: &str = "dimension requirement";

/// A refusal that holds in every process, with the words of the other library where it is replaced.
pub(super) fn with_words(error: Error, words: &str) -> Error {
    match drop_in() {
        true => Error { message: format!("{} ({words})", error.message), ..error },
        false => error,
    }
}

/// Refuses a sum that is not promoted to float32, which FP8 blocks always are.
pub(super) fn split_accumulator((name, split): (&str, bool)) -> Result<()> {
    if split || !drop_in() {
        return Ok(());
    }
    let error = Error::argument(name, "1 (FP8 blocks are summed in float32)", 0);
    Err(with_words(error, NOT_SUPPORTED))
}

/// Refuses what the other library's products of FP8 blocks cannot do.
pub(super) fn blocks(a: &Operand, b: &Operand, d: &GemmArgs) -> Result<()> {
    if !drop_in() {
        return Ok(());
    }
    if [a.dtype, b.dtype] == [NVTEDType::kNVTEFloat8E5M2; 2] {
        let error = Error::argument("B.dtype", "Float8E4M3 (A is Float8E5M2)", b.dtype);
        return Err(with_words(error, NOT_SUPPORTED));
    }
    if d.epilogue == NVTEX_EPILOGUE_DGELU && d.d_dtype == NVTEDType::kNVTEFloat32 {
        let error =
            Error::argument("D.dtype", "BFloat16 or Float16 (dGELU of FP8 blocks)", d.d_dtype);
        return Err(with_words(error, NO_DTYPE));
    }
    let rows = if b.scales.mode == NVTE_BLOCK_SCALING_1D { 8 } else { 1 };
    for (name, size, of) in [("A", a.k, 16), ("A", a.outer, 8), ("B", b.outer, rows)] {
        if !size.is_multiple_of(of) {
            let expected = format!("a multiple of {of} (FP8 blocks)");
            return Err(with_words(
                Error::argument(format!("{name}.shape"), expected, size),
                NO_SIZE,
            ));
        }
    }
    Ok(())
}
