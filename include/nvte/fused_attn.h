#ifndef NVTE_FUSED_ATTN_H
#define NVTE_FUSED_ATTN_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
typedef const NVTETensor &NVTETensorReference;
#else
typedef const NVTETensor *NVTETensorReference;
#endif

/**
 * What one implementation of attention computes.
 */
typedef enum NVTEXAttentionPass {
  NVTEX_ATTENTION_FORWARD = 0,
  NVTEX_ATTENTION_BACKWARD = 1,
} NVTEXAttentionPass;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Which of queries, keys and values a layout interleaves.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Layout_Group nvte_get_qkv_layout_group(NVTE_QKV_Layout qkv_layout);

/**
 * The order of dimensions of a layout.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Format nvte_get_qkv_format(NVTE_QKV_Layout qkv_layout);

/**
 * The order of dimensions of the queries of a layout.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Format nvte_get_q_format(NVTE_QKV_Layout qkv_layout);

/**
 * The order of dimensions of the keys and values of a layout.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Format nvte_get_kv_format(NVTE_QKV_Layout qkv_layout);

/**
 * Creates a config of attention with defaults. Destroy with `nvte_destroy_fused_attn_config`.
 *
 * Defaults: training, no mask, no bias, no window, alignment at the bottom right, the usual softmax, no dropout,
 * `attn_scale` 1, BFloat16, no layout, sizes of 0; formats that are not set are those of the layout.
 */
NVTEFusedAttnConfig nvte_create_fused_attn_config(void);

/**
 * Destroys a config of attention. Null is an error.
 */
void nvte_destroy_fused_attn_config(NVTEFusedAttnConfig config);

/**
 * Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
 * the size. Types and errors: as `nvte_set_fused_attn_config_attribute`, but for the null.
 */
void nvte_get_fused_attn_config_attribute(NVTEFusedAttnConfig config,
                                          NVTEFusedAttnConfigAttribute attr,
                                          void *buf,
                                          size_t size_in_bytes,
                                          size_t *size_written);

/**
 * Sets an attribute from the bytes at `buf`. Values are checked when they are used.
 *
 * Types: flags one byte; enumerations, formats and layouts as such; dropout and scale `float`; window sizes
 * `int64_t`; other sizes `size_t`.
 * Errors: no config, no such attribute; a null `buf`; `size_in_bytes` below the size of the type.
 */
void nvte_set_fused_attn_config_attribute(NVTEFusedAttnConfig config,
                                          NVTEFusedAttnConfigAttribute attr,
                                          const void *buf,
                                          size_t size_in_bytes);

/**
 * Creates parameters of a forward attention with defaults. Destroy with `nvte_destroy_fused_attn_fwd_params`.
 *
 * Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
 */
NVTEFusedAttnFwdParams nvte_create_fused_attn_fwd_params(void);

/**
 * Destroys parameters of a forward attention. Null is an error.
 */
void nvte_destroy_fused_attn_fwd_params(NVTEFusedAttnFwdParams params);

/**
 * As `nvte_get_fused_attn_config_attribute`.
 */
void nvte_get_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params,
                                              NVTEFusedAttnFwdParamsAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * As `nvte_set_fused_attn_config_attribute`. `buf` holds a tensor's or the workspace's `NVTETensor`, the address
 * of the pack, the `cudaStream_t`.
 */
void nvte_set_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params,
                                              NVTEFusedAttnFwdParamsAttribute attr,
                                              const void *buf,
                                              size_t size_in_bytes);

/**
 * Creates parameters of a backward attention with defaults. Destroy with `nvte_destroy_fused_attn_bwd_params`.
 *
 * Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
 */
NVTEFusedAttnBwdParams nvte_create_fused_attn_bwd_params(void);

/**
 * Destroys parameters of a backward attention. Null is an error.
 */
void nvte_destroy_fused_attn_bwd_params(NVTEFusedAttnBwdParams params);

/**
 * As `nvte_get_fused_attn_config_attribute`.
 */
void nvte_get_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params,
                                              NVTEFusedAttnBwdParamsAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * As `nvte_set_fused_attn_config_attribute`. `buf` holds a tensor's or the workspace's `NVTETensor`, the address
 * of the pack, the `cudaStream_t`.
 */
