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
 * Returns which of queries, keys and values a layout interleaves.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Layout_Group nvte_get_qkv_layout_group(NVTE_QKV_Layout qkv_layout);

/**
 * Returns the order of dimensions of a layout.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Format nvte_get_qkv_format(NVTE_QKV_Layout qkv_layout);

/**
 * Returns the order of dimensions of the queries of a layout.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Format nvte_get_q_format(NVTE_QKV_Layout qkv_layout);

/**
 * Returns the order of dimensions of the keys and values of a layout.
 *
 * Errors: no layout from 0 to 25 (the result is then 0).
 */
NVTE_QKV_Format nvte_get_kv_format(NVTE_QKV_Layout qkv_layout);

/**
 * Creates a config of attention with defaults. Destroy it with `nvte_destroy_fused_attn_config`.
 *
 * Defaults: training, no mask, no bias, no window, alignment at the bottom right, the usual softmax,
 * no dropout, `attn_scale` 1, BFloat16, no layout, sizes of 0. Formats that are not set are those of
 * the layout.
 */
NVTEFusedAttnConfig nvte_create_fused_attn_config(void);

/**
 * Destroys a config of attention. Null is an error.
 */
void nvte_destroy_fused_attn_config(NVTEFusedAttnConfig config);

/**
 * Copies an attribute of a config to `buf`, and its size to `size_written` (null: nowhere). With a
 * null `buf` only the size is written.
 *
 * Types and errors: as `nvte_set_fused_attn_config_attribute`, except that `buf` may be null.
 */
void nvte_get_fused_attn_config_attribute(NVTEFusedAttnConfig config,
                                          NVTEFusedAttnConfigAttribute attr,
                                          void *buf,
                                          size_t size_in_bytes,
                                          size_t *size_written);

/**
 * Sets an attribute of a config from the bytes at `buf`. Values are checked when they are used.
 *
 * Types: flags are one byte; enumerations, formats and layouts have their own types; dropout and scale
 * are `float`, window sizes `int64_t`, other sizes `size_t`.
 *
 * Errors: no config, no such attribute; a null `buf`; `size_in_bytes` below the size of the type.
 */
void nvte_set_fused_attn_config_attribute(NVTEFusedAttnConfig config,
                                          NVTEFusedAttnConfigAttribute attr,
                                          const void *buf,
                                          size_t size_in_bytes);

/**
 * Creates parameters of a forward pass of attention with defaults. Destroy them with
 * `nvte_destroy_fused_attn_fwd_params`.
 *
 * Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
 */
NVTEFusedAttnFwdParams nvte_create_fused_attn_fwd_params(void);

/**
 * Destroys parameters of a forward pass of attention. Null is an error.
 */
void nvte_destroy_fused_attn_fwd_params(NVTEFusedAttnFwdParams params);

/**
 * Copies an attribute of parameters, as `nvte_get_fused_attn_config_attribute` does for a config.
 */
void nvte_get_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params,
                                              NVTEFusedAttnFwdParamsAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * Sets an attribute of parameters, as `nvte_set_fused_attn_config_attribute` does for a config. `buf`
 * holds the `NVTETensor` of a tensor or of the workspace, the address of the pack, or the
 * `cudaStream_t`.
 */
void nvte_set_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params,
                                              NVTEFusedAttnFwdParamsAttribute attr,
                                              const void *buf,
                                              size_t size_in_bytes);

/**
 * Creates parameters of a backward pass of attention with defaults. Destroy them with
 * `nvte_destroy_fused_attn_bwd_params`.
 *
 * Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
 */
NVTEFusedAttnBwdParams nvte_create_fused_attn_bwd_params(void);

/**
 * Destroys parameters of a backward pass of attention. Null is an error.
 */
void nvte_destroy_fused_attn_bwd_params(NVTEFusedAttnBwdParams params);

/**
 * Copies an attribute of parameters, as `nvte_get_fused_attn_config_attribute` does for a config.
 */
void nvte_get_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params,
                                              NVTEFusedAttnBwdParamsAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * Sets an attribute of parameters, as `nvte_set_fused_attn_config_attribute` does for a config. `buf`
 * holds the `NVTETensor` of a tensor or of the workspace, the address of the pack, or the
 * `cudaStream_t`.
 */
void nvte_set_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params,
                                              NVTEFusedAttnBwdParamsAttribute attr,
                                              const void *buf,
                                              size_t size_in_bytes);

