//! C functions of transpose.h: transposes, alone and with a cast.
#![allow(unsafe_code, non_snake_case, clippy::missing_safety_doc)]

use super::*;
use crate::backend::args::Function::*;
use crate::error::guard;

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
        multi_cast_transpose(num_tensors, input_list, output_list, stream)
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
        cast_transpose_dbias(None, input, output, [dbias, workspace], stream)
    });
}

/// As `nvte_cast_transpose_dbias`, of `v = gelu'(act_input) * input` in place of the input; see
/// `nvte_quantize_dbias_dgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dgelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let derivative = Some((NVTEX_GELU, act_input));
    guard("nvte_cast_transpose_dbias_dgelu", || {
        cast_transpose_dbias(derivative, input, output, [dbias, workspace], stream)
    });
}

/// As `nvte_cast_transpose_dbias_dgelu`, with `silu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dsilu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let derivative = Some((NVTEX_SILU, act_input));
    guard("nvte_cast_transpose_dbias_dsilu", || {
        cast_transpose_dbias(derivative, input, output, [dbias, workspace], stream)
    });
}

/// As `nvte_cast_transpose_dbias_dgelu`, with `relu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_drelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let derivative = Some((NVTEX_RELU, act_input));
    guard("nvte_cast_transpose_dbias_drelu", || {
        cast_transpose_dbias(derivative, input, output, [dbias, workspace], stream)
    });
}

/// As `nvte_cast_transpose_dbias_dgelu`, with `qgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dqgelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let derivative = Some((NVTEX_QGELU, act_input));
    guard("nvte_cast_transpose_dbias_dqgelu", || {
        cast_transpose_dbias(derivative, input, output, [dbias, workspace], stream)
    });
}

/// As `nvte_cast_transpose_dbias_dgelu`, with `srelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_cast_transpose_dbias_dsrelu(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    dbias: NVTETensor,
    workspace: NVTETensor,
    stream: cudaStream_t,
) {
    let derivative = Some((NVTEX_SRELU, act_input));
    guard("nvte_cast_transpose_dbias_dsrelu", || {
        cast_transpose_dbias(derivative, input, output, [dbias, workspace], stream)
    });
}

/// `nvte_cast_transpose` of the gradient of `gelu(a) * g`.
///
/// Formula: with act_input = (a | g) in halves, `(gelu'(a) * input * g | input * gelu(a))`, in Float32.
/// Shapes: input `[..., H]`, act_input and the output `[..., 2 H]`.
/// Dtypes: Float32, Float16, BFloat16, the same for both inputs; output as for `nvte_quantize`.
/// Errors: as `nvte_cast_transpose`; inputs that do not fit each other.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dgeglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dgeglu_cast_transpose", || {
        gated_cast_transpose(NVTEX_GELU, input, act_input, output, stream)
    });
}

/// As `nvte_dgeglu_cast_transpose`, with `silu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dswiglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dswiglu_cast_transpose", || {
        gated_cast_transpose(NVTEX_SILU, input, act_input, output, stream)
    });
}

/// As `nvte_dgeglu_cast_transpose`, with `relu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dreglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dreglu_cast_transpose", || {
        gated_cast_transpose(NVTEX_RELU, input, act_input, output, stream)
    });
}

/// As `nvte_dgeglu_cast_transpose`, with `qgelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dqgeglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dqgeglu_cast_transpose", || {
        gated_cast_transpose(NVTEX_QGELU, input, act_input, output, stream)
    });
}

/// As `nvte_dgeglu_cast_transpose`, with `srelu`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dsreglu_cast_transpose(
    input: NVTETensor,
    act_input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dsreglu_cast_transpose", || {
        gated_cast_transpose(NVTEX_SRELU, input, act_input, output, stream)
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
        fp8_transpose_dbias(input, transposed_output, dbias, workspace, stream)
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
    guard("nvte_swap_first_dims", || swap_first_dims(input, output, stream));
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
    guard("nvte_nvfp4_data_transpose", || nvfp4_data(input, output, stream));
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
    guard("nvte_nvfp4_scale_transpose", || nvfp4_scale(input, output, M_tiles, K_tiles, stream));
}
