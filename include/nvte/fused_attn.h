#ifndef NVTE_FUSED_ATTN_H
#define NVTE_FUSED_ATTN_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
typedef const NVTETensor &NVTETensorReference;
#else
typedef const NVTETensor *NVTETensorReference;
#endif

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
 */
NVTEFusedAttnConfig nvte_create_fused_attn_config(void);

/**
 * Destroys a config of attention. Null is an error.
 */
void nvte_destroy_fused_attn_config(NVTEFusedAttnConfig config);

/**
 * Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
 * the size.
 */
void nvte_get_fused_attn_config_attribute(NVTEFusedAttnConfig config,
                                          NVTEFusedAttnConfigAttribute attr,
                                          void *buf,
                                          size_t size_in_bytes,
                                          size_t *size_written);

/**
 * Sets an attribute from `size_in_bytes` bytes at `buf`; flags are one byte. Values are checked when they
 * are used.
 */
void nvte_set_fused_attn_config_attribute(NVTEFusedAttnConfig config,
                                          NVTEFusedAttnConfigAttribute attr,
                                          const void *buf,
                                          size_t size_in_bytes);

/**
 * Creates parameters of a forward attention with defaults. Destroy with `nvte_destroy_fused_attn_fwd_params`.
 */
NVTEFusedAttnFwdParams nvte_create_fused_attn_fwd_params(void);

/**
 * Destroys parameters of a forward attention. Null is an error.
 */
void nvte_destroy_fused_attn_fwd_params(NVTEFusedAttnFwdParams params);

/**
 * Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
 * the size.
 */
void nvte_get_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params,
                                              NVTEFusedAttnFwdParamsAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * Sets an attribute from `size_in_bytes` bytes at `buf`; flags are one byte. Values are checked when they
 * are used.
 */
void nvte_set_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params,
                                              NVTEFusedAttnFwdParamsAttribute attr,
                                              const void *buf,
                                              size_t size_in_bytes);

/**
 * Creates parameters of a backward attention with defaults. Destroy with `nvte_destroy_fused_attn_bwd_params`.
 */
NVTEFusedAttnBwdParams nvte_create_fused_attn_bwd_params(void);

/**
 * Destroys parameters of a backward attention. Null is an error.
 */
void nvte_destroy_fused_attn_bwd_params(NVTEFusedAttnBwdParams params);

/**
 * Copies an attribute to `buf` and its size to `size_written` (null: nowhere). With a null `buf` only
 * the size.
 */
void nvte_get_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params,
                                              NVTEFusedAttnBwdParamsAttribute attr,
                                              void *buf,
                                              size_t size_in_bytes,
                                              size_t *size_written);

/**
 * Sets an attribute from `size_in_bytes` bytes at `buf`; flags are one byte. Values are checked when they
 * are used.
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
 * Shapes: cu_seqlens Int32 `[b + 1]`. Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same.
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
 * Shapes: cu_seqlens Int32 `[b + 1]`. Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same.
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
 * go on (page_table is then their old slots `[b]`) are moved to the front.
 * Shapes: caches `[pages, page_size, h, d]`, page_size = max_seq_len / max_pages_per_seq; new tokens
 * `[b, max_ctx_len, h, d]`, `[s, b, h, d]` or packed `[t, h, d]` (qkv_format). Dtypes: Float32, Float16, BFloat16,
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
 * Errors: other shapes or dtypes; null or misaligned pointers. Nothing is written then.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_FUSED_ATTN_H */