/**
 * Copies the first (`half_idx` 0) or second (1) half of every packed sequence.
 *
 * Shapes: tensor `[t, h, d]` or `[2, t, h, d]`; half the same with t / 2 tokens; cu_seqlens Int32
 * `[b + 1]`, the first tokens of the sequences, all even.
 *
 * Dtypes: any, the same for both tensors.
 *
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
 * Shapes (Float32): with `lse_packed` `[h, t]` and `[h, t / 2 or more]`, otherwise `[b, h, s]` and
 * `[b, h, s / 2]`.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_second_half_lse_correction(NVTETensor lse,
                                            NVTETensorReference lse_per_step,
                                            NVTETensorReference cu_seqlens,
                                            int lse_packed,
                                            cudaStream_t stream);

/**
 * Copies the log-sum-exp of the second half of every sequence; entries of half_lse that stand for no
 * token stay as they are.
 *
 * Shapes (Float32): as `nvte_cp_thd_second_half_lse_correction`, with `second_half_lse_seqlen` as the
 * last dimension of half_lse.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_read_second_half_lse(NVTETensorReference lse,
                                      NVTETensorReference cu_seqlens,
                                      NVTETensor half_lse,
                                      int lse_packed,
                                      int second_half_lse_seqlen,
                                      cudaStream_t stream);

/**
 * Merges the output of a step into an output, in place:
 * `out = out exp(old_lse - lse) + out_per_step exp(lse_per_step - lse)`, in float32. Elements that are
 * zero stay zero.
 *
 * Shapes: out `[t, h, d]`; out_per_step the same, or with `only_second_half` `[t / 2, h, d]`;
 * log-sum-exps Float32, with `lse_packed` `[h, t]`, otherwise `[b, h, s]`.
 *
 * Dtypes: Float32, Float16 or BFloat16, the same for both outputs.
 *
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
 * Merges the gradient of a step into a gradient, in place, separately for the first and the second
 * half of every sequence.
 *
 * What happens to a half: "add", "copy", "none" or "zero". Allowed are (add, none), (copy, none),
 * (copy, zero), (add, copy), and each of them the other way round.
 *
 * Shapes: grad `[t, h, d]` or `[2, t, h, d]`; grad_per_step the same for (add, copy), otherwise with t
 * / 2 tokens.
 *
 * Dtypes: Float32, Float16 or BFloat16; with "zero" also Byte.
 *
 * Errors: other pairs, shapes or dtypes; null or misaligned pointers.
 */
void nvte_cp_thd_grad_correction(NVTETensor grad,
                                 NVTETensorReference grad_per_step,
                                 NVTETensorReference cu_seqlens,
                                 const char *first_half,
                                 const char *second_half,
                                 cudaStream_t stream);

/**
 * Lists the tokens that a rank has in context parallelism: each sequence is cut into `2 world_size`
 * chunks, and rank k has chunk k and the k-th from the end.
 *
 * Shapes: output Int32 `[total_tokens / world_size]`.
 *
 * Errors: a `total_tokens` that is not a multiple of 2 world_size; a rank outside of the world; other
 * shapes or dtypes.
 */
void nvte_cp_thd_get_partitioned_indices(NVTETensorReference cu_seqlens,
                                         NVTETensor output,
                                         int total_tokens,
                                         int world_size,
                                         int rank,
                                         cudaStream_t stream);

/**
 * Orders tokens by the rank to which `nvte_cp_thd_get_partitioned_indices` assigns them.
 *
 * Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
 *
 * Errors: a `total_tokens` that is not a multiple of 2 world_size; other shapes or dtypes.
 */
void nvte_thd_sequence_order_to_cp_rank_order(NVTETensorReference inp,
                                              NVTETensorReference cu_seqlens,
                                              NVTETensor out,
                                              int world_size,
                                              int total_tokens,
                                              cudaStream_t stream);

/**
 * Orders the tokens of all ranks by sequence again: the inverse of
 * `nvte_thd_sequence_order_to_cp_rank_order`.
 *
 * Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
 *
 * Errors: a `total_tokens` that is not a multiple of 2 world_size; other shapes or dtypes.
 */
void nvte_thd_cp_rank_order_to_sequence_order(NVTETensorReference inp,
                                              NVTETensorReference cu_seqlens,
                                              NVTETensor out,
                                              int world_size,
                                              int total_tokens,
                                              cudaStream_t stream);