void nvte_set_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params,
                                              NVTEFusedAttnBwdParamsAttribute attr,
                                              const void *buf,
                                              size_t size_in_bytes);

/**
 * Copies the first (`half_idx` 0) or second (1) half of every packed sequence.
 *
 * Shapes: tensor `[t, h, d]` or `[2, t, h, d]`, half with t / 2 tokens; cu_seqlens Int32 `[b + 1]`, first
 * tokens, even. Dtypes: any, the same.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_read_half_tensor(NVTETensorReference tensor,
                                  NVTETensorReference cu_seqlens,
                                  NVTETensor half,
                                  int half_idx,
                                  cudaStream_t stream);

/**
 * Merges the log-sum-exp of a step into that of the second half of every sequence, in place:
 * `lse = log(exp(lse) + exp(lse_per_step))`.
 *
 * Shapes (Float32): packed `[h, t]` and `[h, t / 2 or more]`, else `[b, h, s]` and `[b, h, s / 2]`.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_second_half_lse_correction(NVTETensor lse,
                                            NVTETensorReference lse_per_step,
                                            NVTETensorReference cu_seqlens,
                                            int lse_packed,
                                            cudaStream_t stream);

/**
 * Copies the log-sum-exp of the second half of every sequence; entries that have none stay.
 *
 * Shapes (Float32): as `nvte_cp_thd_second_half_lse_correction`, with `second_half_lse_seqlen` as the last
 * dimension of half_lse.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_read_second_half_lse(NVTETensorReference lse,
                                      NVTETensorReference cu_seqlens,
                                      NVTETensor half_lse,
                                      int lse_packed,
                                      int second_half_lse_seqlen,
                                      cudaStream_t stream);

/**
 * Merges the output of a step, in place:
 * `out = out exp(old_lse - lse) + out_per_step exp(lse_per_step - lse)`, in float32; zero elements stay zero.
 *
 * Shapes: out `[t, h, d]`, out_per_step the same or, `only_second_half`, `[t / 2, h, d]`; log-sum-exps Float32,
 * packed `[h, t]`, else `[b, h, s]`. Dtypes: Float32, Float16, BFloat16, the same for both.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_out_correction(NVTETensor out,
                                NVTETensorReference out_per_step,
                                NVTETensorReference old_lse,
                                NVTETensorReference lse,
                                NVTETensorReference lse_per_step,
                                NVTETensorReference cu_seqlens,
                                int only_second_half,
                                int lse_packed,
                                cudaStream_t stream);

/**
 * Merges the gradient of a step, in place, into the first and the second half of every sequence: "add",
 * "copy", "none" or "zero" for each, of which (add, none), (copy, none), (copy, zero) and (add, copy) and their
 * exchanges make sense.
 *
 * Shapes: grad `[t, h, d]` or `[2, t, h, d]`; grad_per_step the same for (add, copy), else t / 2 tokens. Dtypes:
 * Float32, Float16, BFloat16; with zero also Byte.
 * Errors: other pairs, shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_grad_correction(NVTETensor grad,
                                 NVTETensorReference grad_per_step,
                                 NVTETensorReference cu_seqlens,
                                 const char *first_half,
                                 const char *second_half,
                                 cudaStream_t stream);

/**
 * The tokens that a rank has, where each sequence is cut into `2 world_size` chunks and rank k has chunk k
 * and the k-th from the end.
 *
 * Shapes: output Int32 `[total_tokens / world_size]`.
 * Errors: total_tokens not a multiple of 2 world_size; a rank outside; shapes or dtypes.
 */
void nvte_cp_thd_get_partitioned_indices(NVTETensorReference cu_seqlens,
                                         NVTETensor output,
                                         int total_tokens,
                                         int world_size,
                                         int rank,
                                         cudaStream_t stream);

/**
 * Orders tokens by rank, as `nvte_cp_thd_get_partitioned_indices` assigns them.
 *
 * Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same.
 * Errors: total_tokens not a multiple of 2 world_size; other shapes or dtypes.
 */
void nvte_thd_sequence_order_to_cp_rank_order(NVTETensorReference inp,
                                              NVTETensorReference cu_seqlens,
                                              NVTETensor out,
                                              int world_size,
                                              int total_tokens,
                                              cudaStream_t stream);

