#ifndef NVTE_RECIPE_H
#define NVTE_RECIPE_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * `output.amax = max|input|`, NaN ignored; 0 for an empty input. Sets, does not accumulate.
 *
 * Dtypes: Float32, Float16, BFloat16; `amax` is one Float32. If `output.amax` has no address,
 * `columnwise_amax` is written. The output needs no data.
 * Errors: other dtypes; no `amax`; null or misaligned pointers.
 */
void nvte_compute_amax(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * As `nvte_compute_amax`; of the config (null: defaults) the noop tensor is used.
 */
void nvte_compute_amax_with_config(NVTETensor input,
                                   NVTETensor output,
                                   NVTEQuantizationConfig config,
                                   cudaStream_t stream);

/**
 * Scale of per-tensor current scaling: `output.scale = fp8_max / max(output.amax, epsilon)`.
 *
 * 1 if that amax is 0, Inf or NaN; an infinite quotient becomes the largest float. The config
 * (required) gives `epsilon`, rounding down to a power of two, and the noop tensor. `scale_inv` is
 * not written: the cast does that.
 * Errors: data not FP8; `amax` or `scale` not one Float32.
 */
void nvte_compute_scale_from_amax(NVTETensor output,
                                  NVTEQuantizationConfig config,
                                  cudaStream_t stream);

/**
 * Delayed scaling: rolls an amax history by one row and sets the scales.
 *
 * For each column, with `last = history[0]`: row i takes row i + 1, the last row takes `last`, row
 * 0 becomes 0. `amax` is the largest of the old column ("max", NaN ignored) or `last`
 * ("most_recent"); `scale = fp8_max * 2^-margin / amax` if `amax` is finite and positive, else
 * unchanged; an infinite scale becomes the largest float.
 * Shapes: histories `[length, n]`, scales n elements. Outputs may be the inputs.
 * Dtypes: Float32; `fp8_dtype` Float8E4M3 or Float8E5M2.
 * Errors: other algorithms, dtypes or shapes; null pointers.
 */
void nvte_delayed_scaling_recipe_amax_and_scale_update(NVTETensor amax_history,
                                                       NVTETensor scale,
                                                       NVTETensor updated_amax_history,
                                                       NVTETensor updated_scale,
                                                       const char *amax_compute_algo,
                                                       NVTEDType fp8_dtype,
                                                       float margin,
                                                       cudaStream_t stream);

/**
 * Delayed scaling of many tensors in place, after their amax values were reduced over ranks. The C
 * form of `nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction`.
 *
 * As the update of one tensor, with `last` from the concatenated `amax_reduction_buffer` (a null
 * handle or no address: none) where that is not 0. A column whose `last` is 0 was not used: its
 * history stays, and with "max" its scale.
 * Shapes: histories `[length, n_k]` with one length, scales n_k elements, buffer the sum of n_k.
 */
void nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(NVTETensor amax_reduction_buffer,
                                                                        const NVTETensor *amax_histories,
                                                                        const NVTETensor *scales,
                                                                        size_t num_tensors,
                                                                        const char *amax_compute_algo,
                                                                        NVTEDType fp8_dtype,
                                                                        float margin,
                                                                        cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_RECIPE_H */
