//! C functions of cast.h: quantize and dequantize.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use super::*;
use crate::error::guard;

/// Casts a tensor: `y = cast(x * scale)` to FP8, `y = cast(x)` otherwise, rounding to nearest even
/// and saturating.
///
/// Shapes: input `[..., n]`; row-wise output the same, column-wise output `[n, ...]` (transposed);
/// either or both.
/// Dtypes: Float32, Float16, BFloat16 to these or Float8E4M3, Float8E5M2.
/// Scales (FP8): `scale` is read (absent: 1), `scale_inv` and `columnwise_scale_inv` are set to
/// `1 / scale`; `amax`, if there, is raised to the largest `|x|`, NaN ignored.
/// Empty tensors: nothing is written.
/// Errors: other dtypes, shapes or scaling modes; FP8 data without `scale_inv`; null or misaligned
/// pointers.
/// Source: Micikevicius et al., FP8 Formats for Deep Learning (2022).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize", || quantize(input, output, std::ptr::null_mut(), stream));
}

/// As `nvte_quantize`; writes nothing if the Float32 `noop` (null: none) is exactly 1 on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_quantize_noop(
    input: NVTETensor,
    output: NVTETensor,
    noop: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_quantize_noop", || quantize(input, output, noop, stream));
}

/// As `nvte_quantize`, with a config (null: defaults). Of the config, per-tensor casts use the noop
/// tensor; stochastic rounding is an error.
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
/// transposed on the way.
/// Dtypes: Float8E4M3, Float8E5M2 to Float32, Float16, BFloat16.
/// Scales: reads `scale_inv` (`columnwise_scale_inv` of column-wise data).
/// Errors: other dtypes, shapes or scaling modes; null or misaligned pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvte_dequantize(
    input: NVTETensor,
    output: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvte_dequantize", || dequantize(input, output, stream));
}
