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
/// Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same for both.
/// Empty matrices: nothing is written.
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

/// Casts a tensor and its transpose in one pass over the input: `nvte_quantize` to an output that
/// has both directions.
///
/// Errors: as `nvte_quantize`; a direction missing; `columnwise_scale_inv` at another address than
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

/// `nvte_cast_transpose` of `input_list[i]` to `output_list[i]` for each i below `num_tensors`, where
/// the two `scale_inv` of an output may be apart. If any is wrong nothing is written at all; its message
/// says `tensor i`.
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

/// `nvte_cast_transpose`, and the sums of the input over its rows: `nvte_quantize_dbias` to an output
/// that has both directions, per tensor.
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

/// Transposes FP8 data and sums their columns: `transposed_output[j][i] = input[i][j]`, bit by bit, and
/// `dbias[j] = cast(sum over i of float(input[i][j]) * s)` with `s = transposed_output.scale_inv`, 1 if
/// that is absent. Sums are float32, in an order that the shape alone decides.
///
/// A workspace without a pointer is given the shape and the dtype that the call needs, and nothing
/// else happens.
/// Shapes: `[m, n]` to `[n, m]`, row-wise data of both; dbias `[n]`.
/// Dtypes: Float8E4M3 or Float8E5M2 for both; dbias Float32, Float16 or BFloat16.
/// Empty matrices: dbias is 0.
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

/// Swaps the first two dimensions: `output[j][i][...] = input[i][j][...]`, bit by bit.
///
/// Shapes: `[m, n, ...]` to `[n, m, ...]`, row-wise data of both.
/// Dtypes: any, the same for both.
/// Empty tensors: nothing is written.
/// Errors: other dtypes or shapes; Float4E2M1 in rows of part of a byte; an output that overlaps the input;
/// null or misaligned pointers.
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

/// Transposes a matrix of Float4E2M1 elements, which is given as bytes of two elements, the first in the
/// low bits: element (k, m) of the output is element (m, k) of the input.
///
/// Shapes: `[m, k / 2]` to `[k, m / 2]` bytes, m even. Dtypes: Byte. Not in place.
/// Empty matrices: nothing is written.
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

/// Block scales of the transpose of an NVFP4 matrix that has one scale for each 16 x 16:
/// `output[r][c] = input[16 c][r / 16]` if `r / 16 < K_tiles`, else 0, for all r and `c < M_tiles`.
///
/// Shapes: input `[R, C]` with `R > 16 (M_tiles - 1)` and `C >= K_tiles`, output `[any, M_tiles]` or wider,
/// further columns of which are not written. Dtypes: Byte.
/// Empty: nothing is written.
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
