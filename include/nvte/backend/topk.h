#ifndef NVTE_BACKEND_TOPK_H
#define NVTE_BACKEND_TOPK_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Elements of a row whose chosen ones are counted together.
 */
#define NVTEX_TOPK_CHUNK 8192

/**
 * Bytes of the workspace for each row, and as many again as `2 * 4` for each of its chunks.
 */
#define NVTEX_TOPK_ROW_BYTES (8192 + 16)

/**
 * Of each row, the `k` greatest of its first elements, in the order of their indices; of equal ones
 * those of the lowest indices. Their order is that of the bits: NaN without a sign above all, 0 above -0, NaN
 * with a sign below all. A row of at most k elements comes whole, with keys of -1 and indices of -1
 * after it.
 */
typedef struct NVTEXTopkArgs {
  /**
   * `[rows, cols]`
   */
  const void *keys;
  /**
   * `[rows]`: how many elements of each row count, moved to `[0, cols]`; null for all.
   */
  const int32_t *lengths;
  /**
   * `[rows, k]`
   */
  void *top_keys;
  /**
   * `[rows, k]`
   */
  int32_t *top_indices;
  /**
   * `rows * (NVTEX_TOPK_ROW_BYTES + 8 * chunks)` bytes, of `ceil(cols / NVTEX_TOPK_CHUNK)` chunks, aligned
   * to 16.
   */
  void *workspace;
  size_t rows;
  size_t cols;
  size_t k;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXTopkArgs;

#endif  /* NVTE_BACKEND_TOPK_H */
