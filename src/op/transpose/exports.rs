//! C functions of transpose.h: transposes, alone and with a cast.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc)]

use super::*;
use crate::check::{rowwise, tensor};
use crate::error::guard;
use crate::op::cast::exports::pairs;
use crate::workspace::{self, Asks};
use std::ptr::null;

/// Transposes a matrix: `output[j][i] = input[i][j]`, bit by bit.
///
/// Shapes: `[m, n]` to `[n, m]`, row-wise data of both.
///
/// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both.
///
/// Notes: nothing is written to empty matrices.
///
/// Errors: other dtypes or shapes; an output that overlaps the input; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_transpose(
    input: NVTETensor,
    transposed_output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_transpose", || {
        let input = rowwise("input", input)?;
        let output = rowwise("transposed_output", transposed_output)?;
        transpose(&input, null(), ("transposed_output", &output), stream)
    });
}

/// Casts a tensor and its transpose in one pass over the input: `nvte_quantize` to an output that has
/// both directions.
///
/// Errors: as `nvte_quantize`; a direction missing; a `columnwise_scale_inv` at another address than
/// `scale_inv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose", || {
        let (input, output) = (tensor("input", input)?, tensor("output", output)?);
        cast_transpose(&input, &output, &QuantizationConfig::DEFAULT, stream)
    });
}

/// Casts `input_list[i]` and its transpose to `output_list[i]` as `nvte_cast_transpose` does, for each
/// i below `num_tensors`. The two `scale_inv` of an output may be apart.
///
/// Errors: as `nvte_cast_transpose`, with `tensor i` in the message. If any tensor is wrong, nothing is
/// written at all.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_multi_cast_transpose(
    num_tensors: usize,
    input_list: *const NVTETensor,
    output_list: *mut NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_multi_cast_transpose", || {
        let (inputs, outputs) =
            (("input_list", input_list), ("output_list", output_list.cast_const()));
        // SAFETY: the caller says that both arrays have `num_tensors` entries.
        multi_cast_transpose(unsafe { pairs(inputs, outputs, num_tensors)? }, stream)
    });
}

/// Casts a tensor and its transpose per tensor, and sums the input over its rows: `nvte_quantize_dbias`
/// to an output that has both directions.
///
/// Errors: as `nvte_quantize_dbias` and `nvte_cast_transpose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias(
    input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_cast_transpose_dbias", || {
        let (input, output) = (tensor("input", input)?, tensor("output", output)?);
        let dbias = tensor("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            cast_transpose_dbias(None, &input, &output, &dbias, workspace, stream)
        })
    });
}

/// Transposes FP8 data and sums their columns.
///
/// What it computes: `transposed_output[j][i] = input[i][j]`, bit by bit, and
/// `dbias[j] = cast(sum over i of float(input[i][j]) * s)` with `s = transposed_output.scale_inv`, 1 if
/// that is absent. Sums are float32, in an order that only the shape decides.
///
/// Workspace: if it has no pointer, the call gives it the shape and the dtype that are needed, and does
/// nothing else.
///
/// Shapes: `[m, n]` to `[n, m]`, row-wise data of both; dbias `[n]`.
///
/// Dtypes: Float8E4M3 or Float8E5M2 for both; dbias Float32, Float16 or BFloat16.
///
/// Notes: the dbias of an empty matrix is 0.
///
/// Errors: other dtypes or shapes; an input without `scale_inv`; a workspace that is too small; null or
/// misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_fp8_transpose_dbias(
    input: NVTETensor,
    transposed_output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_fp8_transpose_dbias", || {
        let input = tensor("input", input)?;
        let output = tensor("transposed_output", transposed_output)?;
        let dbias = rowwise("dbias", dbias)?;
        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {
            fp8_transpose_dbias(&input, &output, &dbias, workspace, stream)
        })
    });
}

/// Swaps the first two dimensions of a tensor: `output[j][i][...] = input[i][j][...]`, bit by bit.
///
/// Shapes: `[m, n, ...]` to `[n, m, ...]`, row-wise data of both.
///
/// Dtypes: any, the same for both.
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other dtypes or shapes; Float4E2M1 whose rows are not whole bytes; an output that overlaps
/// the input; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_swap_first_dims(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_swap_first_dims", || {
        swap_first_dims(&tensor("input", input)?, &tensor("output", output)?, stream)
    });
}

/// Transposes a matrix of Float4E2M1 elements: element (k, m) of the output is element (m, k) of the
/// input. The matrix is given as bytes of two elements, the first in the low bits.
///
/// Shapes: `[m, k / 2]` to `[k, m / 2]` bytes, m even. Dtypes: Byte.
///
/// Notes: the output must not be the input. Nothing is written to empty matrices.
///
/// Errors: other dtypes or shapes; null pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_data_transpose(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_data_transpose", || {
        let input = rowwise("input", input)?;
        nvfp4_data(&input, &rowwise("output", output)?, stream)
    });
}

/// Computes the block scales of the transpose of an NVFP4 matrix that has one scale for each 16 x 16
/// elements: `output[r][c] = input[16 c][r / 16]` if `r / 16 < K_tiles`, otherwise 0, for all r and
/// `c < M_tiles`.
///
/// Shapes: input `[R, C]` with `R > 16 (M_tiles - 1)` and `C >= K_tiles`; output `[any, M_tiles]` or
/// wider, of which further columns are not written. Dtypes: Byte.
///
/// Notes: nothing is written to empty tensors.
///
/// Errors: other dtypes or shapes; null pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_nvfp4_scale_transpose(
    input: NVTETensor,
    output: NVTETensor,
    M_tiles: usize,
    K_tiles: usize,
    stream: cudaStream_t,
) {
    guard("nvte_nvfp4_scale_transpose", || {
        let input = rowwise("input", input)?;
        nvfp4_scale(&input, &rowwise("output", output)?, M_tiles, K_tiles, stream)
    });
}
