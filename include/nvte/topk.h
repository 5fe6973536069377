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
 * Finds the k greatest elements of each row, and where they are.
 *
 * What it computes: of the first `lengths_in[b]` elements of row b (of all elements without lengths)
 * the k greatest, in the order of their indices; of equal ones those with the lowest indices. Bits are
 * compared: NaN without a sign is greatest, NaN with a sign least, and 0 is greater than -0. A row of
 * at most k elements comes whole, followed by keys of -1 and indices of -1.
 *
 * Workspace: if it has no pointer, its shape and dtype become what the second call needs; nothing else
 * is looked at then.
 *
 * Shapes: `keys_in` `[batch_size, seq_len]`; `lengths_in` `[batch_size]` or without a pointer;
 * `keys_out` and `indices_out` `[batch_size, k]`. Larger tensors will do.
 *
 * Dtypes: `keys_in` Float32, Float16 or BFloat16; `keys_out` is written as the same; lengths Int32;
 * indices are written as Int32. Outputs may declare other dtypes if they have enough bytes.
 *
 * Notes: nothing is written to empty tensors.
 *
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
