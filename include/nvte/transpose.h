#ifndef NVTE_TRANSPOSE_H
#define NVTE_TRANSPOSE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Transposes a matrix: `output[j][i] = input[i][j]`, bit by bit.
 *
 * Shapes: `[m, n]` to `[n, m]`, row-wise data of both.
 *
 * Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both.
 *
 * Notes: nothing is written to empty matrices.
 *
 * Errors: other dtypes or shapes; an output that overlaps the input; null or misaligned pointers.
 */
void nvte_transpose(NVTETensor input, NVTETensor transposed_output, cudaStream_t stream);

/**
 * Casts a tensor and its transpose in one pass over the input: `nvte_quantize` to an output that has
 * both directions.
 *
 * Errors: as `nvte_quantize`; a direction missing; a `columnwise_scale_inv` at another address than
 * `scale_inv`.
 */
void nvte_cast_transpose(NVTETensor input,
                         NVTETensor output,
                         cudaStream_t stream);

/**
 * Casts `input_list[i]` and its transpose to `output_list[i]` as `nvte_cast_transpose` does, for each
 * i below `num_tensors`. The two `scale_inv` of an output may be apart.
 *
 * Errors: as `nvte_cast_transpose`, with `tensor i` in the message. If any tensor is wrong, nothing is
 * written at all.
 */
void nvte_multi_cast_transpose(size_t num_tensors,
                               const NVTETensor *input_list,
                               NVTETensor *output_list,
                               cudaStream_t stream);

/**
 * Casts a tensor and its transpose per tensor, and sums the input over its rows: `nvte_quantize_dbias`
 * to an output that has both directions.
 *
 * Errors: as `nvte_quantize_dbias` and `nvte_cast_transpose`.
 */
void nvte_cast_transpose_dbias(NVTETensor input,
                               NVTETensor output,
                               NVTETensor dbias,
                               NVTETensor workspace,
                               cudaStream_t stream);

/**
 * Transposes FP8 data and sums their columns.
 *
 * What it computes: `transposed_output[j][i] = input[i][j]`, bit by bit, and
 * `dbias[j] = cast(sum over i of float(input[i][j]) * s)` with `s = transposed_output.scale_inv`, 1 if
 * that is absent. Sums are float32, in an order that only the shape decides.
 *
 * Workspace: if it has no pointer, the call gives it the shape and the dtype that are needed, and does
 * nothing else.
 *
 * Shapes: `[m, n]` to `[n, m]`, row-wise data of both; dbias `[n]`.
 *
 * Dtypes: Float8E4M3 or Float8E5M2 for both; dbias Float32, Float16 or BFloat16.
 *
 * Notes: the dbias of an empty matrix is 0.
 *
 * Errors: other dtypes or shapes; an input without `scale_inv`; a workspace that is too small; null or
 * misaligned pointers.
 */
void nvte_fp8_transpose_dbias(NVTETensor input,
                              NVTETensor transposed_output,
                              NVTETensor dbias,
                              NVTETensor workspace,
                              cudaStream_t stream);

/**
 * Swaps the first two dimensions of a tensor: `output[j][i][...] = input[i][j][...]`, bit by bit.
 *
 * Shapes: `[m, n, ...]` to `[n, m, ...]`, row-wise data of both.
 *
 * Dtypes: any, the same for both.
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: other dtypes or shapes; Float4E2M1 whose rows are not whole bytes; an output that overlaps
 * the input; null or misaligned pointers.
 */
void nvte_swap_first_dims(NVTETensor input,
                          NVTETensor output,
                          cudaStream_t stream);

/**
 * Transposes a matrix of Float4E2M1 elements: element (k, m) of the output is element (m, k) of the
 * input. The matrix is given as bytes of two elements, the first in the low bits.
 *
 * Shapes: `[m, k / 2]` to `[k, m / 2]` bytes, m even. Dtypes: Byte.
 *
 * Notes: the output must not be the input. Nothing is written to empty matrices.
 *
 * Errors: other dtypes or shapes; null pointers.
 */
