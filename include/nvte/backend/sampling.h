#ifndef NVTE_BACKEND_SAMPLING_H
#define NVTE_BACKEND_SAMPLING_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * One token for each row of logits x, drawn among the kept ones with probabilities that are proportional to
 * integer weights: 2^31 for the maximum m of the row, `floor(exp((x - m) / temperature) * 2^31)` for others; NaN
 * counts as -Inf.
 *
 * Kept are the `top_k` greatest, and of these, in descending order, the first whose weights come to at least
 * `ceil(top_p * W)`, W being the sum of the `top_k`; of equal logits those of the lowest indices come first.
 *
 * The draw: words 0 and 1 of Philox 4x32-10 with the seed as key and the counter `offset + 2^64 row` are the low and
 * the high half of r. With the sum S of the kept weights, the token is the first in the order of indices at which
 * the sum of kept weights exceeds `floor(r S / 2^64)`.
 */
typedef struct NVTEXSampleTokensArgs {
  /**
   * `[rows, cols]`
   */
  const void *logits;
  /**
   * `[rows]`
   */
  int32_t *tokens;
  /**
   * Seed and offset.
   */
  const uint64_t *rng_state;
  size_t rows;
  /**
   * Less than 2^31.
   */
  size_t cols;
  /**
   * 1 to `cols`.
   */
  size_t top_k;
  /**
   * Above 0.
   */
  float temperature;
  /**
   * Above 0, at most 1.
   */
  float top_p;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXSampleTokensArgs;

#endif  /* NVTE_BACKEND_SAMPLING_H */
