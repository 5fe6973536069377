#ifndef NVTE_FUSED_ROUTER_H
#define NVTE_FUSED_ROUTER_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * As `nvte_fused_topk_with_score_function_forward_v2` with a map of bytes.
 */
void nvte_fused_topk_with_score_function_forward(NVTETensor logits,
                                                 int32_t num_tokens,
                                                 int32_t num_experts,
                                                 int32_t topk,
                                                 int32_t use_pre_softmax,
                                                 int32_t num_groups,
                                                 int32_t group_topk,
                                                 float scaling_factor,
                                                 int32_t score_function,
                                                 NVTETensor expert_bias,
                                                 NVTETensor probs,
                                                 NVTETensor routing_map,
                                                 NVTETensor intermediate_output,
                                                 cudaStream_t stream);

/**
 * Chooses `topk` experts for each token by their scores; T tokens, E experts.
 *
 * Scores s of a logit x, in float32: sigmoid (`score_function` 0), softmax over the E logits (1), or
 * `sqrt(log(1 + exp(x)))` (2). The choice goes by `s + expert_bias`; for the softmax there is no bias,
 * and without `use_pre_softmax` the choice goes by x. One order always: the greater first, of equal
 * ones (0 and -0 are) the lower expert; NaN after all numbers. With `group_topk > 0` only experts of the
 * best `group_topk` of `num_groups` groups of neighbours are chosen; the score of a group is the sum of
 * its best `topk / group_topk`.
 * `probs = cast(scaling_factor * p)` for chosen experts, exactly 0 for others: p = s of the softmax with
 * `use_pre_softmax` or if `topk` is 1, `p = s / (sum s + 1e-20)` over the chosen for the other functions,
 * softmax of the chosen logits without `use_pre_softmax` (also for `topk` 1).
 * `intermediate_output`: s (sigmoid, `use_pre_softmax`), x (sqrtsoftplus), or p for chosen and -Inf for
 * other experts; the backward reads it. A logit of -Inf has the softmax 0, unless all are.
 * Shapes: logits, probs, `intermediate_output` `[T, E]`; `expert_bias` `[E]`, or unset for none;
 * `routing_map` `[T, E]` bytes 0 and 1, or `[T, ceil(E / 8)]` with expert e in bit `e % 8` of byte `e / 8`.
 * T may be 0; neither E nor `T * E` has a limit.
 * Dtypes: logits Float32, Float16 or BFloat16, probs alike; `expert_bias` any of these;
 * `intermediate_output` Float32; the map one byte an element. Outputs may declare other dtypes, if their
 * bytes suffice. No output may overlap anything.
 * Errors: other shapes or dtypes; a `topk` that is not in 1 to E; groups that do not divide E, `topk` or
 * exceed either; an unknown function or format; null or misaligned pointers.
 * Source of the groups: DeepSeek-V3 Technical Report (2024).
 */
void nvte_fused_topk_with_score_function_forward_v2(NVTETensor logits,
                                                    int32_t num_tokens,
                                                    int32_t num_experts,
                                                    int32_t topk,
                                                    int32_t use_pre_softmax,
                                                    int32_t num_groups,
                                                    int32_t group_topk,
                                                    float scaling_factor,
                                                    int32_t score_function,
                                                    NVTETensor expert_bias,
                                                    NVTETensor probs,
                                                    NVTETensor routing_map,
                                                    NVTERoutingMapFormat routing_map_format,
                                                    NVTETensor intermediate_output,
                                                    cudaStream_t stream);

/**
 * As `nvte_fused_topk_with_score_function_forward_v2`, with the numbers of the chosen experts, best first,
 * instead of a map.
 *
 * Shapes: `topk_indices` `[T, topk]`. Dtypes: Int16 (for E up to 32767), Int32 or Int64.
 */
void nvte_fused_topk_with_score_function_forward_with_indices(NVTETensor logits,
                                                              int32_t num_tokens,
                                                              int32_t num_experts,
                                                              int32_t topk,
                                                              int32_t use_pre_softmax,
                                                              int32_t num_groups,
                                                              int32_t group_topk,
                                                              float scaling_factor,
                                                              int32_t score_function,
                                                              NVTETensor expert_bias,
                                                              NVTETensor probs,
                                                              NVTETensor topk_indices,
                                                              NVTETensor intermediate_output,
                                                              cudaStream_t stream);

