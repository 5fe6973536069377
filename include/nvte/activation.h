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
 * `output = f(input)`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * Computed in float32, and cast in the scaling mode of the output as `nvte_quantize` casts, with
 * the same rules for shapes, scales and `amax`; for FP8 blocks and MXFP8 `f` is rounded to the
 * input's dtype first. NaN counts as 0 in relu and srelu.
 * Dtypes: Float32, Float16, BFloat16 to these (per tensor) and to Float8E4M3, Float8E5M2.
 * The row-wise output of per-tensor scaling may be the input if elements are of one size.
 * Errors: as `nvte_quantize`.
 */
void nvte_gelu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * Computed in float32 and cast as `nvte_gelu` casts. The derivatives of relu and srelu are 0 at 0.
 * Shapes and dtypes: grad as input.
 * Errors: as `nvte_gelu`; grad and input that differ in shape or dtype.
 */
void nvte_dgelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * For each member of grouped tensors what `nvte_gelu` does, with the layouts and rules of
 * `nvte_group_quantize`.
 * Errors: as `nvte_group_quantize`.
 */
void nvte_group_gelu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
 *
 * For each member what `nvte_dgelu` does. All three are grouped tensors, the output too, in spite
 * of its type.
 * Errors: as `nvte_group_quantize`; grad and input of different dtypes.
 */