/**
 * Copies the tokens of packed sequences, without their padding: of sequence s, which begins at
 * `cu_seqlens_padded[s]`, the first `cu_seqlens[s + 1] - cu_seqlens[s]`. Other rows of out stay as
 * they are.
 *
 * Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(NVTETensorReference inp,
                                                             NVTETensorReference cu_seqlens_padded,
                                                             NVTETensorReference cu_seqlens,
                                                             NVTETensor out,
                                                             int total_tokens,
                                                             cudaStream_t stream);

/**
 * Spreads packed tokens `[t, h, d]` over `[b, max_seq_len, h, d]`; rows past the end of a sequence
 * stay as they are.
 *
 * Shapes: cu_seqlens Int32 `[b + 1 or more]`.
 *
 * Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both tensors.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_convert_thd_to_bshd(NVTETensor tensor,
                              NVTETensor cu_seqlens,
                              NVTETensor new_tensor,
                              int b,
                              int max_seq_len,
                              cudaStream_t stream);

/**
 * Packs the tokens of `[b, s, h, d]` into `[t, h, d]`. The argument `t` is not used.
 *
 * Shapes: cu_seqlens Int32 `[b + 1 or more]`.
 *
 * Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both tensors.
 *
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
 * Places: sequence i has `cu_new_lens[i + 1] - cu_new_lens[i]` new tokens, and with them
 * `cu_cached_lens[i + 1] - cu_cached_lens[i]` in all. Its token p lies on page
 * `page_table[i][p / page_size]`. Without pages (`is_non_paged`) it lies in slot i: then page_table
 * holds the old slots `[b or more]` of the sequences that go on, which are first moved to the front.
 *
 * Shapes: caches `[pages, page_size, h, d]`, with page_size = max_seq_len / max_pages_per_seq; new
 * tokens, by qkv_format, `[b or more, max_ctx_len, h, d]`, `[s, b, h, d]` or packed `[t, h, d]`; cumulative
 * lengths Int32 `[b + 1 or more]`; the page table of b max_pages_per_seq elements or more.
 *
 * Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both caches and the new
 * keys and values.
 *
 * Notes: nothing happens if a cache or the new keys or values have no data. Packed new tokens are all
 * copied, whatever `max_ctx_len` says.
 *
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
 * Separates interleaved queries, keys and values: from `[s, b, n, 3, d]` in memory to
 * `[3, b, s, n, d]`. The handle of the input has the shape `[s, b, n, d]`.
 *
 * Dtypes: Float16 or BFloat16, the same for both.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_prepare_flash_attn_fwd(NVTETensor qkvi, NVTETensor qkv, cudaStream_t stream);

/**
 * Interleaves queries, keys and values `[b, s, n, d]` as `[s, b, n, 3, d]`.
 *
 * Dtypes: Float16 or BFloat16, the same for all.
 *
 * Errors: other shapes or dtypes; null or misaligned pointers.
 */
void nvte_prepare_flash_attn_bwd(NVTETensor q,
                                 NVTETensor k,
                                 NVTETensor v,
                                 NVTETensor qkv,
                                 cudaStream_t stream);

/**
 * Transposes tensors `[b, s, h, d]` or `[s, b, h, d]` (original_format) to `[b, h, s, d or more]`,
 * with zeros behind each d.
 *
 * Dtypes: any, the same for an input and its output.
 *
 * Errors: another format; other shapes or dtypes; null or misaligned pointers. Nothing is written
 * then.
 */
void nvte_multi_tensor_transpose_to_bhsd(NVTETensor *inputs,
                                         NVTETensor *outputs,
                                         size_t num_tensors,
                                         NVTE_QKV_Format original_format,
                                         cudaStream_t stream);

/**
 * Copies matrices `[r, c]` to wider ones, with zeros behind each row.
 *
 * Dtypes: any, the same for an input and its output.
 *
 * Errors: other shapes or dtypes; an output that overlaps its input; null or misaligned pointers.
 * Nothing is written then.
 */
void nvte_multi_tensor_pad_last_dim(NVTETensor *inputs,
                                    NVTETensor *outputs,
                                    size_t num_tensors,
                                    cudaStream_t stream);

