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
 * Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does, with a map of bytes.
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
 * Chooses `topk` of E experts for each of T tokens by their scores, and computes the probabilities of
 * the chosen.
 *
 * Scores: s of a logit x, in float32, is the sigmoid (`score_function` 0), the softmax over the E
 * logits (1), or `sqrt(log(1 + exp(x)))` (2, sqrtsoftplus).
 *
 * Choice: by `s + expert_bias`. With the softmax there is no bias, and without `use_pre_softmax` the
 * choice goes by x. There is one order for all functions: the greater comes first; of equal values (0
 * and -0 are equal) the lower expert; NaN come after all numbers.
 *
 * Groups: with `group_topk > 0` only experts of the best `group_topk` of `num_groups` groups of
 * neighbours are chosen. The score of a group is the sum of its best `topk / group_topk`.
 *
 * Probabilities: `probs = cast(scaling_factor * p)` for chosen experts, exactly 0 for others, where p
 * is
 * - softmax without `use_pre_softmax`: the softmax of the chosen logits,
 * - softmax with `use_pre_softmax`: s,
 * - the other functions: s if `topk` is 1, otherwise `s / (sum s + 1e-20)` over the chosen.
 *
 * `intermediate_output`, which the backward pass reads: s (sigmoid, softmax with `use_pre_softmax`), x
 * (sqrtsoftplus), or p for chosen and -Inf for other experts (softmax without). A logit of -Inf has
 * the softmax 0, unless all are -Inf.
 *
 * Shapes: logits, probs, `intermediate_output` `[T, E]`; `expert_bias` `[E]`, or unset for none;
 * `routing_map` `[T, E]` bytes of 0 and 1, or `[T, ceil(E / 8)]` with expert e in bit `e % 8` of byte
 * `e / 8`. T may be 0; neither E nor `T * E` has a limit.
 *
 * Dtypes: logits Float32, Float16 or BFloat16, probs the same; `expert_bias` any of these;
 * `intermediate_output` Float32; the map one byte an element. Outputs may declare other dtypes if they
 * have enough bytes. No output may overlap anything.
 *
 * Errors: other shapes or dtypes; a `topk` that is not in 1 to E; groups that do not divide E or
 * `topk`, or exceed either; an unknown function or format; null or misaligned pointers.
 *
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
 * Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does, and writes their numbers,
 * best first, instead of a map.
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
 * Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does with the sigmoid and a
 * bias, and writes what the next bias is made from (quantile balancing): how far each score is from
 * being chosen.
 *
 * What it computes: `cutoff[t]` is the greatest `s + expert_bias` of the token that was not chosen.
 * With `NVTE_QB_HISTOGRAM_FUSED_ATOMIC`, `nvte_qb_histogram_accumulate` of the scores s follows; with
 * `NVTE_QB_HISTOGRAM_TWO_KERNEL` the histogram is left alone.
 *
 * Shapes: `expert_bias` `[E]`, cutoff `[T]`, histogram `[E, bins]`, `bin_bounds` `[2]` (lower, upper)
 * on the device; others as in `nvte_fused_topk_with_score_function_forward_v2`. `topk` is less than E.
 *
 * Dtypes: bias, cutoff and bounds Float32; histogram Int32.
 *
 * Errors: as `nvte_fused_topk_with_score_function_forward_v2`; bounds that are not finite with lower <
 * upper. To read them the call waits for the stream, so a graph cannot capture it.
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
 * Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_v2` does, but does not read the
 * bounds, and so does not wait.
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
 * Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_v2` does, and writes their
 * numbers as `nvte_fused_topk_with_score_function_forward_with_indices` does.
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
 * Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_with_indices` does, but does not
 * read the bounds, and so does not wait.
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
 * Counts in a histogram how far the scores of all experts are from the cutoffs of their tokens.
 *
 * What it computes: for every token t and expert e,
 * `b = floor(((cutoff[t] - raw_scores[t, e]) - lower) * scale)` with `scale = bins / (upper - lower)`,
 * 0 for NaN, limited to `[0, bins - 1]`; then `histogram[e, b] += 1`.
 *
 * Shapes: `raw_scores` `[T, E]`, cutoff `[T]`, `bin_bounds` `[2]` (lower, upper) on the device,
 * histogram `[E, bins]` with any number of bins.
 *
 * Dtypes: Float32; histogram Int32.
 *
 * Notes: nothing is written for empty tensors. To read the bounds the call waits for the stream, so a
 * graph cannot capture it.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers; bounds that are not finite with lower <
 * upper.
 */
void nvte_qb_histogram_accumulate(NVTETensor raw_scores,
                                  NVTETensor cutoff,
                                  NVTETensor bin_bounds,
                                  NVTETensor histogram,
                                  cudaStream_t stream);

/**
 * Counts as `nvte_qb_histogram_accumulate` does, but does not read the bounds, and so does not wait.
 */
void nvte_qb_histogram_accumulate_unchecked(NVTETensor raw_scores,
                                            NVTETensor cutoff,
                                            NVTETensor bin_bounds,
                                            NVTETensor histogram,
                                            cudaStream_t stream);

/**
 * Computes gradients as `nvte_fused_topk_with_score_function_backward_v2` does, with a map of bytes.
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
 * Computes the gradients of the logits of `nvte_fused_topk_with_score_function_forward_v2`. The bias
 * gets none.
 *
 * What it computes: with `g = scaling_factor * grad_probs` and sums over the chosen experts, in
 * float32,
 * - sigmoid and sqrtsoftplus (score y): if `topk > 1`, `S = sum y + 1e-20`, `D = sum g y` and
 *   `g = g / S - D / S^2`; then `g y (1 - y)` for the sigmoid, or `g f / (2 y + 1e-20)` for
 *   sqrtsoftplus, where f is 1 for x > 20, otherwise sigmoid(x);
 * - softmax (probability y): `y (g - sum g y)`; with `use_pre_softmax` for all experts, where g is 0
 *   for those that were not chosen.
 *
 * The gradients of other experts are 0, whatever the inputs hold there. Every element is written.
 *
 * Shapes: as the forward pass. A byte of the map that is not 0 marks a chosen expert.
 *
 * Dtypes: `grad_logits` Float32, Float16 or BFloat16; `grad_probs` is read as the same;
 * `intermediate_output` Float32.
 *
 * Errors: as the forward pass.
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
 * Computes gradients as `nvte_fused_topk_with_score_function_backward_v2` does, from the numbers of
 * the chosen experts.
 *
 * Shapes, dtypes: `topk_indices` as `nvte_fused_topk_with_score_function_forward_with_indices` writes
 * them, each expert at most once a token. Numbers that belong to no expert are ignored.
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
 * Computes scores as `nvte_fused_score_for_moe_aux_loss_forward_v2` does, with a map of bytes.
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
 * Computes the scores of all experts for the loss of their balance, and a map of the best.
 *
 * What it computes: `scores = s / (sum s + 1e-20)` over the E experts for sigmoid and sqrtsoftplus,
 * and the softmax as it is. The map marks the `topk` greatest, in the order of
 * `nvte_fused_topk_with_score_function_forward_v2`. `intermediate_output` is written: s of the sigmoid
 * and of the softmax, x of sqrtsoftplus.
 *
 * Shapes: logits, scores and `intermediate_output` `[T, E]`; the map as in
 * `nvte_fused_topk_with_score_function_forward_v2`. T may be 0.
 *
 * Dtypes: logits Float32, Float16 or BFloat16. Scores are written in the dtype of the logits if they
 * declare it, otherwise as Float32. `intermediate_output` is written as Float32. Tensors that are
 * written as Float32 must have the bytes for that.
 *
 * Errors: as `nvte_fused_topk_with_score_function_forward_v2`.
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
 * Computes the gradients of the logits of `nvte_fused_score_for_moe_aux_loss_forward_v2`.
 *
 * What it computes: as `nvte_fused_topk_with_score_function_backward_v2` with all experts chosen, a
 * factor of 1, and the normalization for any `topk`, which is not used.
 *
 * Shapes: `[T, E]`; T may be 0.
 *
 * Dtypes: `grad_logits` Float32, Float16 or BFloat16; `grad_scores` Float32 or the dtype of
 * `grad_logits`; `intermediate_output` Float32.
 *
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
 * Computes the loss of the balance of experts.
 *
 * What it computes: `aux_loss = cast(C * sum_j (sum_i probs[i, j]) * tokens_per_expert[j])` with
 * `C = num_experts * coeff / topk / total_num_tokens / total_num_tokens`, from left to right, in
 * float32 in a fixed order. `Const_buf` becomes C and the loss before the cast.
 *
 * Shapes: probs `[num_rows, num_cols]`, with `num_cols` a multiple of `num_experts`;
 * `tokens_per_expert` `[num_cols]`; `aux_loss` one element; `Const_buf` two or more. `num_rows` may be
 * 0: then the loss is 0.
 *
 * Dtypes: probs Float32, Float16 or BFloat16; `aux_loss` is written as the same; `tokens_per_expert`
 * Int16, Int32, Int64, BFloat16 or Float32; `Const_buf` Float32.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 *
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
 * Computes the loss of `nvte_fused_moe_aux_loss_forward` with the number of tokens on the device,
 * which is read when the work runs. `total_num_tokens` is one Int64.
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
 * Computes the gradients of the probabilities of `nvte_fused_moe_aux_loss_forward`:
 * `grad_probs[i, j] = cast((C * tokens_per_expert[j]) * grad_aux_loss)`, with C in `Const_buf`.
 *
 * Shapes: `Const_buf` one or more, `tokens_per_expert` `[num_cols]`, `grad_aux_loss` one element,
 * `grad_probs` `[num_rows, num_cols]`. `num_rows` may be 0.
 *
 * Dtypes: `grad_aux_loss` Float32, Float16 or BFloat16; `grad_probs` is written as the same; others as
 * in the forward pass.
 *
 * Errors: as the forward pass.
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