/**
 * Quantile balancing: `nvte_fused_topk_with_score_function_forward_v2` with the sigmoid and a bias, and with
 * what the next bias is made of: how far each score is from being chosen.
 *
 * `cutoff[t]` is the greatest `s + expert_bias` of the token that was not chosen. With
 * `NVTE_QB_HISTOGRAM_FUSED_ATOMIC`, `nvte_qb_histogram_accumulate` of the scores s follows; with
 * `NVTE_QB_HISTOGRAM_TWO_KERNEL` the histogram is left alone.
 * Shapes: `expert_bias` `[E]`, cutoff `[T]`, histogram `[E, bins]`, `bin_bounds` `[2]` (lower, upper) on the
 * device; others as there. `topk` is less than E.
 * Dtypes: bias, cutoff, bounds Float32; histogram Int32.
 * Errors: as there; bounds that are not finite with lower < upper. To see them the call waits for the
 * stream, so that a graph cannot capture it.
 */
void nvte_fused_topk_with_score_function_forward_qb_v2(NVTETensor logits,
                                                       int32_t num_tokens,
                                                       int32_t num_experts,
                                                       int32_t topk,
                                                       float scaling_factor,
                                                       NVTETensor expert_bias,
                                                       NVTETensor probs,
                                                       NVTETensor routing_map,
                                                       NVTERoutingMapFormat routing_map_format,
                                                       NVTETensor intermediate_output,
                                                       NVTETensor cutoff,
                                                       NVTETensor histogram,
                                                       NVTETensor bin_bounds,
                                                       NVTEQBHistogramMode histogram_mode,
                                                       cudaStream_t stream);

/**
 * As `nvte_fused_topk_with_score_function_forward_qb_v2`, without a look at the bounds: nothing waits.
 */
void nvte_fused_topk_with_score_function_forward_qb_v2_unchecked(NVTETensor logits,
                                                                 int32_t num_tokens,
                                                                 int32_t num_experts,
                                                                 int32_t topk,
                                                                 float scaling_factor,
                                                                 NVTETensor expert_bias,
                                                                 NVTETensor probs,
                                                                 NVTETensor routing_map,
                                                                 NVTERoutingMapFormat routing_map_format,
                                                                 NVTETensor intermediate_output,
                                                                 NVTETensor cutoff,
                                                                 NVTETensor histogram,
                                                                 NVTETensor bin_bounds,
                                                                 NVTEQBHistogramMode histogram_mode,
                                                                 cudaStream_t stream);

/**
 * As `nvte_fused_topk_with_score_function_forward_qb_v2`, with the numbers of the chosen experts as
 * `nvte_fused_topk_with_score_function_forward_with_indices` writes them.
 */
void nvte_fused_topk_with_score_function_forward_qb_with_indices(NVTETensor logits,
                                                                 int32_t num_tokens,
                                                                 int32_t num_experts,
                                                                 int32_t topk,
                                                                 float scaling_factor,
                                                                 NVTETensor expert_bias,
                                                                 NVTETensor probs,
                                                                 NVTETensor topk_indices,
                                                                 NVTETensor intermediate_output,
                                                                 NVTETensor cutoff,
                                                                 NVTETensor histogram,
                                                                 NVTETensor bin_bounds,
                                                                 NVTEQBHistogramMode histogram_mode,
                                                                 cudaStream_t stream);

/**
 * As `nvte_fused_topk_with_score_function_forward_qb_with_indices`, without a look at the bounds: nothing
 * waits.
 */
void nvte_fused_topk_with_score_function_forward_qb_with_indices_unchecked(NVTETensor logits,
                                                                           int32_t num_tokens,
                                                                           int32_t num_experts,
                                                                           int32_t topk,
                                                                           float scaling_factor,
                                                                           NVTETensor expert_bias,
                                                                           NVTETensor probs,
                                                                           NVTETensor topk_indices,
                                                                           NVTETensor intermediate_output,
                                                                           NVTETensor cutoff,
                                                                           NVTETensor histogram,
                                                                           NVTETensor bin_bounds,
                                                                           NVTEQBHistogramMode histogram_mode,
                                                                           cudaStream_t stream);

/**
 * Counts how far the scores of all experts are from the cutoffs of their tokens.
 *
 * For every token t and expert e: `b = floor(((cutoff[t] - raw_scores[t, e]) - lower) * scale)` with
 * `scale = bins / (upper - lower)`, 0 for NaN, moved to `[0, bins - 1]`; `histogram[e, b] += 1`.
 * Shapes: `raw_scores` `[T, E]`, cutoff `[T]`, `bin_bounds` `[2]` (lower, upper) on the device, histogram
 * `[E, bins]` with any number of bins.
 * Dtypes: Float32; histogram Int32.
 * Empty tensors: nothing is written.
 * Errors: other shapes or dtypes; null or misaligned pointers; bounds that are not finite with
 * lower < upper. To see them the call waits for the stream, so that a graph cannot capture it.
 */
