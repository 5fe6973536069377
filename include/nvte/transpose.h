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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TRANSPOSE_H */
