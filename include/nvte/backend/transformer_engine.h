#ifndef NVTE_BACKEND_TRANSFORMER_ENGINE_H
#define NVTE_BACKEND_TRANSFORMER_ENGINE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Sets bytes.
 */
typedef struct NVTEXMemsetArgs {
  void *ptr;
  size_t bytes;
  uint8_t value;
} NVTEXMemsetArgs;

/**
 * One output of a prefix sum.
 */
typedef struct NVTEXOffsetsOutput {
  void *ptr;
  /**
   * `out[i] = stride * prefix(i)`, in 64-bit arithmetic that wraps.
   */
  int64_t stride;
  /**
   * Int32 (truncates) or Int64.
   */
  NVTEDType dtype;
  /**
   * The output starts with a 0 and has one entry more.
   */
  bool leading_zero;
} NVTEXOffsetsOutput;

/**
 * Prefix sums: `prefix(i) = sum of first[j] * last[j], j <= i` (`last` null: 1).
 */
typedef struct NVTEXOffsetsArgs {
  const void *first;
  const void *last;
  /**
   * Host array.
   */
  const struct NVTEXOffsetsOutput *outputs;
  size_t num_outputs;
  size_t length;
  /**
   * Int32 or Int64.
   */
  NVTEDType first_dtype;
  NVTEDType last_dtype;
} NVTEXOffsetsArgs;

#endif  /* NVTE_BACKEND_TRANSFORMER_ENGINE_H */
