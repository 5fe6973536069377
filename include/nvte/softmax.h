#ifndef NVTE_SOFTMAX_H
#define NVTE_SOFTMAX_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Computes the softmax of scaled scores over the last dimension.
 *
 * What it computes: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale_factor * x`, in float32
 * (the scale is not rounded to the dtype). A NaN makes its row NaN.
 *
 * Shapes: `[b, h, s_q, s_k]`, any sizes; the results may be the input.
 *
 * Dtypes: Float32, Float16 or BFloat16, the same for both.
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: other dtypes or shapes; results that overlap the input and are not the input; null or
 * misaligned pointers.
 */
void nvte_scaled_softmax_forward(NVTETensor input,
                                 NVTETensor softmax_results,
                                 float scale_factor,
                                 cudaStream_t stream);

/**
 * Computes the gradients of `nvte_scaled_softmax_forward` from its results y and their gradients dy:
 * `dx = scale_factor * y * (dy - sum(dy * y))`.
 *
 * Shapes, dtypes: as the forward pass, the same for all; `output_grads` may be one of the inputs.
 *
 * Errors: as the forward pass.
 */
void nvte_scaled_softmax_backward(NVTETensor incoming_grads,
                                  NVTETensor softmax_results,
                                  NVTETensor output_grads,
                                  float scale_factor,
                                  cudaStream_t stream);

/**
 * Computes a softmax as `nvte_scaled_softmax_forward` does, with scaled scores of -10000 where the
 * byte of the mask is exactly 1. A row whose largest scaled score is -10000 becomes 0.
 *
 * Shapes: mask `[b or more, 1, s_q, s_k]`, or `[1, 1, s_q, s_k]` for the whole batch. Dtype: Byte.
 */
void nvte_scaled_masked_softmax_forward(NVTETensor input,
                                        NVTETensor mask,
                                        NVTETensor softmax_results,
                                        float scale_factor,
                                        cudaStream_t stream);

/**
 * Computes the gradients of `nvte_scaled_masked_softmax_forward` as `nvte_scaled_softmax_backward`
 * does; it needs no mask, because the results of masked scores are 0.
 */
void nvte_scaled_masked_softmax_backward(NVTETensor incoming_grads,
                                         NVTETensor softmax_results,
                                         NVTETensor output_grads,
                                         float scale_factor,
                                         cudaStream_t stream);

/**
 * Computes a softmax as `nvte_scaled_softmax_forward` does, over the scores `j <= i` of row i. The
 * other results are 0, and their scores are not used.
 *
 * Shapes: `[b * h, s, s]`.
 */
void nvte_scaled_upper_triang_masked_softmax_forward(NVTETensor input,
                                                     NVTETensor softmax_results,
                                                     float scale_factor,
                                                     cudaStream_t stream);

/**
 * Computes the gradients of `nvte_scaled_upper_triang_masked_softmax_forward`. They are 0 for `j > i`,
 * whatever the inputs hold there.
 */
void nvte_scaled_upper_triang_masked_softmax_backward(NVTETensor incoming_grads,
                                                      NVTETensor softmax_results,
                                                      NVTETensor output_grads,
                                                      float scale_factor,
                                                      cudaStream_t stream);

/**
 * Computes a softmax as `nvte_scaled_softmax_forward` does, over the scores `j <= i + s_k - s_q` of
 * row i. The other results are 0, and their scores are not used.
 */
void nvte_scaled_aligned_causal_masked_softmax_forward(NVTETensor input,
                                                       NVTETensor softmax_results,
                                                       float scale_factor,
                                                       cudaStream_t stream);

/**
 * Computes the gradients of `nvte_scaled_aligned_causal_masked_softmax_forward`. They are 0 for
 * `j > i + s_k - s_q`, whatever the inputs hold there.
 */
void nvte_scaled_aligned_causal_masked_softmax_backward(NVTETensor incoming_grads,
                                                        NVTETensor softmax_results,
                                                        NVTETensor output_grads,
                                                        float scale_factor,
                                                        cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_SOFTMAX_H */