void nvte_qb_histogram_accumulate(NVTETensor raw_scores,
                                  NVTETensor cutoff,
                                  NVTETensor bin_bounds,
                                  NVTETensor histogram,
                                  cudaStream_t stream);

/**
 * As `nvte_qb_histogram_accumulate`, without a look at the bounds: nothing waits.
 */
void nvte_qb_histogram_accumulate_unchecked(NVTETensor raw_scores,
                                            NVTETensor cutoff,
                                            NVTETensor bin_bounds,
                                            NVTETensor histogram,
                                            cudaStream_t stream);

/**
 * As `nvte_fused_topk_with_score_function_backward_v2` with a map of bytes.
 */
void nvte_fused_topk_with_score_function_backward(NVTETensor routing_map,
                                                  NVTETensor intermediate_output,
                                                  NVTETensor grad_probs,
                                                  int32_t num_tokens,
                                                  int32_t num_experts,
                                                  int32_t topk,
                                                  int32_t use_pre_softmax,
                                                  float scaling_factor,
                                                  int32_t score_function,
                                                  NVTETensor grad_logits,
                                                  cudaStream_t stream);

/**
 * Gradients of the logits of `nvte_fused_topk_with_score_function_forward_v2`; the bias gets none.
 *
 * With `g = scaling_factor * grad_probs` and sums over the chosen experts, in float32:
 * sigmoid, sqrtsoftplus (score y): if `topk > 1`, `S = sum y + 1e-20`, `D = sum g y`,
 * `g = g / S - D / S^2`; then `g y (1 - y)` or `g f / (2 y + 1e-20)`, f = 1 for x > 20, else sigmoid(x);
 * softmax (probability y): `y (g - sum g y)`, with `use_pre_softmax` for all experts, where g is 0 for those
 * not chosen. Others are 0, whatever the inputs are there. Every element is written.
 * Shapes: as the forward. A byte of the map that is not 0 marks a chosen expert.
 * Dtypes: `grad_logits` Float32, Float16 or BFloat16, `grad_probs` is read as the same; `intermediate_output`
 * Float32.
 * Errors: as the forward.
 */
void nvte_fused_topk_with_score_function_backward_v2(NVTETensor routing_map,
                                                     NVTERoutingMapFormat routing_map_format,
                                                     NVTETensor intermediate_output,
                                                     NVTETensor grad_probs,
                                                     int32_t num_tokens,
                                                     int32_t num_experts,
                                                     int32_t topk,
                                                     int32_t use_pre_softmax,
                                                     float scaling_factor,
                                                     int32_t score_function,
                                                     NVTETensor grad_logits,
                                                     cudaStream_t stream);

/**
 * As `nvte_fused_topk_with_score_function_backward_v2`, with the numbers of the chosen experts.
 *
 * Shapes, dtypes: `topk_indices` as `nvte_fused_topk_with_score_function_forward_with_indices` writes
 * them, each expert at most once a token. Numbers that are none of an expert are left out.
 */
void nvte_fused_topk_with_score_function_backward_with_indices(NVTETensor topk_indices,
                                                               NVTETensor intermediate_output,
                                                               NVTETensor grad_probs,
                                                               int32_t num_tokens,
                                                               int32_t num_experts,
                                                               int32_t topk,
                                                               int32_t use_pre_softmax,
                                                               float scaling_factor,
                                                               int32_t score_function,
                                                               NVTETensor grad_logits,
                                                               cudaStream_t stream);

/**
 * As `nvte_fused_score_for_moe_aux_loss_forward_v2` with a map of bytes.
 */
void nvte_fused_score_for_moe_aux_loss_forward(NVTETensor logits,
                                               int32_t num_tokens,
                                               int32_t num_experts,
                                               int32_t topk,
                                               int32_t score_function,
                                               NVTETensor scores,
                                               NVTETensor routing_map,
                                               NVTETensor intermediate_output,
                                               cudaStream_t stream);

/**
 * Scores of all experts for the loss of their balance, and the map of the best.
 *
 * `scores = s / (sum s + 1e-20)` over the E experts for sigmoid and sqrtsoftplus, the softmax as it is; the
 * map marks the `topk` greatest, in the order of `nvte_fused_topk_with_score_function_forward_v2`.
 * `intermediate_output`, which is written: s of the sigmoid and the softmax, x of sqrtsoftplus.
 * Shapes: logits, scores, `intermediate_output` `[T, E]`, the map as there; T may be 0.
 * Dtypes: logits Float32, Float16 or BFloat16; scores and `intermediate_output` are written as Float32,
 * for which their bytes must suffice; but scores that declare the dtype of the logits are taken to have
 * memory for Float32, because a caller of the ABI declares them so.
 * Errors: as there.
 */
