#ifndef NVTE_BACKEND_HADAMARD_TRANSFORM_H
#define NVTE_BACKEND_HADAMARD_TRANSFORM_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/group.h"

/**
 * The transform of 16 numbers x is `y[n] = sum over k of s[k] x[k] (-1)^popcount(k & n) / 4`, where
 * `s[k]` is -1 if bit k of `sign_mask` is set, else 1: four steps of sums and differences in float32,
 * of neighbours first.
 *
 * `output[c][16 i + n] = cast(y[n])` of the elements x of column c in rows 16 i to 16 i + 15.
 */
typedef struct NVTEXHadamardArgs {
  /**
   * `[rows, cols]`, BF16.
   */
  const void *input;
  /**
   * `[cols, rows]`, BF16.
   */
  void *output;
  /**
   * A multiple of 16.
   */
  size_t rows;
  /**
   * A multiple of 16.
   */
  size_t cols;
  uint32_t sign_mask;
} NVTEXHadamardArgs;

/**
 * Some rows of a matrix, and where their maxima go. Either pointer may be null.
 */
typedef struct NVTEXHadamardMember {
  /**
   * A multiple of 16; may be 0.
   */
  size_t rows;
  float *amax;
  float *colwise_amax;
} NVTEXHadamardMember;

/**
 * For each member of a matrix: `amax = max|x|`, and `colwise_amax` that of its transform, rounded to
 * BF16, as [`HadamardArgs`] describes it; without `transform` the same as `amax`. NaN is ignored; 0 for
 * a member without elements.
 */
typedef struct NVTEXHadamardAmaxArgs {
  /**
   * `[rows, cols]`, BF16.
   */
  const void *input;
  /**
   * A multiple of 16; may be 0.
   */
  size_t rows;
  /**
   * A multiple of 16; may be 0.
   */
  size_t cols;
  uint32_t sign_mask;
  bool transform;
  /**
   * Host array of members that follow each other, or null: then those of `group`.
   */
  const struct NVTEXHadamardMember *members;
  size_t num_members;
  /**
   * Members of whole rows, in multiples of 16.
   */
  NVTEXGroup group;
  /**
   * One for each member of `group`, or null.
   */
  float *amax;
  float *colwise_amax;
} NVTEXHadamardAmaxArgs;

#endif  /* NVTE_BACKEND_HADAMARD_TRANSFORM_H */
