#ifndef NVTE_EP_H
#define NVTE_EP_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Begins expert parallelism on the current device in a group of `ep_size` ranks, of which there may be one. Then
 * `ep_comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what `nvtex_communicator_as_nccl`
 * gives, and lives until `nvte_ep_shutdown`. Expert e is on rank `e / (num_experts / ep_size)`. Where ranks are threads
 * of a process, a group is that of the calling thread.
 *
 * With several ranks all functions but `nvte_ep_shutdown` and `nvte_ep_handle_mem_size` are called by all ranks in the
 * same order. Without `drop_on_overflow` they wait on the host for the numbers of rows, so that they cannot be captured in a
 * graph. With it sizes are fixed, and nothing waits: each pair of ranks exchanges `max_tokens_per_rank` slots, in which a
 * token is once for all of its experts of a rank, and that rank sums their results before they go back. Under NCCL such
 * calls can be captured. `max_tokens_per_rank`, `top_k` and all dtypes are then the same on all ranks.
 *
 * `max_recv_tokens_per_rank` is the most rows that a dispatch gives; 0: any number. `hidden_dim`,
 * `max_token_dtype`, `num_comm_sms` and `num_topk` are checked and not used.
 * Errors: numbers out of range; tokens of less than 16 bytes; `zero_copy` or `drop_on_overflow` without
 * `max_recv_tokens_per_rank`; a device that has a group; a communicator of another size; `zero_copy`
 * (`NVTEX_UNSUPPORTED`).
 */
void nvte_ep_initialize(void *ep_comm,
                        const NVTEEpGroupConfig *group_config);

/**
 * Ends the groups of all devices. It always succeeds, also without a group.
 */
void nvte_ep_shutdown(void);

/**
 * Bytes of `handle_mem`, device memory of the caller in which a layer keeps the plan of its tokens.
 *
 * Errors: `top_k` below 1; no group on the current device; returns 0.
 */
size_t nvte_ep_handle_mem_size(const NVTEEpLayerConfig *layer_cfg);

/**
 * Plans where the tokens of `topk_idx` go, in `handle_mem`.
 *
 * An expert gets a row for each token that has chosen it, in the order of ranks and then of tokens, and unless it has
 * none rows of padding up to a multiple of `dispatch_output_per_expert_alignment`. The experts' rows follow each other.
 * Shapes: `topk_idx` `[T, top_k]` in Int32 or Int64, where numbers that are no expert stand for none;
 * `recv_tokens_per_expert` `[num_experts / ep_size]` becomes the rows of each expert of this rank with padding, and
 * `total_recv_tokens_per_rank` `[1]` their sum: Int32 or Int64, both the same, each may be null or have no
 * address. `handle_mem`: `nvte_ep_handle_mem_size` bytes, aligned to 8.
 * Rows beyond `max_recv_tokens_per_rank` do not exist, and `recv_tokens_per_expert` does not count them; the sum
 * does, so that it says how many were dropped: those of the experts with the highest numbers, of the last ranks and
 * tokens. Unless `drop_on_overflow` is set they are an error: with several ranks on all of them, with one rank with
 * `NVTE_CHECK=device`, before anything is written.
 * Errors: other shapes or dtypes; more tokens than the group's config says; too little memory; outputs that
 * overlap anything.
 */
void nvte_ep_prepare(NVTETensor handle_mem,
                     NVTETensor topk_idx,
                     NVTETensor recv_tokens_per_expert,
                     NVTETensor total_recv_tokens_per_rank,
                     const NVTEEpLayerConfig *layer_cfg,
                     cudaStream_t stream);

/**
 * Copies tokens to the rows of their experts, by the plan in `handle_mem`: `recv_tokens[row] = tokens[t]` and
 * `recv_topk_weights[row] = topk_weights[t, k]`. All other rows become 0.
 *
 * Shapes: tokens `[T, H]`, `recv_tokens` `[R, H]`, of which rows from R on are left out (with several ranks and without
 * `drop_on_overflow` R is at least the number of rows of the plan that exist); `topk_weights`
 * `[T, top_k]`, `recv_topk_weights` `[R]`. `topk_idx` is not read and may be null. Without `topk_weights` (null
 * or no address) there are no weights.
 * Dtypes: Float32, Float16 or BFloat16; or MXFP8, row-wise, whose rows of scales, not swizzled, are copied as
 * well; weights are Float32. Windows must be all zero.
 * Errors: other shapes, dtypes or scaling modes; more tokens than the group's config says; outputs that overlap
 * anything; windows (`NVTEX_UNSUPPORTED`). With `NVTE_CHECK=device` other sizes than those of the plan.
 */
void nvte_ep_dispatch(NVTETensor handle_mem,
                      NVTETensor topk_idx,
                      NVTETensor tokens,
                      NVTECommWindow tokens_win,
                      NVTETensor topk_weights,
                      NVTECommWindow topk_weights_win,
                      NVTETensor recv_tokens,
                      NVTECommWindow recv_tokens_win,
                      NVTETensor recv_topk_weights,
                      NVTECommWindow recv_topk_weights_win,
                      cudaStream_t stream);

/**
 * `nvte_ep_prepare` and `nvte_ep_dispatch`, one after the other. Nothing is written if one of them refuses its
 * arguments.
 */
void nvte_ep_prepare_and_dispatch(NVTETensor handle_mem,
                                  NVTETensor topk_idx,
                                  NVTETensor tokens,
                                  NVTECommWindow tokens_win,
                                  NVTETensor topk_weights,
                                  NVTECommWindow topk_weights_win,
                                  NVTETensor recv_tokens,
                                  NVTECommWindow recv_tokens_win,
                                  NVTETensor recv_topk_weights,
                                  NVTECommWindow recv_topk_weights_win,
                                  NVTETensor recv_tokens_per_expert,
                                  NVTETensor total_recv_tokens_per_rank,
                                  const NVTEEpLayerConfig *layer_cfg,
                                  cudaStream_t stream);

/**
 * `result[t] = cast(sum of expert_out[row] over the rows of token t)` in float32, in the order of its experts;
 * 0 without rows. Rows that do not exist, also beyond R, do not count. With several ranks and `drop_on_overflow` the sum
 * over a token's experts of one rank is cast to the dtype, then the sum of these over the ranks, in the order in which
 * the token has chosen them first.
 *
 * Shapes: `expert_out` `[R, H]`, result `[T, H]`. Dtypes: Float32, Float16 or BFloat16, the same for both.
 * Errors: as `nvte_ep_dispatch`.
 */
void nvte_ep_combine(NVTETensor handle_mem,
                     NVTETensor expert_out,
                     NVTECommWindow expert_out_win,
                     NVTETensor result,
                     cudaStream_t stream);

/**
 * The gradients of `nvte_ep_dispatch`: `grad_tokens` as `nvte_ep_combine` of grad, and
 * `grad_topk_weights[t, k] = g_recv_topk_weights[row]`, 0 without a row.
 *
 * Shapes: grad `[R, H]`, `grad_tokens` `[T, H]`; `g_recv_topk_weights` `[R]`, `grad_topk_weights` `[T, top_k]`
 * in Float32.
 * Errors: as `nvte_ep_dispatch`.
 */
void nvte_ep_dispatch_bwd(NVTETensor handle_mem,
                          NVTETensor grad,
                          NVTECommWindow grad_win,
                          NVTETensor g_recv_topk_weights,
                          NVTECommWindow g_recv_topk_weights_win,
                          NVTETensor grad_tokens,
                          NVTETensor grad_topk_weights,
                          cudaStream_t stream);

/**
 * The gradient of `nvte_ep_combine`: `grad_expert_out[row] = grad[t]`, and 0 in all other rows. It is
 * `nvte_ep_dispatch` without weights.
 */
void nvte_ep_combine_bwd(NVTETensor handle_mem,
                         NVTETensor grad,
                         NVTECommWindow grad_win,
                         NVTETensor grad_expert_out,
                         NVTECommWindow grad_expert_out_win,
                         cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_EP_H */
