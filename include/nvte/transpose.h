#ifndef NVTE_TRANSPOSE_H
#define NVTE_TRANSPOSE_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

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
 * Dtypes: Float32, Float16, BFloat16, Float8E4M3, Float8E5M2, the same for both.
 * Empty matrices: nothing is written.
 * Errors: other dtypes or shapes; null or misaligned pointers.
 */
void nvte_transpose(NVTETensor input, NVTETensor transposed_output, cudaStream_t stream);

/**
 * Casts a tensor and its transpose in one pass over the input: `nvte_quantize` to an output that
 * has both directions.
 *
 * Errors: as `nvte_quantize`; a direction missing; `columnwise_scale_inv` at another address than
 * `scale_inv`.
 */
void nvte_cast_transpose(NVTETensor input, NVTETensor output, cudaStream_t stream);

/**
 * Transposes FP8 data and sums their columns: `transposed_output[j][i] = input[i][j]`, bit by bit, and
 * `dbias[j] = cast(sum over i of float(input[i][j]) * s)` with `s = transposed_output.scale_inv`, 1 if
 * that is absent. Sums are float32, in an order that the shape alone decides.
 *
 * A workspace without a pointer is given the shape and the dtype that the call needs, and nothing
 * else happens.
 * Shapes: `[m, n]` to `[n, m]`, row-wise data of both; dbias `[n]`.
 * Dtypes: Float8E4M3 or Float8E5M2 for both; dbias Float32, Float16 or BFloat16.
 * Empty matrices: dbias is 0.
 * Errors: other dtypes or shapes; an input without `scale_inv`; a workspace that is too small; null or
 * misaligned pointers.
 */
void nvte_fp8_transpose_dbias(NVTETensor input,
                              NVTETensor transposed_output,
                              NVTETensor dbias,
                              NVTETensor workspace,
                              cudaStream_t stream);

/**
 * Swaps the first two dimensions: `output[j][i][...] = input[i][j][...]`, bit by bit.
 *
 * Shapes: `[m, n, ...]` to `[n, m, ...]`, row-wise data of both.
 * Dtypes: any, the same for both.
 * Empty tensors: nothing is written.
 * Errors: other dtypes or shapes; Float4E2M1 in rows of part of a byte; null or misaligned pointers.
 */
void nvte_swap_first_dims(NVTETensor input,
                          NVTETensor output,
                          cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TRANSPOSE_H */
