#ifndef NVTE_ACTIVATION_H
#define NVTE_ACTIVATION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Applies an activation: `output = f(input)`,
 * `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * What it computes: f in float32, then a cast in the scaling mode of the output as `nvte_quantize`
 * casts, with the same rules for shapes, scales and `amax`. For FP8 blocks and MXFP8 `f` is
 * rounded to the input's dtype first. NaN counts as 0 in relu and srelu.
 *
 * Dtypes: Float32, Float16 or BFloat16 to these (per tensor) and to Float8E4M3 or Float8E5M2.
 *
 * Overlaps: the row-wise output of per-tensor scaling may be the input if their elements have the
 * same size.
 *
 * Errors: as `nvte_quantize`.
 */
void nvte_gelu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation: `output = f'(input) * grad`,
 * `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * It is computed in float32 and cast as `nvte_gelu` casts. The derivatives of relu and srelu are 0
 * at 0.
 *
 * Shapes, dtypes: grad as input.
 *
 * Errors: as `nvte_gelu`; grad and input that differ in shape or dtype.
 */
void nvte_dgelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation to the members of a grouped tensor: `output = f(input)`,
 * `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * Each member is treated as by `nvte_gelu`, with the layouts and rules of `nvte_group_quantize`.
 *
 * Errors: as `nvte_group_quantize`.
 */
void nvte_group_gelu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation for the members of a grouped tensor:
 * `output = f'(input) * grad`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * Each member is treated as by `nvte_dgelu`. All three are grouped tensors, the output too,
 * although its type is that of a tensor.
 *
 * Errors: as `nvte_group_quantize`; grad and input of different dtypes.
 */
