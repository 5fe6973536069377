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
