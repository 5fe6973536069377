//! C functions of cast.h: quantize, dequantize and requantize.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Casts a tensor, rounding to nearest even and saturating, in the scaling mode of the output.
///
/// Per tensor: `y = cast(x * scale)` to FP8, `y = cast(x)` otherwise. FP8 blocks (1D of 128 elements,
/// 2D of 128 x 128): `y = cast(x * s)` with `s = fp8_max / max|x|` of the block, 1 if that is 0 or Inf.
/// MXFP8 (blocks of 32): `y = cast(x / 2^e)`, with `2^e` the power of two from `max|x| / fp8_max` on.
/// Shapes: input `[..., n]`, as a matrix R x C; row-wise output the same, column-wise output
/// `[n, ...]` (transposed; MXFP8: as the input) in blocks along the columns; either or both.
/// Dtypes: Float32, Float16, BFloat16 to Float8E4M3, Float8E5M2; per tensor also to these.
/// Scales, per tensor (FP8): `scale` is read (absent: 1), `scale_inv` and `columnwise_scale_inv` are
/// set to `1 / scale`.
/// Scales, FP8 blocks: Float32 `1 / s`; 1D `scale_inv` `[C/128, R]`, `columnwise_scale_inv`
/// `[R/128, C]`; 2D `[R/128, C/128]`, `[C/128, R/128]`; quotients rounded up, the second dimension may
/// be larger, entries beyond are not written.
/// Scales, MXFP8: Float8E8M0 (or Byte) `[R, C/32]`, `[R/32, C]`, rounded up to multiples of 128 along
/// the undivided dimension and of 4 along the other, padding set to 0; in the 128 x 4 tiles of
/// block-scaled products if the output has `with_gemm_swizzled_scales`.
/// `amax` (per tensor, MXFP8), if there, is raised to the largest `|x|`. NaN count nowhere as `|x|`.
/// Empty tensors: nothing is written.
/// Errors: other dtypes, shapes or scaling modes; FP8 data without scales; null or misaligned
/// pointers.
/// Source: Micikevicius et al., FP8 Formats for Deep Learning (2022); OCP Microscaling Formats (2023).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize", || {
        quantize(input, output, ("noop", null_mut()), &QuantizationConfig::DEFAULT, stream)
    });
}

/// As `nvte_quantize`; writes nothing if the Float32 `noop` (null: none) is exactly 1 on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_noop(
    input: NVTETensor,
    output: NVTETensor,
    noop: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_noop", || {
        quantize(input, output, ("noop", noop), &QuantizationConfig::DEFAULT, stream)
    });
}

/// As `nvte_quantize`, with a config (null: defaults): the noop tensor; for FP8 blocks
/// `force_pow2_scales` (`s` rounded down to a power of two) and `amax_epsilon` (the least `max|x|`);
/// for MXFP8 `mxfp8_2d_quantization` (blocks of 32 x 32 in both directions, codes repeated).
/// Stochastic rounding is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_v2(
    input: NVTETensor,
    output: NVTETensor,
    quant_config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_v2", || quantize_with_config(input, output, quant_config, stream));
}

/// Casts FP8 back: `y = cast(x * scale_inv)`.
///
/// Shapes: output as the logical shape of the input; an input that has only column-wise data is
/// transposed on the way (MXFP8: is not stored transposed).
/// Dtypes: Float8E4M3, Float8E5M2 to Float32, Float16, BFloat16.
/// Scales: reads `scale_inv` (`columnwise_scale_inv` of column-wise data), stored as `nvte_quantize`
/// does in the input's scaling mode.
/// Errors: other dtypes, shapes or scaling modes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dequantize(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dequantize", || dequantize(input, output, stream));
}

/// `nvte_dequantize` of every member of a grouped tensor; an input that has both directions is read
/// row-wise.
///
/// Shapes: as `nvte_dequantize` has them, member by member; any number of rows and columns. Elements
/// that no member has are not written.
/// Scales: those of the members one after the other, each stored as that of a lone tensor, in FP8
/// blocks with second dimensions rounded up to multiples of 4; per tensor one float for each member.
/// Errors: as `nvte_dequantize`; tensors of different logical shapes or numbers of members.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_dequantize(
    input: NVTEGroupedTensor,
    output: NVTEGroupedTensor,
    stream: cudaStream_t,
) {
    guard("nvte_group_dequantize", || group_dequantize(input, output, stream));
}

/// Casts row-wise MXFP8 data again, to column-wise ones, as `nvte_dequantize` and `nvte_quantize` of
/// each group of rows would, without rounding in between; with the config's `use_fast_math` (null: no)
/// rounded to BFloat16.
///
/// Group g has the rows from element `tensor_offsets[g]` to `tensor_offsets[g + 1]`, multiples of 128
/// rows, read on the device; rows from the last offset on are not touched.
/// Shapes: input `[m, n]`, multiples of 128, its `scale_inv` `[m, n/32 or more]`; columnwise_data of
/// output `[m, n]`; dequantized (null: none) m n elements.
/// Dtypes: Float8E4M3, Float8E5M2 to Float8E4M3; offsets Int64, dequantized BFloat16.
/// Scales: `scale_inv` of output takes the codes of input, `columnwise_scale_inv` the new ones, of
/// m n / 32 each, in the 128 x 4 tiles of block-scaled products, row-wise as of one matrix, column-wise
/// group by group. The output gets `with_gemm_swizzled_scales`.
/// Errors: other dtypes, shapes or scaling modes; swizzled input; null pointers, or such that are not
/// aligned to 16 bytes (data).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_group_requantize(
    input: NVTETensor,
    output: NVTETensor,
    tensor_offsets: NVTETensor,
    dequantized: NVTETensor,
    quant_config: NVTEQuantizationConfig,
    stream: cudaStream_t,
) {
    guard("nvte_group_requantize", || {
        requantize::run(input, output, tensor_offsets, dequantized, quant_config, stream)
    });
}
