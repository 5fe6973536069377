#ifndef NVTE_PERMUTATION_H
#define NVTE_PERMUTATION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Copies the rows of tokens to the rows of their experts, or turns gradients of `nvte_unpermute` back.
 *
 * Without data in `input_fwd`: `sorted_row_id` lists the slots `t * topK + k` in the order of their
 * experts. Slot r at place i becomes `row_id_map[k, t] = i`, -1 from `num_out_tokens` on, and
 * `output[i] = input[t]`, bit by bit; `prob` and `prob_grad` are not used.
 * With data in `input_fwd` (the input of that forward; input holds the gradients of its output): with the
 * map as an input, `output[row_id_map[k, t]] = cast(input[t] * prob[t, k])` and
 * `prob_grad[t, k] = sum_c input[t, c] * input_fwd[row_id_map[k, t], c]`, in float32, in a fixed order;
 * 0 where there is no row. Without `prob`, input is copied and `prob_grad` is not used.
 * Shapes: input `[num_rows, num_cols]`, output `[num_out_tokens, num_cols]` (as `input_fwd`),
 * `sorted_row_id` `[num_rows * topK]`, `row_id_map` `[topK, num_rows]`, `prob`, `prob_grad` `[num_rows, topK]`;
 * larger ones serve, and any numbers of columns and topK. Absent tensors may be null. Outputs may not
 * overlap anything.
 * Dtypes: Float32, Float16 or BFloat16 for rows; Int32 for ids; Float32 for probabilities.
 * Empty tensors: nothing is written.
 * Errors: other dtypes; tensors that are too small; null or misaligned pointers.
 */
void nvte_permute(NVTETensor input,
                  NVTETensor output,
                  NVTETensor sorted_row_id,
                  NVTETensor row_id_map,
                  NVTETensor prob,
                  NVTETensor prob_grad,
                  NVTETensor input_fwd,
                  int32_t num_rows,
                  int32_t topK,
                  int32_t num_cols,
                  int32_t num_out_tokens,
                  cudaStream_t stream);

/**
 * Sums the rows of the experts of each token:
 * `output[t] = cast(sum_k input[row_id_map[k, t]] * prob[t, k])` in float32, k ascending, over those that
 * have a row (the id is 0 or more); no factor without `prob`. It is also the gradient of `nvte_permute`.
 *
 * Shapes, dtypes, errors: as `nvte_permute`; output `[num_rows, num_cols]`. A token without rows
 * becomes 0.
 */
void nvte_unpermute(NVTETensor input,
                    NVTETensor output,
                    NVTETensor row_id_map,
                    NVTETensor prob,
                    int32_t num_rows,
                    int32_t topK,
                    int32_t num_cols,
                    cudaStream_t stream);

/**
 * Sorts pairs of a key and a value by their keys as unsigned numbers, ascending; equal keys keep their
 * order. Negative keys come last.
 *
 * Two calls: with a null `temp_storage`, `*temp_storage_bytes` (on the host) becomes what the second call
 * needs; then with that much memory on the device, or more, of which the number tells.
 * There is no stream: the work is in the default stream of the device, and no graph can capture it.
 * Shapes: `[num_items]`, at most 2^31 - 1; the outputs may not overlap anything.
 * Errors: null or misaligned pointers; more items; outputs that overlap anything; too little memory.
 */
void nvte_device_radix_sort_pairs(void *temp_storage,
                                  size_t *temp_storage_bytes,
                                  int32_t *keys_in,
                                  int32_t *keys_out,
                                  int32_t *values_in,
                                  int32_t *values_out,
                                  size_t num_items);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_PERMUTATION_H */