/**
 * Orders the tokens of all ranks by sequence: the inverse of `nvte_thd_sequence_order_to_cp_rank_order`.
 *
 * Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same.
 * Errors: total_tokens not a multiple of 2 world_size; other shapes or dtypes.
 */
void nvte_thd_cp_rank_order_to_sequence_order(NVTETensorReference inp,
                                              NVTETensorReference cu_seqlens,
                                              NVTETensor out,
                                              int world_size,
                                              int total_tokens,
                                              cudaStream_t stream);

/**
 * Copies the tokens of packed sequences that are no padding: of sequence s, which begins at
 * `cu_seqlens_padded[s]`, the first `cu_seqlens[s + 1] - cu_seqlens[s]`. Other rows of out stay.
 *
 * Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(NVTETensorReference inp,
                                                             NVTETensorReference cu_seqlens_padded,
                                                             NVTETensorReference cu_seqlens,
                                                             NVTETensor out,
                                                             int total_tokens,
                                                             cudaStream_t stream);

/**
 * Spreads packed tokens `[t, h, d]` over `[b, max_seq_len, h, d]`; rows past the end of a sequence stay.
 *
 * Shapes: cu_seqlens Int32 `[b + 1 or more]`. Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the
 * same.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_convert_thd_to_bshd(NVTETensor tensor,
                              NVTETensor cu_seqlens,
                              NVTETensor new_tensor,
                              int b,
                              int max_seq_len,
                              cudaStream_t stream);

/**
 * Packs the tokens of `[b, s, h, d]` into `[t, h, d]`. `t` is not used.
 *
 * Shapes: cu_seqlens Int32 `[b + 1 or more]`. Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the
 * same.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_convert_bshd_to_thd(NVTETensor tensor,
                              NVTETensor cu_seqlens,
                              NVTETensor new_tensor,
                              int t,
                              cudaStream_t stream);

/**
 * Copies the keys and values of new tokens to their places in a cache.
 *
 * Sequence i has `cu_new_lens[i + 1] - cu_new_lens[i]` new tokens, and with them
 * `cu_cached_lens[i + 1] - cu_cached_lens[i]` in all. Token p of it lies on page
 * `page_table[i][p / page_size]`, or without pages (`is_non_paged`) in slot i, where first the sequences that
 * go on (page_table is then their old slots `[b or more]`) are moved to the front.
 * Shapes: caches `[pages, page_size, h, d]`, page_size = max_seq_len / max_pages_per_seq; new tokens
 * `[b or more, max_ctx_len, h, d]`, `[s, b, h, d]` or packed `[t, h, d]` (qkv_format); the running sums Int32
 * `[b + 1 or more]`, the page table of b max_pages_per_seq elements or more. Dtypes: Float32, Float16, BFloat16,
 * Float8E4M3, Float8E5M2, the same for all four. Nothing happens if one of the four has no data.
 * Errors: other shapes, formats or dtypes; null or misaligned pointers.
 */
void nvte_copy_to_kv_cache(NVTETensor new_k,
                           NVTETensor new_v,
                           NVTETensor k_cache,
                           NVTETensor v_cache,
                           NVTETensor page_table,
                           NVTETensor cu_new_lens,
                           NVTETensor cu_cached_lens,
                           NVTE_QKV_Format qkv_format,
                           int b,
                           int max_ctx_len,
                           int max_seq_len,
                           int max_pages_per_seq,
                           int is_non_paged,
                           cudaStream_t stream);

/**
 * Separates interleaved queries, keys and values: `[s, b, n, 3, d]` in memory, of which the handle has the
 * shape `[s, b, n, d]`, to `[3, b, s, n, d]`.
 *
 * Dtypes: Float16, BFloat16, the same.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_prepare_flash_attn_fwd(NVTETensor qkvi,
                                 NVTETensor qkv,
                                 cudaStream_t stream);

/**
 * Interleaves queries, keys and values `[b, s, n, d]` as `[s, b, n, 3, d]`.
 *
 * Dtypes: Float16, BFloat16, the same.
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_prepare_flash_attn_bwd(NVTETensor q,
                                 NVTETensor k,
                                 NVTETensor v,
                                 NVTETensor qkv,
                                 cudaStream_t stream);

/**
 * Transposes tensors `[b, s, h, d]` or `[s, b, h, d]` (original_format) to `[b, h, s, d or more]`, zeros
 * behind each d.
 *
 * Dtypes: any, the same for input and output.
 * Errors: another format; other shapes or dtypes; null or misaligned pointers. Nothing is written then.
 */