/**
 * Fills the state of a random generator: the seed at `seed`, and an offset that grows with every call
 * of the thread.
 *
 * The offset grows by 16 for `NVTE_F16_arbitrary_seqlen`, otherwise by
 * `q_max_seqlen kv_max_seqlen / 128`, rounded up. `rng_state_dst` (Int64 `[2]`) and `seed` (Int64) are
 * device addresses, not tensors.
 */
void nvte_populate_rng_state_async(NVTETensor rng_state_dst,
                                   NVTETensor seed,
                                   size_t q_max_seqlen,
                                   size_t kv_max_seqlen,
                                   NVTE_Fused_Attn_Backend backend,
                                   cudaStream_t stream);

/**
 * Counts how many of the first `len` entries of cu_seqlens are above 0. It waits for the stream.
 *
 * `cu_seqlens` (Int32) is a device address, not a tensor; `workspace` is not used.
 */
uint32_t nvte_get_runtime_num_segments(NVTETensor cu_seqlens,
                                       NVTETensor workspace,
                                       size_t len,
                                       cudaStream_t stream);

/**
 * Fills the state of a random generator, `{seed, offset}`.
 *
 * With `captured` these are the value at `seed_ptr`, and the value at `offset_ptr` plus
 * `offset_intragraph`, read on the device; otherwise `seed_val` and `offset_val`.
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
 * Returns the kind of implementation that would run an attention: `NVTE_FP8` for FP8 queries,
 * otherwise `NVTE_F16_arbitrary_seqlen`, or `NVTE_No_Backend` if none can. A config of training asks
 * for both passes.
 *
 * `message` (null: nowhere) becomes "" or the reason why none can; it is valid until the thread's next
 * call of this function or of `nvtex_fused_attn_query`. The answer depends on the config and the
 * device alone. With FP8 queries `do_dtype` may be the dtype of the gradient before its cast: the
 * backward pass takes it in FP8.
 *
 * Errors: no config; a number that stands for no layout, format, dtype, mask, bias or softmax. A
 * request that is well formed and cannot be run is no error.
 */
NVTE_Fused_Attn_Backend nvte_get_fused_attn_backend_v2(NVTEFusedAttnConfig cfg,
                                                       const char **message);

/**
 * Returns what `nvte_get_fused_attn_backend_v2` returns, for a batch of one, one dtype for all
 * tensors, and a bias `[1, h, s_q, s_kv]`.
 *
 * Layouts with pages get `NVTE_No_Backend`, because the arguments say nothing about pages.
 *
 * Errors: a kv_dtype that is not q_dtype; unknown numbers.
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
 * Tells which implementation would run one pass of an attention, and why others declined.
 *
 * Outputs, each of which may be null:
 * - `implementation`: its name, a static text, or null if there is none.
 * - `rejected`: the implementations that were asked before it, as "name: reason", one a line; if there
 *   is none, the reasons why, with what would do. It is valid until the thread's next call of this
 *   function or of `nvte_get_fused_attn_backend_v2`.
 * - `workspace_bytes`: what a query for the workspace would answer.
 *
 * The result is that of `nvte_get_fused_attn_backend_v2` for this pass alone.
 *
 * Errors: as `nvte_get_fused_attn_backend_v2`; an unknown pass.
 */
NVTE_Fused_Attn_Backend nvtex_fused_attn_query(NVTEFusedAttnConfig config,
                                               enum NVTEXAttentionPass pass,
                                               const char **implementation,
                                               const char **rejected,
                                               size_t *workspace_bytes);

