#ifndef NVTE_CAST_H
#define NVTE_CAST_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Casts a tensor: `y = cast(x * scale)` to FP8, `y = cast(x)` otherwise, rounding to nearest even
 * and saturating.
 *
 * Shapes: input `[..., n]`; row-wise output the same, column-wise output `[n, ...]` (transposed);
 * either or both.
 * Dtypes: Float32, Float16, BFloat16 to these or Float8E4M3, Float8E5M2.
 * Scales (FP8): `scale` is read (absent: 1), `scale_inv` and `columnwise_scale_inv` are set to
 * `1 / scale`; `amax`, if there, is raised to the largest `|x|`, NaN ignored.
 * Empty tensors: nothing is written.
 * Errors: other dtypes, shapes or scaling modes; FP8 data without `scale_inv`; null or misaligned
 * pointers.
 * Source: Micikevicius et al., FP8 Formats for Deep Learning (2022).
 */
void nvte_quantize(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * As `nvte_quantize`; writes nothing if the Float32 `noop` (null: none) is exactly 1 on the device.
 */
void nvte_quantize_noop(NVTETensor input, NVTETensor output, NVTETensor noop, cudaStream_t stream);

/**
 * As `nvte_quantize`, with a config (null: defaults). Of the config, per-tensor casts use the noop
 * tensor; stochastic rounding is an error.
 */
void nvte_quantize_v2(NVTETensor input,
                      NVTETensor output,
                      NVTEQuantizationConfig quant_config,
                      cudaStream_t stream);

/**
 * Casts FP8 back: `y = cast(x * scale_inv)`.
 *
 * Shapes: output as the logical shape of the input; an input that has only column-wise data is
 * transposed on the way.
 * Dtypes: Float8E4M3, Float8E5M2 to Float32, Float16, BFloat16.
 * Scales: reads `scale_inv` (`columnwise_scale_inv` of column-wise data).
 * Errors: other dtypes, shapes or scaling modes; null or misaligned pointers.
 */
void nvte_dequantize(NVTETensor input, NVTETensor output, cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_CAST_H */
