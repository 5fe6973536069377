//! C functions of transpose.h: transposes, alone and with a cast.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Transposes a matrix: `output[j][i] = input[i][j]`, bit by bit.
///
/// Shapes: `[m, n]` to `[n, m]`, row-wise data of both.
/// Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same for both.
/// Empty matrices: nothing is written.
/// Errors: other dtypes or shapes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_transpose(
    input: NVTETensor,
    transposed_output: NVTETensor,
    stream: cudaStream_t,
) {
    let output = ("transposed_output", transposed_output);
    guard("nvte_transpose", || transpose(input, std::ptr::null_mut(), output, stream));
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
    guard("nvte_cast_transpose", || cast_transpose(input, std::ptr::null_mut(), output, stream));
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
        fp8_transpose_dbias(input, transposed_output, dbias, workspace, stream)
    });
}

/// Swaps the first two dimensions: `output[j][i][...] = input[i][j][...]`, bit by bit.
///
/// Shapes: `[m, n, ...]` to `[n, m, ...]`, row-wise data of both.
/// Dtypes: any, the same for both.
/// Empty tensors: nothing is written.
/// Errors: other dtypes or shapes; Float4E2M1 in rows of part of a byte; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_swap_first_dims(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_swap_first_dims", || swap_first_dims(input, output, stream));
}