/**
 * Computes attention, `O = softmax(attn_scale Q K^T + bias) V`, as the parameters describe it.
 *
 * Two calls with the same parameters:
 * - First the workspace has no data, and the pack at `Aux_CTX_Tensors`, whose tensors
 *   `nvte_tensor_pack_create` has made, has the `size` 0 (in C `NVTETensorPack pack = {0}`). The
 *   workspace and the tensors of the pack take the shapes and dtypes that they need, `size` becomes
 *   their number, and nothing runs.
 * - Then the workspace and the Stats and Max of the pack have memory, and the pass runs. The backward
 *   pass takes the pack without Max.
 *
 * Shapes:
 * - Q, K, V: those of `qkv_layout`, without the 2 or 3 of interleaved layouts. Query head j reads key
 *   head `j / (h_q / h_kv)`. Paged keys and values are `[pages, page_size, h, d]`, with page tables
 *   Int32 `[b or more, max_pages_per_seq]`. K and V of `[b, s, h, d]` or `[b, h, s, d]` may have more
 *   sequences than Q, which are not read.
 * - O: as Q, in `o_format`, with heads of as many elements as those of V.
 * - Lengths: `max_seqlen_*`; with a padding mask those that `cu_seqlens_*`, Int32 `[b + 1 or more]`,
 *   bound. The tokens of packed (THD) sequence i begin at `cu_seqlens_*_padded[i]` if that is given
 *   (also Int32 `[b + 1 or more]`), otherwise at `cu_seqlens_*[i]`. With packed queries, b is the
 *   number of elements of `cu_seqlens_q` less 1.
 * - Bias: `[1 or b, 1 or h, 1 or s_q, s_kv]`.
 *
 * Dtypes: Q, K and V Float16, BFloat16 or Float32, and O the same; or Float8E4M3 or Float8E5M2 with a
 * scale_inv, and then O in FP8 (with a scale) or of 16 or 32 bits, and S may have scale, scale_inv and
 * amax of the probabilities. The bias is read in Q's dtype whatever its handle says, or with FP8 in
 * the dtype of its handle.
 *
 * Options:
 * - Masks: scores count inside of the lengths; under a causal mask for columns up to the row; in a
 *   window from `row - window_size_left` to `row + window_size_right` (-1: unbounded). Rows are
 *   counted from the top left, or from the bottom right of a sequence's scores if the mask or
 *   `bottom_right_diagonal` says so.
 * - SoftmaxOffset: Float32, for each head one more score without a value. If it is absent and the
 *   softmax is off by one, it is 0.
 * - Dropout happens in training only and needs `rng_state`, Int64 `{seed, offset}`.
 *
 * Aux_CTX_Tensors, in this order: Stats (the natural logarithm of the sum of exponentials, Float32
 * `[b, h, s_q, 1]` or `[t_q, h, 1]`); with `return_max_logit` Max (of the same shape, the largest
 * score); and if they are used, rng_state, bias and offset, which come to point to the inputs.
 *
 * Notes:
 * - A row without a score becomes 0, its Stats and Max -Inf. So do rows past the end of a sequence;
 *   packed tokens of no sequence are not touched. If there are no rows nothing is written.
 * - Keys and values past the end of a sequence never reach a result. A NaN or infinity that only later
 *   queries see reaches no earlier query on the CPU backend; on CUDA it may reach earlier queries of
 *   the same tile of the causal or window mask.
 * - `cuda_graph` has no influence.
 *
 * Errors: sizes, dtypes and options that do not fit; null or misaligned pointers (tensors whose heads
 * are a multiple of 16 bytes are aligned to 16 bytes); what no implementation of the backend takes
 * (`nvtex_fused_attn_query` says why).
 */
void nvte_fused_attn_fwd_v2(NVTEFusedAttnFwdParams params);

/**
 * Computes attention as `nvte_fused_attn_fwd_v2` does, with the parameters as arguments. Tensors that
 * are not needed may be null.
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
 * Computes the gradients of `nvte_fused_attn_fwd_v2`, which replace what their tensors hold.
 *
 * Inputs: Q, K, V, O, dO, and the pack at `Aux_CTX_Tensors` without Max: Stats and, if they are used,
 * rng_state, bias and offset, in this order. In a pack of 4 tensors or more the offset is the fourth,
 * also if no bias is used. Dropout drops what the forward pass dropped with the same state.
 *
 * Outputs: dQ, dK and dV have the shapes of `dqkv_layout` and the dtype of Q, or with FP8 Q any dtype;
 * rows past the end of a sequence are treated as those of O in the forward pass. dBias (of the bias's
 * shape, summed where the bias is broadcast) and dSoftmaxOffset (Float32, one for each head) may be
 * absent.
 *
 * Workspace: while it has no data, the call only sets its shape and dtype.
 *
 * Notes: with `deterministic` sums are in a fixed order, as they always are on the CPU. There are no
 * gradients of paged keys and values. With FP8, S is as in the forward pass, and dP has scale,
 * scale_inv and amax of the scores' gradient.
 *
 * Errors: as `nvte_fused_attn_fwd_v2`.
 */
void nvte_fused_attn_bwd_v2(NVTEFusedAttnBwdParams params);

/**
 * Computes the gradients of attention as `nvte_fused_attn_bwd_v2` does, with the parameters as
 * arguments. Tensors that are not needed may be null.
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
