#ifndef NVTE_TOPK_H
#define NVTE_TOPK_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The k greatest elements of each row, and where they are.
 *
 * Of the first `lengths_in[b]` elements of row b (of all without lengths) the k greatest, in the order
 * of their indices; of equal ones those of the lowest indices. Compared are bits: NaN without a sign is
 * greatest, with a sign least, 0 is greater than -0. A row of at most k elements comes whole, then keys
 * of -1 and indices of -1.
 * Two calls: with a workspace without a pointer its shape and dtype become what the second call
 * needs; nothing else is looked at then.
 * Shapes: `keys_in` `[batch_size, seq_len]`, `lengths_in` `[batch_size]` or without a pointer, `keys_out`,
 * `indices_out` `[batch_size, k]`; larger ones serve.
 * Dtypes: `keys_in` Float32, Float16 or BFloat16, `keys_out` is written as the same; lengths Int32;
 * indices are written as Int32. Outputs may declare other dtypes, if their bytes suffice.
 * Empty tensors: nothing is written.
 * Errors: other dtypes; tensors of too few bytes; outputs that overlap anything; null or misaligned
 * pointers.
 */
void nvte_topk(cudaStream_t stream,
               NVTETensor keys_in,
               NVTETensor lengths_in,
               NVTETensor keys_out,
               NVTETensor indices_out,
               NVTETensor workspace,
               int32_t batch_size,
               int32_t seq_len,
               int32_t k);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TOPK_H */