void nvte_group_dgelu(NVTEGroupedTensor grad,
                      NVTEGroupedTensor input,
                      NVTETensor output,
                      cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
 *
 * Shapes: input `[..., 2 n]`, each row the halves (a | g); output `[..., n]`.
 * Computed in float32 and cast as `nvte_gelu` casts; the output may not be the input.
 * Errors: as `nvte_gelu`; an odd last dimension.
 */
void nvte_geglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x (1 + tanh(x (0.79788456 +
 * 0.03567741 x^2))) / 2`, `G(x) = x`.
 *
 * Shapes: grad `[..., n]`; input `[..., 2 n]`, each row the halves (a | g); output as input.
 * Computed in float32 and cast as `nvte_gelu` casts; the output may not be an input. Clamped
 * values have the derivative 0.
 * Errors: as `nvte_gelu`; an odd last dimension; grad of another dtype than input.
 */
void nvte_dgeglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_silu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_dsilu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_silu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_dsilu(NVTEGroupedTensor grad,
                      NVTEGroupedTensor input,
                      NVTETensor output,
                      cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_swiglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dswiglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(a) * G(g) * act_scales`, each row with its scale, `f(x) = x / (1 + exp(-x))`, `G(x)
 * = x`.
 *
 * Shapes: output `[..., n]`, R rows; input `[..., 2 n]`, each row the halves (a | g), or with
 * `glu_interleave_size = i > 0` blocks of i elements of a and as many of g in turn; act_scales R
 * elements.
 * Dtypes: each tensor Float32, Float16 or BFloat16; computed in float32, rounded once. Scaling
 * modes and scales are ignored.
 * Errors: other dtypes; shapes that do not fit; an i that is negative, no multiple of 32 or no
 * divisor of n; null or misaligned pointers.
 */
void nvte_scaled_swiglu(NVTETensor input,
                        NVTETensor act_scales,
                        NVTETensor output,
                        int64_t glu_interleave_size,
                        cudaStream_t stream);

/**
 * `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
 * `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row, `f(x) = x / (1 + exp(-x))`,
 * `G(x) = x`.
 *
 * Shapes, dtypes and errors: as `nvte_scaled_swiglu`, with grad `[..., n]`, grad_input as input
 * and interleaved likewise, grad_act_scales R elements or null for none. Sums are in float32, in a
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
 * `output = f(a) * G(g) * prob`, each row with its factor, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
 *
 * Shapes: grouped input `[N, 2 n]`, each row the halves (a | g); grouped output `[N, n]` with as
 * many members of one last dimension; prob N elements or more of the input's dtype, the i-th for
 * row i of the whole. Cast as `nvte_group_gelu` casts.
 * Errors: as `nvte_group_gelu`; members that differ in their last dimension.
 */
void nvte_group_scaled_swiglu(NVTEGroupedTensor input,
                              NVTETensor prob,
                              NVTEGroupedTensor output,
                              cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_relu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_drelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_relu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = max(x, 0)`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_drelu(NVTEGroupedTensor grad,
                      NVTEGroupedTensor input,
                      NVTETensor output,
                      cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = max(x, 0)`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_reglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dreglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_qgelu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_dqgelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_qgelu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = x / (1 + exp(-1.702 x))`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_dqgelu(NVTEGroupedTensor grad,
                       NVTEGroupedTensor input,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-1.702 x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_qgeglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-1.702 x))`, `G(x)
 * = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dqgeglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_gelu`.
 */
void nvte_srelu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_dgelu`.
 */
void nvte_dsrelu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input)`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_group_gelu`.
 */
void nvte_group_srelu(NVTEGroupedTensor input, NVTEGroupedTensor output, cudaStream_t stream);

/**
 * `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
 *
 * Otherwise as `nvte_group_dgelu`.
 */
void nvte_group_dsrelu(NVTEGroupedTensor grad,
                       NVTEGroupedTensor input,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = max(x, 0)^2`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_sreglu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)^2`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dsreglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(input) * act_scales`, each row with its scale, `f(x) = max(x, 0)^2`.
 *
 * Dtypes and errors: as `nvte_scaled_swiglu`; output as input in shape.
 */
void nvte_scaled_srelu(NVTETensor input,
                       NVTETensor act_scales,
                       NVTETensor output,
                       cudaStream_t stream);

/**
 * `grad_input = grad * act_scales * f'(input)`, and `grad_act_scales` = the sum of `grad *
 * f(input)` over the row, `f(x) = max(x, 0)^2`.
 *
 * Dtypes and errors: as `nvte_scaled_dswiglu`; grad and grad_input as input in shape.
 */
void nvte_scaled_dsrelu(NVTETensor grad,
                        NVTETensor input,
                        NVTETensor act_scales,
                        NVTETensor grad_input,
                        NVTETensor grad_act_scales,
                        cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_glu(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
 *
 * Otherwise as `nvte_dgeglu`.
 */
void nvte_dglu(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * `output = f(a) * G(g)`, `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x /
 * beta2)`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_situglu(NVTETensor input,
                  NVTETensor output,
                  float beta1,
                  float beta2,
                  cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = beta1 tanh(x / beta1) / (1 +
 * exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
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
 * `output = f(a) * G(g) * act_scales`, each row with its scale, `f(x) = beta1 tanh(x / beta1) / (1
 * + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
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
 * `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
 * `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row, `f(x) = beta1 tanh(x / beta1)
 * / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
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
 * `output = f(a) * G(g)`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`, `G(x) =
 * min(max(x, -limit), limit) + 1`.
 *
 * Otherwise as `nvte_geglu`.
 */
void nvte_clamped_swiglu(NVTETensor input,
                         NVTETensor output,
                         float limit,
                         float alpha,
                         cudaStream_t stream);

/**
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = min(x, limit) / (1 + exp(-alpha
 * min(x, limit)))`, `G(x) = min(max(x, -limit), limit) + 1`.
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
 * `output = f(a) * G(g)`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`, `G(x) =
 * min(max(x, -limit), limit) + glu_linear_offset`.
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
 * `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = min(x, limit) / (1 + exp(-alpha
 * min(x, limit)))`, `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
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
 * `output = f(a) * G(g) * act_scales`, each row with its scale, `f(x) = min(x, limit) / (1 +
 * exp(-alpha min(x, limit)))`, `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
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
 * `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
 * `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row, `f(x) = min(x, limit) / (1 +
 * exp(-alpha min(x, limit)))`, `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
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
 * `output = f(a) * G(g) * prob`, each row with its factor, `f(x) = min(x, limit) / (1 + exp(-alpha
 * min(x, limit)))`, `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
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
