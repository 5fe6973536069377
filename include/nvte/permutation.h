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
 * Copies the rows of tokens to the rows of their experts, or computes the gradients of
 * `nvte_unpermute`.
 *
 * Forward, without data in `input_fwd`: `sorted_row_id` lists the slots `t * topK + k` in the order of
 * their experts. For the slot at place i, `row_id_map[k, t] = i`, or -1 from `num_out_tokens` on, and
 * `output[i] = input[t]`, bit by bit. `prob` and `prob_grad` are not used.
 *
 * Gradients, with data in `input_fwd`, which is the input of `nvte_unpermute`; input holds the
 * gradients of its output, and the map is an input:
 * `output[row_id_map[k, t]] = cast(input[t] * prob[t, k])` and
 * `prob_grad[t, k] = sum over c of input[t, c] * input_fwd[row_id_map[k, t], c]`, or 0 where there is
 * no row, in float32 in a fixed order. Without `prob`, input is copied and `prob_grad` is not used.
 *
 * Shapes: input `[num_rows, num_cols]`, output and `input_fwd` `[num_out_tokens, num_cols]`,
 * `sorted_row_id` `[num_rows * topK]`, `row_id_map` `[topK, num_rows]`, `prob` and `prob_grad`
 * `[num_rows, topK]`. Larger tensors will do, and so will any number of columns and any topK. Absent
 * tensors may be null.
 *
 * Dtypes: Float32, Float16 or BFloat16 for rows; Int32 for ids; Float32 for probabilities.
 *
 * Notes: outputs may not overlap anything. Nothing is written to empty tensors.
 *
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
 * Sums the rows of the experts of each token; it is also the gradient of `nvte_permute`.
 *
 * What it computes: `output[t] = cast(sum over k of input[row_id_map[k, t]] * prob[t, k])` in float32,
 * k ascending, over those k that have a row (an id of 0 or more). Without `prob` there is no factor. A
 * token without rows becomes 0.
 *
 * Shapes, dtypes, errors: as `nvte_permute`, with an output of `[num_rows, num_cols]`.
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
 * Sorts pairs of a key and a value by their keys as unsigned numbers, ascending. Equal keys keep their
 * order, and negative keys come last.
 *
 * Two calls: with a null `temp_storage`, `*temp_storage_bytes` (on the host) becomes the number of
 * bytes that the second call needs. The second call is given that much memory on the device or more,
 * with its size in `*temp_storage_bytes`.
 *
 * Shapes: `[num_items]`, at most 2^31 - 1. The outputs may not overlap anything.
 *
 * Notes: the function takes no stream. The work runs in the default stream of the device, and no graph
 * can capture it.
 *
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
