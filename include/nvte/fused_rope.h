#ifndef NVTE_FUSED_ROPE_H
#define NVTE_FUSED_ROPE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Rotates pairs of elements of each head by the angles of its position (rotary embedding).
 *
 * What it computes: `y_j = x_j cos(a_j) - x_p sin(a_j)` and `y_p = x_p cos(a_p) + x_j sin(a_p)`, for
 * `j < d2 / 2` with `p = j + d2 / 2`, or with `interleaved` for even j with `p = j + 1`. Elements from
 * d2 on are copied. The angles a (radians) of position i of sequence n are row
 * `i + start_positions[n]` of freqs (without start positions: row i).
 *
 * Context parallelism: with `cp_size > 1` a rank has the chunks `cp_rank` and
 * `2 * cp_size - 1 - cp_rank` of the `2 * cp_size` equal chunks of each sequence, one after the other.
 *
 * Shapes: by format `NVTE_SBHD` `[s, b, h, d]`, `NVTE_BSHD` `[b, s, h, d]`, or `NVTE_THD` `[t, h, d]`,
 * where sequence n has the tokens from `cu_seqlens[n] / cp_size` to `cu_seqlens[n + 1] / cp_size`
 * (tokens of no sequence are not written). The strides are those of the input, in elements, and not
 * negative (`NVTE_THD` ignores `stride_b`). The output is contiguous, and may be the input if that is
 * contiguous, too. freqs is `[S_max, 1, 1, d2]` and has every row that is asked for; `cu_seqlens`
 * `[b + 1 or more]`; `start_positions` `[b or more]`, or no data for none.
 *
 * Dtypes: Float32, Float16 or BFloat16, the same for both; freqs Float32; cu_seqlens and
 * start_positions Int32.
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: other dtypes, formats or sizes; a d2 that is odd or too large; odd s with `cp_size > 1`;
 * null or misaligned pointers.
 *
 * Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
 */
void nvte_fused_rope_forward(NVTETensor input,
                             NVTETensor cu_seqlens,
                             NVTETensor freqs,
                             NVTETensor start_positions,
                             NVTETensor output,
                             NVTE_QKV_Format qkv_format,
                             bool interleaved,
                             int32_t cp_size,
                             int32_t cp_rank,
                             int32_t s,
                             int32_t b,
                             int32_t h,
                             int32_t d,
                             int32_t d2,
                             int32_t stride_s_or_t,
                             int32_t stride_b,
                             int32_t stride_h,
                             int32_t stride_d,
                             cudaStream_t stream);

/**
 * Computes the gradients of `nvte_fused_rope_forward`: `dx_j = dy_j cos(a_j) + dy_p sin(a_p)` and
 * `dx_p = dy_p cos(a_p) - dy_j sin(a_j)`. The strides are those of `output_grads`; all else is as in
 * the forward pass.
 */
void nvte_fused_rope_backward(NVTETensor output_grads,
                              NVTETensor cu_seqlens,
                              NVTETensor freqs,
                              NVTETensor start_positions,
                              NVTETensor input_grads,
                              NVTE_QKV_Format qkv_format,
                              bool interleaved,
                              int32_t cp_size,
                              int32_t cp_rank,
                              int32_t s,
                              int32_t b,
                              int32_t h,
                              int32_t d,
                              int32_t d2,
                              int32_t stride_s_or_t,
                              int32_t stride_b,
                              int32_t stride_h,
                              int32_t stride_d,
                              cudaStream_t stream);

/**
 * Splits groups of heads into queries, keys and values, and rotates queries and keys as
 * `nvte_fused_rope_forward` does, each by its own freqs (without data in freqs they are copied).
 *
 * Shapes: `qkv_input` contiguous `[s, b, h, q + k + v]` (`NVTE_SBHD`) or `[b, s, h, q + k + v]`
 * (`NVTE_BSHD`), with h groups of q, k and v elements (`qkv_split_arg_list_0`, `_1`, `_2`, multiples
 * of d); `q_out` contiguous `[.., .., h * q / d, d]`, `k_out` and `v_out` likewise. `start_positions`
 * are added with any `cp_size`.
 *
 * Dtypes, errors: as `nvte_fused_rope_forward`; `NVTE_THD` is not supported.
 */
void nvte_fused_qkv_rope_forward(NVTETensor qkv_input,
                                 NVTETensor q_freqs,
                                 NVTETensor k_freqs,
                                 NVTETensor start_positions,
                                 NVTETensor q_out,
                                 NVTETensor k_out,
                                 NVTETensor v_out,
                                 NVTE_QKV_Format qkv_format,
                                 bool interleaved,
                                 int32_t cp_size,
                                 int32_t cp_rank,
                                 int32_t s,
                                 int32_t b,
                                 int32_t h,
                                 int32_t d,
                                 int32_t d2,
                                 int32_t qkv_split_arg_list_0,
                                 int32_t qkv_split_arg_list_1,
                                 int32_t qkv_split_arg_list_2,
                                 cudaStream_t stream);

/**
 * Computes the gradients of `nvte_fused_qkv_rope_forward` without start positions, gathered in
 * `qkv_grad_input`, all of whose elements are written.
 */
void nvte_fused_qkv_rope_backward(NVTETensor q_grad_out,
                                  NVTETensor k_grad_out,
                                  NVTETensor v_grad_out,
                                  NVTETensor q_freqs,
                                  NVTETensor k_freqs,
                                  NVTETensor qkv_grad_input,
                                  NVTE_QKV_Format qkv_format,
                                  bool interleaved,
                                  int32_t cp_size,
                                  int32_t cp_rank,
                                  int32_t s,
                                  int32_t b,
                                  int32_t h,
                                  int32_t d,
                                  int32_t d2,
                                  int32_t qkv_split_arg_list_0,
                                  int32_t qkv_split_arg_list_1,
                                  int32_t qkv_split_arg_list_2,
                                  cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_FUSED_ROPE_H */
