#ifndef NVTE_BACKEND_PERMUTATION_H
#define NVTE_BACKEND_PERMUTATION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Where the rows go: for `i < slots`, with `r = sorted[i]`,
 * `map[r % topk * tokens + r / topk] = i < rows ? i : -1`. An r that is not below `slots` is left out.
 */
typedef struct NVTEXRowMapArgs {
  const int32_t *sorted;
  /**
   * `[topk, tokens]`
   */
  int32_t *map;
  size_t tokens;
  size_t topk;
  size_t rows;
} NVTEXRowMapArgs;

/**
 * `output[map[k, t]] = x` for all k and t, unless `map[k, t]` is not below `rows`, with
 * `x = input[t]`, or `input[t] * probs[t, k]` in float32. With `forward`, also
 * `prob_grads[t, k] = sum_c input[t, c] * forward[map[k, t], c]` in float32, in a fixed order; 0
 * without a row.
 */
typedef struct NVTEXPermuteArgs {
  /**
   * `[tokens, cols]`
   */
  const void *input;
  /**
   * `[rows, cols]`
   */
  void *output;
  /**
   * `[topk, tokens]`
   */
  const int32_t *map;
  /**
   * `[tokens, topk]`, or null.
   */
  const float *probs;
  /**
   * `[tokens, topk]`; null without `forward`.
   */
  float *prob_grads;
  /**
   * `[rows, cols]`, or null; null without probs.
   */
  const void *forward;
  size_t tokens;
  size_t topk;
  size_t cols;
  size_t rows;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXPermuteArgs;

/**
 * `output[t] = cast(sum_k input[map[k, t]] * probs[t, k])` in float32, k ascending, over those that
 * have a row below `rows`; the probabilities are 1 if null.
 */
typedef struct NVTEXUnpermuteArgs {
  /**
   * `[rows, cols]`
   */
  const void *input;
  /**
   * `[tokens, cols]`
   */
  void *output;
  /**
   * `[topk, tokens]`
   */
  const int32_t *map;
  /**
   * `[tokens, topk]`, or null.
   */
  const float *probs;
  size_t tokens;
  size_t topk;
  size_t cols;
  size_t rows;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXUnpermuteArgs;

/**
 * Sorts pairs by their keys as unsigned numbers, ascending; equal ones keep their order.
 */
typedef struct NVTEXSortPairsArgs {
  /**
   * Null: only `*workspace_bytes` is written.
   */
  void *workspace;
  /**
   * What the sort of as many pairs needs, not 0; not read.
   */
  size_t *workspace_bytes;
  const uint32_t *keys;
  uint32_t *sorted_keys;
  const int32_t *values;
  int32_t *sorted_values;
  size_t pairs;
  /**
   * Bits of the keys from the lowest on that may differ from 0, at most 32; 0: all of them. A hint, by which fewer
   * passes suffice. The size of the workspace does not depend on it.
   */
  uint32_t key_bits;
} NVTEXSortPairsArgs;

#endif  /* NVTE_BACKEND_PERMUTATION_H */
