#ifndef NVTE_BACKEND_EMBEDDING_H
#define NVTE_BACKEND_EMBEDDING_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Sorted rows that are added one after the other.
 */
#define NVTEX_ROW_SUM_PART 32

/**
 * `output[t] = cast(scale * weight[tokens[t] - start] + position_weight[p])` in float32, where p is
 * `positions[t]`, or `t % period` without them. A token whose row is not here (below `start`, or from
 * `start + rows` on) and a position that the table does not have give rows of 0.
 */
typedef struct NVTEXEmbeddingArgs {
  /**
   * `[tokens]`
   */
  const void *tokens;
  /**
   * `[rows, cols]`
   */
  const void *weight;
  /**
   * `[tokens]`, of the dtype of the tokens, or null.
   */
  const void *positions;
  /**
   * `[position_rows, cols]` of the dtype of the weight, or null.
   */
  const void *position_weight;
  /**
   * `[count, cols]`
   */
  void *output;
  /**
   * Null, or a number to which the tokens that are not in `[0, total)` and the positions that are not in
   * `[0, position_rows)` are added.
   */
  int32_t *wrong;
  size_t count;
  size_t rows;
  size_t cols;
  size_t position_rows;
  size_t start;
  size_t total;
  /**
   * At least 1.
   */
  size_t period;
  float scale;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType weight_dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType output_dtype;
  /**
   * Int32 or Int64.
   */
  NVTEDType token_dtype;
} NVTEXEmbeddingArgs;

/**
 * Keys to sort the rows of a gradient by, and the numbers of these rows: `keys[i] = indices[i] - start`, or
 * `i % period` without indices, and `rows` if that is not in `[0, rows)`; `values[i] = i`.
 */
typedef struct NVTEXRowKeysArgs {
  /**
   * `[count]`, or null.
   */
  const void *indices;
  /**
   * `[count]`
   */
  uint32_t *keys;
  /**
   * `[count]`
   */
  int32_t *values;
  size_t count;
  /**
   * Less than 2^32.
   */
  size_t rows;
  size_t start;
  /**
   * At least 1.
   */
  size_t period;
  /**
   * Int32 or Int64.
   */
  NVTEDType index_dtype;
} NVTEXRowKeysArgs;

/**
 * `output[k] = cast(output[k] + scale * sum input[values[i]])` over the i with `keys[i] = k`, for all k below
 * `rows` that are among the keys. The sum is in float32 and an order that is fixed by the keys: that of i within
 * parts of [`NVTEX_ROW_SUM_PART`] of them, then that of the parts.
 */
typedef struct NVTEXSumRowsArgs {
  /**
   * `[count, cols]`
   */
  const void *input;
  /**
   * `[count]`, ascending.
   */
  const uint32_t *keys;
  /**
   * `[count]`
   */
  const int32_t *values;
  /**
   * `[rows, cols]`
   */
  void *output;
  /**
   * `[2 * ceil(count / NVTEX_ROW_SUM_PART), cols]` floats, aligned to 16 bytes.
   */
  float *workspace;
  size_t count;
  size_t rows;
  size_t cols;
  float scale;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType output_dtype;
} NVTEXSumRowsArgs;

#endif  /* NVTE_BACKEND_EMBEDDING_H */