void nvte_multi_tensor_transpose_to_bhsd(NVTETensor *inputs,
                                         NVTETensor *outputs,
                                         size_t num_tensors,
                                         NVTE_QKV_Format original_format,
                                         cudaStream_t stream);

/**
 * Copies matrices `[r, c]` to wider ones, zeros behind each row.
 *
 * Dtypes: any, the same for input and output.
 * Errors: other shapes or dtypes; an output that overlaps its input; null or misaligned pointers. Nothing is
 * written then.
 */
void nvte_multi_tensor_pad_last_dim(NVTETensor *inputs,
                                    NVTETensor *outputs,
                                    size_t num_tensors,
                                    cudaStream_t stream);

/**
 * Fills the state of a random generator: the seed at `seed`, and an offset that grows with every call of the
 * thread, by 16 for `NVTE_F16_arbitrary_seqlen`, else by `q_max_seqlen kv_max_seqlen / 128`, rounded up.
 *
 * `rng_state_dst` (Int64 `[2]`) and `seed` (Int64) are device addresses, not tensors.
 */
void nvte_populate_rng_state_async(NVTETensor rng_state_dst,
                                   NVTETensor seed,
                                   size_t q_max_seqlen,
                                   size_t kv_max_seqlen,
                                   NVTE_Fused_Attn_Backend backend,
                                   cudaStream_t stream);

/**
 * The number of the first `len` entries of cu_seqlens that are above 0. Waits for the stream.
 *
 * `cu_seqlens` (Int32) is a device address, not a tensor; `workspace` is not used.
 */
uint32_t nvte_get_runtime_num_segments(NVTETensor cu_seqlens,
                                       NVTETensor workspace,
                                       size_t len,
                                       cudaStream_t stream);

/**
 * Fills the state of a random generator, `{seed, offset}`: the values at `seed_ptr` and, plus
 * `offset_intragraph`, `offset_ptr` on the device if `captured`, else `seed_val` and `offset_val`.
 *
 * Errors: null or misaligned pointers that are needed.
 */
void nvte_extract_seed_and_offset(int64_t *rng_state_ptr,
                                  int captured,
                                  int64_t *seed_ptr,
                                  uint64_t seed_val,
                                  int64_t *offset_ptr,
                                  uint64_t offset_val,
                                  uint32_t offset_intragraph,
                                  cudaStream_t stream);

/**
 * The kind of implementation that runs an attention: `NVTE_FP8` for FP8 queries, else
 * `NVTE_F16_arbitrary_seqlen`, or `NVTE_No_Backend`. A config of training asks for both passes.
 *
 * `message` (null: nowhere) gets "" or the reason against it, valid until the thread's next call of this
 * function or of `nvtex_fused_attn_query`. The answer depends on the config and the device alone. With FP8
 * queries `do_dtype` may be the dtype of the gradient before its cast: the backward pass takes it in FP8.
 * Errors: no config; no layout, format, dtype, mask, bias or softmax behind a number. What is well formed
 * and not possible is no error.
 */
NVTE_Fused_Attn_Backend nvte_get_fused_attn_backend_v2(NVTEFusedAttnConfig cfg,
                                                       const char **message);

/**
 * As `nvte_get_fused_attn_backend_v2`, for a batch of one, one dtype for all tensors, and a bias `[1, h,
 * s_q, s_kv]`. Layouts with pages have none, since nothing is said about pages.
 *
 * Errors: kv_dtype is not q_dtype; unknown numbers.
 */
NVTE_Fused_Attn_Backend nvte_get_fused_attn_backend(bool is_training,
                                                    NVTEDType q_dtype,
                                                    NVTEDType kv_dtype,
                                                    NVTE_QKV_Layout qkv_layout,
                                                    NVTE_Bias_Type bias_type,
                                                    NVTE_Mask_Type attn_mask_type,
                                                    NVTE_Softmax_Type softmax_type,
                                                    float dropout,
                                                    size_t num_attn_heads,
                                                    size_t num_gqa_groups,
                                                    size_t max_seqlen_q,
                                                    size_t max_seqlen_kv,
                                                    size_t head_dim_qk,
                                                    size_t head_dim_v,
                                                    int64_t window_size_left,
                                                    int64_t window_size_right,
                                                    bool return_max_logit,
                                                    bool cuda_graph,
                                                    bool deterministic);