void nvte_fused_score_for_moe_aux_loss_forward_v2(NVTETensor logits,
                                                  int32_t num_tokens,
                                                  int32_t num_experts,
                                                  int32_t topk,
                                                  int32_t score_function,
                                                  NVTETensor scores,
                                                  NVTETensor routing_map,
                                                  NVTERoutingMapFormat routing_map_format,
                                                  NVTETensor intermediate_output,
                                                  cudaStream_t stream);

/**
 * Gradients of the logits of `nvte_fused_score_for_moe_aux_loss_forward_v2`.
 *
 * As `nvte_fused_topk_with_score_function_backward_v2` with all experts chosen, a factor of 1, and the
 * normalisation for any `topk`, which is not used.
 * Shapes: `[T, E]`; T may be 0. Dtypes: `intermediate_output`, `grad_scores` Float32; `grad_logits` Float32,
 * Float16 or BFloat16.
 * Errors: other shapes or dtypes; an unknown function; null or misaligned pointers.
 */
void nvte_fused_score_for_moe_aux_loss_backward(NVTETensor intermediate_output,
                                                NVTETensor grad_scores,
                                                int32_t num_tokens,
                                                int32_t num_experts,
                                                int32_t topk,
                                                int32_t score_function,
                                                NVTETensor grad_logits,
                                                cudaStream_t stream);

/**
 * Loss of the balance of experts.
 *
 * `aux_loss = cast(C * sum_j (sum_i probs[i, j]) * tokens_per_expert[j])` with
 * `C = num_experts * coeff / topk / total_num_tokens / total_num_tokens`, from left to right; in float32, in a
 * fixed order. `Const_buf` becomes C and the loss before the cast.
 * Shapes: probs `[num_rows, num_cols]`, `num_cols` a multiple of `num_experts`; `tokens_per_expert`
 * `[num_cols]`; `aux_loss` one element; `Const_buf` two or more. `num_rows` may be 0: the loss is 0.
 * Dtypes: probs Float32, Float16 or BFloat16, `aux_loss` is written as the same; `tokens_per_expert` Int16,
 * Int32, Int64, BFloat16 or Float32; `Const_buf` Float32.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 * Source: Fedus et al., Switch Transformers (2021).
 */
void nvte_fused_moe_aux_loss_forward(NVTETensor probs,
                                     NVTETensor tokens_per_expert,
                                     int32_t total_num_tokens,
                                     int32_t num_experts,
                                     int32_t num_rows,
                                     int32_t num_cols,
                                     int32_t topk,
                                     float coeff,
                                     NVTETensor aux_loss,
                                     NVTETensor Const_buf,
                                     cudaStream_t stream);

/**
 * As `nvte_fused_moe_aux_loss_forward`, with the number of tokens on the device, read when the work runs.
 *
 * Shapes, dtypes: `total_num_tokens` one Int64.
 */
void nvte_fused_moe_aux_loss_forward_graph_safe(NVTETensor probs,
                                                NVTETensor tokens_per_expert,
                                                NVTETensor total_num_tokens,
                                                int32_t num_experts,
                                                int32_t num_rows,
                                                int32_t num_cols,
                                                int32_t topk,
                                                float coeff,
                                                NVTETensor aux_loss,
                                                NVTETensor Const_buf,
                                                cudaStream_t stream);

/**
 * Gradients of the probabilities of `nvte_fused_moe_aux_loss_forward`:
 * `grad_probs[i, j] = cast((C * tokens_per_expert[j]) * grad_aux_loss)`, with C in `Const_buf`.
 *
 * Shapes: `Const_buf` one or more, `tokens_per_expert` `[num_cols]`, `grad_aux_loss` one element, `grad_probs`
 * `[num_rows, num_cols]`; `num_rows` may be 0.
 * Dtypes: `grad_aux_loss` Float32, Float16 or BFloat16, `grad_probs` is written as the same; others as the
 * forward.
 * Errors: as the forward.
 */
void nvte_fused_moe_aux_loss_backward(NVTETensor Const_buf,
                                      NVTETensor tokens_per_expert,
                                      int32_t num_rows,
                                      int32_t num_cols,
                                      NVTETensor grad_aux_loss,
                                      NVTETensor grad_probs,
                                      cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_FUSED_ROUTER_H */