void nvte_nvfp4_data_transpose(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Computes the block scales of the transpose of an NVFP4 matrix that has one scale for each 16 x 16
 * elements: `output[r][c] = input[16 c][r / 16]` if `r / 16 < K_tiles`, otherwise 0, for all r and
 * `c < M_tiles`.
 *
 * Shapes: input `[R, C]` with `R > 16 (M_tiles - 1)` and `C >= K_tiles`; output `[any, M_tiles]` or
 * wider, of which further columns are not written. Dtypes: Byte.
 *
 * Notes: nothing is written to empty tensors.
 *
 * Errors: other dtypes or shapes; null pointers.
 */
void nvte_nvfp4_scale_transpose(NVTETensor input,
                                NVTETensor output,
                                size_t M_tiles,
                                size_t K_tiles,
                                cudaStream_t stream);

/**
 * Casts and transposes the gradient of an activation, and sums it over its rows:
 * `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
 * `nvte_gelu`.
 *
 * v is that of `nvte_quantize_dbias_dgelu`.
 */
void nvte_cast_transpose_dbias_dgelu(NVTETensor input,
                                     NVTETensor act_input,
                                     NVTETensor output,
                                     NVTETensor dbias,
                                     NVTETensor workspace,
                                     cudaStream_t stream);

/**
 * Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
 * `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
 * `nvte_gelu`.
 *
 * Shapes: input `[..., n]`, act_input and the output `[..., 2 n]`.
 *
 * Dtypes: Float32, Float16, BFloat16, the same for both inputs; output as for `nvte_quantize`.
 *
 * Errors: as `nvte_cast_transpose`; inputs that do not fit each other.
 */
void nvte_dgeglu_cast_transpose(NVTETensor input,
                                NVTETensor act_input,
                                NVTETensor output,
                                cudaStream_t stream);

/**
 * Casts and transposes the gradient of an activation, and sums it over its rows:
 * `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
 * `nvte_silu`.
 *
 * Otherwise as `nvte_cast_transpose_dbias_dgelu`.
 */
void nvte_cast_transpose_dbias_dsilu(NVTETensor input,
                                     NVTETensor act_input,
                                     NVTETensor output,
                                     NVTETensor dbias,
                                     NVTETensor workspace,
                                     cudaStream_t stream);

/**
 * Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
 * `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
 * `nvte_silu`.
 *
 * Otherwise as `nvte_dgeglu_cast_transpose`.
 */
void nvte_dswiglu_cast_transpose(NVTETensor input,
                                 NVTETensor act_input,
                                 NVTETensor output,
                                 cudaStream_t stream);

/**
 * Casts and transposes the gradient of an activation, and sums it over its rows:
 * `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
 * `nvte_relu`.
 *
 * Otherwise as `nvte_cast_transpose_dbias_dgelu`.
 */
void nvte_cast_transpose_dbias_drelu(NVTETensor input,
                                     NVTETensor act_input,
                                     NVTETensor output,
                                     NVTETensor dbias,
                                     NVTETensor workspace,
                                     cudaStream_t stream);

/**
 * Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
 * `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
 * `nvte_relu`.
 *
 * Otherwise as `nvte_dgeglu_cast_transpose`.
 */
void nvte_dreglu_cast_transpose(NVTETensor input,
                                NVTETensor act_input,
                                NVTETensor output,
                                cudaStream_t stream);

/**
 * Casts and transposes the gradient of an activation, and sums it over its rows:
 * `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
 * `nvte_qgelu`.
 *
 * Otherwise as `nvte_cast_transpose_dbias_dgelu`.
 */
void nvte_cast_transpose_dbias_dqgelu(NVTETensor input,
                                      NVTETensor act_input,
                                      NVTETensor output,
                                      NVTETensor dbias,
                                      NVTETensor workspace,
                                      cudaStream_t stream);

/**
 * Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
 * `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
 * `nvte_qgelu`.
 *
 * Otherwise as `nvte_dgeglu_cast_transpose`.
 */
void nvte_dqgeglu_cast_transpose(NVTETensor input,
                                 NVTETensor act_input,
                                 NVTETensor output,
                                 cudaStream_t stream);

/**
 * Casts and transposes the gradient of an activation, and sums it over its rows:
 * `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
 * `nvte_srelu`.
 *
 * Otherwise as `nvte_cast_transpose_dbias_dgelu`.
 */
void nvte_cast_transpose_dbias_dsrelu(NVTETensor input,
                                      NVTETensor act_input,
                                      NVTETensor output,
                                      NVTETensor dbias,
                                      NVTETensor workspace,
                                      cudaStream_t stream);

/**
 * Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
 * `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
 * `nvte_srelu`.
 *
 * Otherwise as `nvte_dgeglu_cast_transpose`.
 */
void nvte_dsreglu_cast_transpose(NVTETensor input,
                                 NVTETensor act_input,
                                 NVTETensor output,
                                 cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TRANSPOSE_H */