/**
 * What would run one pass of an attention, and what declined before it.
 *
 * `implementation` gets its name (static), or null if there is none; `rejected` the others that were
 * asked, "name: reason", one a line, or the reasons why there is none, which name what would do; it is valid
 * until the thread's next call of this function or of `nvte_get_fused_attn_backend_v2`; `workspace_bytes`
 * what a workspace query would answer. Each may be null. The result is that of
 * `nvte_get_fused_attn_backend_v2` for this pass alone.
 * Errors: as `nvte_get_fused_attn_backend_v2`; another pass.
 */
NVTE_Fused_Attn_Backend nvtex_fused_attn_query(NVTEFusedAttnConfig config,
                                               enum NVTEXAttentionPass pass,
                                               const char **implementation,
                                               const char **rejected,
                                               size_t *workspace_bytes);

/**
 * Attention, `softmax(attn_scale q k^T + bias) v`, as the parameters describe it.
 *
 * It is called twice with the same parameters. First the workspace has no data, and the pack at
 * `Aux_CTX_Tensors`, whose tensors `nvte_tensor_pack_create` has made, the `size` 0 (in C
 * `NVTETensorPack pack = {0}`): the workspace and the tensors of the pack take the shapes and dtypes that they
 * need, `size` their number, and nothing runs. Then, with memory for the workspace and for Stats and Max, it
 * runs. The backward pass takes the pack without Max.
 *
 * Inputs: Q, K, V of the shapes of `qkv_layout` without the 2 or 3 of interleaved ones; Float16, BFloat16 or
 * Float32, then O likewise; Float8E4M3 or Float8E5M2 with a scale_inv, then O FP8 (with a scale) or of 16 or 32
 * bits, and S may have scale, scale_inv and amax of the probabilities. O as Q, in `o_format`, with heads of as
 * many elements as V's. Query head j reads key head `j / (h_q / h_kv)`. Paged keys and values: `[pages,
 * page_size, h, d]` and tables Int32 `[b or more, max_pages_per_seq]`. K and V of `[b, s, h, d]` or `[b, h, s, d]`
 * may have more sequences than Q, which are not read.
 * Lengths: `max_seqlen_*`, with a padding mask those that `cu_seqlens_*`, Int32 `[b + 1 or more]`, bound. Packed
 * tokens (THD) of sequence i begin at `cu_seqlens_*_padded[i]` (likewise), without those at `cu_seqlens_*[i]`;
 * of packed queries b is an element less than `cu_seqlens_q` has.
 * Masks: scores count inside the lengths, under a causal mask for columns up to the row, and in a window from
 * `row - window_size_left` to `row + window_size_right` (-1: unbounded), rows counted from the top left or, as
 * mask or `bottom_right_diagonal` say, the bottom right of a sequence's scores.
 * Bias: `[1 or b, 1 or h, 1 or s_q, s_kv]`, of Q's dtype in memory whatever the handle says (FP8: of the
 * handle's). SoftmaxOffset: Float32, one more score without a value for each head; absent it is 0 if the softmax
 * is off by one. Dropout needs `rng_state`, Int64 `{seed, offset}`, and happens in training only.
 * Aux_CTX_Tensors, in this order: Stats (natural log of the sum of exponentials, Float32 `[b, h, s_q, 1]` or
 * `[t_q, h, 1]`), with `return_max_logit` Max (likewise, the largest score), rng_state, bias and offset if they
 * are used; the last three come to point to the inputs.
 * Rows without a score become 0, Stats and Max -inf; so do dense rows behind their sequence, packed ones are not
 * touched. Nothing is written for no rows. `cuda_graph` has no influence.
 * Keys and values behind a sequence's end never reach a result. A NaN or infinity that only later queries see
 * reaches no earlier query on the CPU backend; on CUDA it may reach earlier queries of the same tile of the causal
 * or window mask.
 * Errors: sizes, dtypes and options that do not fit; null or misaligned pointers (16 bytes for tensors whose
 * heads are a multiple of that); what no implementation of the backend takes (`nvtex_fused_attn_query` says why).
 */
