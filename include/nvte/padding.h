#ifndef NVTE_PADDING_H
#define NVTE_PADDING_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Copies matrices bit by bit and adds rows of zeros: each output has the rows of its input, then zeros
 * up to `padded_num_rows_list[i]` rows.
 *
 * Shapes: inputs `[rows_i, cols_i]`, outputs `[padded_num_rows_list[i], cols_i]`. An input may have no
 * rows (then the output is all zeros), and the lists may be empty. The lists and the numbers are on
 * the host.
 *
 * Dtypes: any but Float4E2M1, the same for all.
 *
 * Errors: other shapes or dtypes; fewer rows than the input has; an output that overlaps its input;
 * null or misaligned pointers. Nothing is written if one tensor is wrong.
 */
void nvte_multi_padding(size_t num_tensors,
                        const NVTETensor *input_list,
                        NVTETensor *output_list,
                        const int32_t *padded_num_rows_list,
                        cudaStream_t stream);

/**
 * Copies the first `unpadded_num_rows_list[i]` rows of matrices, which undoes `nvte_multi_padding`.
 *
 * Shapes: inputs `[rows_i, cols_i]`, outputs `[unpadded_num_rows_list[i], cols_i]`.
 *
 * Dtypes: as `nvte_multi_padding`.
 *
 * Errors: as `nvte_multi_padding`; more rows than the input has.
 */
void nvte_multi_unpadding(size_t num_tensors,
                          const NVTETensor *input_list,
                          NVTETensor *output_list,
                          const int32_t *unpadded_num_rows_list,
                          cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_PADDING_H */