void nvte_group_dgelu(NVTEGroupedTensor grad,
                      NVTEGroupedTensor input,
                      NVTETensor output,
                      cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`,
 * `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
 *
 * Shapes: input `[..., 2 n]`, each row the halves (a | g); output `[..., n]`.
 *
 * It is computed in float32 and cast as `nvte_gelu` casts. The output may not be the input.
 *
 * Errors: as `nvte_gelu`; an odd last dimension.
 */
void nvte_geglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
 * `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
 *
 * Shapes: grad `[..., n]`; input `[..., 2 n]`, each row the halves (a | g); output as input.
 *
 * It is computed in float32 and cast as `nvte_gelu` casts. The output may not be an input. Clamped
 * values have the derivative 0.
 *
 * Errors: as `nvte_gelu`; an odd last dimension; grad of another dtype than input.
 */
void nvte_dgeglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation: `output = f(input)`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_silu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_dsilu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation to the members of a grouped tensor: `output = f(input)`,
 * `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_silu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation for the members of a grouped tensor:
 * `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_dsilu(NVTEGroupedTensor grad,
                      NVTEGroupedTensor input,
                      NVTETensor output,
                      cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_swiglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dswiglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies a gated activation and multiplies each row by its scale:
 * `output = f(a) * G(g) * act_scales`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Shapes: output `[..., n]` with R rows; input `[..., 2 n]`, each row the halves (a | g), or with
 * `glu_interleave_size = i > 0` blocks of i elements of a and as many of g in turn; act_scales R
 * elements.
 *
 * Dtypes: each tensor Float32, Float16 or BFloat16. It is computed in float32 and rounded once.
 * Scaling modes and scales are ignored.
 *
 * Errors: other dtypes; shapes that do not fit; a `glu_interleave_size` that is negative, no
 * multiple of 32 or no divisor of n; null or misaligned pointers.
 */
void nvte_scaled_swiglu(NVTETensor input,
                        NVTETensor act_scales,
                        NVTETensor output,
                        int64_t glu_interleave_size,
                        cudaStream_t stream);

/**
 * Computes the gradients of a gated activation with a scale for each row:
 * `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
 * `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row, `f(x) = x / (1 + exp(-x))`,
 * `G(x) = x`.
 *
 * Shapes, dtypes, errors: as `nvte_scaled_swiglu`, with grad `[..., n]`, grad_input as input and
 * interleaved likewise, and grad_act_scales R elements or null for none. Sums are in float32, in a
 * fixed order.
 */
void nvte_scaled_dswiglu(NVTETensor grad,
                         NVTETensor input,
                         NVTETensor act_scales,
                         NVTETensor grad_input,
                         NVTETensor grad_act_scales,
                         int64_t glu_interleave_size,
                         cudaStream_t stream);

/**
 * Applies a gated activation to the members of a grouped tensor, and multiplies each row by its
 * factor: `output = f(a) * G(g) * prob`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Shapes: grouped input `[N, 2 n]`, each row the halves (a | g); grouped output `[N, n]` with as
 * many members of one last dimension; prob N elements or more of the input's dtype, the i-th for
 * row i of the whole.
 *
 * The result is cast as `nvte_group_gelu` casts.
 *
 * Errors: as `nvte_group_gelu`; members that differ in their last dimension.
 */
void nvte_group_scaled_swiglu(NVTEGroupedTensor input,
                              NVTETensor prob,
                              NVTEGroupedTensor output,
                              cudaStream_t stream);

/**
 * Applies an activation: `output = f(input)`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_relu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_drelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation to the members of a grouped tensor: `output = f(input)`,
 * `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_relu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation for the members of a grouped tensor:
 * `output = f'(input) * grad`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_drelu(NVTEGroupedTensor grad,
                      NVTEGroupedTensor input,
                      NVTETensor output,
                      cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`, `f(x) = max(x, 0)`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_reglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dreglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation: `output = f(input)`, `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_qgelu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation: `output = f'(input) * grad`,
 * `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_dqgelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation to the members of a grouped tensor: `output = f(input)`,
 * `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_qgelu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation for the members of a grouped tensor:
 * `output = f'(input) * grad`, `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_dqgelu(NVTEGroupedTensor grad,
                       NVTEGroupedTensor input,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-1.702 x))`,
 * `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_qgeglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-1.702 x))`,
 * `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dqgeglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation: `output = f(input)`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_srelu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_dsrelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation to the members of a grouped tensor: `output = f(input)`,
 * `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_srelu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * Computes the gradient of an activation for the members of a grouped tensor:
 * `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_dsrelu(NVTEGroupedTensor grad,
                       NVTEGroupedTensor input,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`, `f(x) = max(x, 0)^2`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_sreglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)^2`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dsreglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies an activation and multiplies each row by its scale: `output = f(input) * act_scales`,
 * `f(x) = max(x, 0)^2`.
 *
 * Shapes: the output as the input; act_scales one for each row.
 *
 * Dtypes, errors: as `nvte_scaled_swiglu`.
 */
void nvte_scaled_srelu(NVTETensor input,
                       NVTETensor act_scales,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * Computes the gradients of an activation with a scale for each row:
 * `grad_input = grad * act_scales * f'(input)`, and `grad_act_scales` = the sum of
 * `grad * f(input)` over the row, `f(x) = max(x, 0)^2`.
 *
 * Shapes: grad and grad_input as the input.
 *
 * Dtypes, errors: as `nvte_scaled_dswiglu`.
 */
void nvte_scaled_dsrelu(NVTETensor grad,
                        NVTETensor input,
                        NVTETensor act_scales,
                        NVTETensor grad_input,
                        NVTETensor grad_act_scales,
                        cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_glu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`,
 * `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_situglu(NVTETensor input,
                  NVTETensor output,
                  float beta1,
                  float beta2,
                  cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
 * `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dsituglu(NVTETensor grad,
                   NVTETensor input,
                   NVTETensor output,
                   float beta1,
                   float beta2,
                   cudaStream_t stream);

/**
 * Applies a gated activation and multiplies each row by its scale:
 * `output = f(a) * G(g) * act_scales`, `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`,
 * `G(x) = beta2 tanh(x / beta2)`.
 *
 * Otherwise as `nvte_scaled_swiglu`.
 */
void nvte_scaled_situglu(NVTETensor input,
                         NVTETensor act_scales,
                         NVTETensor output,
                         float beta1,
                         float beta2,
                         int64_t glu_interleave_size,
                         cudaStream_t stream);

/**
 * Computes the gradients of a gated activation with a scale for each row:
 * `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
 * `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row,
 * `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
 *
 * Otherwise as `nvte_scaled_dswiglu`.
 */
void nvte_scaled_dsituglu(NVTETensor grad,
                          NVTETensor input,
                          NVTETensor act_scales,
                          NVTETensor grad_input,
                          NVTETensor grad_act_scales,
                          float beta1,
                          float beta2,
                          int64_t glu_interleave_size,
                          cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`,
 * `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + 1`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_clamped_swiglu(NVTETensor input,
                         NVTETensor output,
                         float limit,
                         float alpha,
                         cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
 * `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + 1`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_clamped_dswiglu(NVTETensor grad,
                          NVTETensor input,
                          NVTETensor output,
                          float limit,
                          float alpha,
                          cudaStream_t stream);

/**
 * Applies a gated activation: `output = f(a) * G(g)`,
 * `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_clamped_swiglu_v2(NVTETensor input,
                            NVTETensor output,
                            float limit,
                            float alpha,
                            float glu_linear_offset,
                            cudaStream_t stream);

/**
 * Computes the gradient of a gated activation:
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
 * `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_clamped_dswiglu_v2(NVTETensor grad,
                             NVTETensor input,
                             NVTETensor output,
                             float limit,
                             float alpha,
                             float glu_linear_offset,
                             cudaStream_t stream);

/**
 * Applies a gated activation and multiplies each row by its scale:
 * `output = f(a) * G(g) * act_scales`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
 *
 * Otherwise as `nvte_scaled_swiglu`.
 */
void nvte_scaled_clamped_swiglu(NVTETensor input,
                                NVTETensor act_scales,
                                NVTETensor output,
                                float limit,
                                float alpha,
                                float glu_linear_offset,
                                int64_t glu_interleave_size,
                                cudaStream_t stream);

/**
 * Computes the gradients of a gated activation with a scale for each row:
 * `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
 * `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row,
 * `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
 *
 * Otherwise as `nvte_scaled_dswiglu`.
 */
void nvte_scaled_clamped_dswiglu(NVTETensor grad,
                                 NVTETensor input,
                                 NVTETensor act_scales,
                                 NVTETensor grad_input,
                                 NVTETensor grad_act_scales,
                                 float limit,
                                 float alpha,
                                 float glu_linear_offset,
                                 int64_t glu_interleave_size,
                                 cudaStream_t stream);

/**
 * Applies a gated activation to the members of a grouped tensor, and multiplies each row by its
 * factor: `output = f(a) * G(g) * prob`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
 * `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
 *
 * Otherwise as `nvte_group_scaled_swiglu`.
 */
void nvte_group_scaled_clamped_swiglu(NVTEGroupedTensor input,
                                      NVTETensor prob,
                                      NVTEGroupedTensor output,
                                      float limit,
                                      float alpha,
                                      float glu_linear_offset,
                                      cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_ACTIVATION_H */