void nvte_fused_attn_fwd_v2(NVTEFusedAttnFwdParams params);

/**
 * As `nvte_fused_attn_fwd_v2`, with the parameters as arguments. Tensors that are not needed may be null.
 */
void nvte_fused_attn_fwd(NVTETensor Q,
                         NVTETensor K,
                         NVTETensor V,
                         NVTETensor Bias,
                         NVTETensor SoftmaxOffset,
                         NVTETensor S,
                         NVTETensor O,
                         NVTETensorPack *Aux_CTX_Tensors,
                         NVTETensor cu_seqlens_q,
                         NVTETensor cu_seqlens_kv,
                         NVTETensor cu_seqlens_q_padded,
                         NVTETensor cu_seqlens_kv_padded,
                         NVTETensor page_table_k,
                         NVTETensor page_table_v,
                         NVTETensor rng_state,
                         size_t max_seqlen_q,
                         size_t max_seqlen_kv,
                         bool is_training,
                         bool return_max_logit,
                         bool cuda_graph,
                         float attn_scale,
                         float dropout,
                         NVTE_QKV_Layout qkv_layout,
                         NVTE_QKV_Format o_format,
                         NVTE_QKV_Format qkv_scale_inv_format,
                         NVTE_Bias_Type bias_type,
                         NVTE_Mask_Type attn_mask_type,
                         NVTE_Softmax_Type softmax_type,
                         int64_t window_size_left,
                         int64_t window_size_right,
                         bool bottom_right_diagonal,
                         NVTETensor workspace,
                         cudaStream_t stream);

/**
 * Gradients of `nvte_fused_attn_fwd_v2`, written over what was there. While the workspace has no data, it only
 * takes its shape and dtype.
 *
 * Takes Q, K, V, O, dO and Aux_CTX_Tensors, of which Stats, rng_state and, if they are used, bias and offset are
 * read in this order, without Max. Dropout drops what the forward dropped for the same state. dBias (of the
 * bias's shape, summed where it is broadcast) and dSoftmaxOffset (Float32, one for each head) may be absent.
 * dQ, dK, dV: shapes of `dqkv_layout`, the dtype of Q, or with FP8 Q any; rows behind a sequence as O's in the
 * forward. `deterministic`: in a fixed order; the CPU does so always. Not of paged keys and values. FP8: S as
 * in the forward, dP with scale, scale_inv and amax of the scores' gradient.
 * Errors: as `nvte_fused_attn_fwd_v2`.
 */
void nvte_fused_attn_bwd_v2(NVTEFusedAttnBwdParams params);

/**
 * As `nvte_fused_attn_bwd_v2`, with the parameters as arguments. Tensors that are not needed may be null.
 */
void nvte_fused_attn_bwd(NVTETensor Q,
                         NVTETensor K,
                         NVTETensor V,
                         NVTETensor O,
                         NVTETensor dO,
                         NVTETensor S,
                         NVTETensor dP,
                         const NVTETensorPack *Aux_CTX_Tensors,
                         NVTETensor dQ,
                         NVTETensor dK,
                         NVTETensor dV,
                         NVTETensor dBias,
                         NVTETensor dSoftmaxOffset,
                         NVTETensor cu_seqlens_q,
                         NVTETensor cu_seqlens_kv,
                         NVTETensor cu_seqlens_q_padded,
                         NVTETensor cu_seqlens_kv_padded,
                         size_t max_seqlen_q,
                         size_t max_seqlen_kv,
                         float attn_scale,
                         float dropout,
                         NVTE_QKV_Layout qkv_layout,
                         NVTE_QKV_Format o_format,
                         NVTE_QKV_Format do_format,
                         NVTE_QKV_Layout dqkv_layout,
                         NVTE_QKV_Format qkv_scale_inv_format,
                         NVTE_QKV_Format do_scale_inv_format,
                         NVTE_Bias_Type bias_type,
                         NVTE_Mask_Type attn_mask_type,
                         NVTE_Softmax_Type softmax_type,
                         int64_t window_size_left,
                         int64_t window_size_right,
                         bool bottom_right_diagonal,
                         bool deterministic,
                         bool cuda_graph,
                         NVTETensor workspace,
                         cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_FUSED_ATTN_H */
