#ifndef NVTE_BACKEND_SWIZZLE_H
#define NVTE_BACKEND_SWIZZLE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/group.h"

/**
 * A matrix of one-byte block scales for a product: `[m, k]`, a row for each row of the operand and a
 * column for each block along the contraction.
 *
 * Entry (i, j) lies at `i * k + j` in the compact order (`j * m + i` if `transposed`), and at
 * `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4` in tiles.
 */
typedef struct NVTEXSwizzleEntry {
  const void *source;
  /**
   * Memory other than the source.
   */
  void *destination;
  /**
   * A multiple of 128. Groups: this and the next three follow from the members, and are not read.
   */
  size_t m;
  /**
   * A multiple of 4.
   */
  size_t k;
  /**
   * To tiles: entries with i >= valid_m or j >= valid_k become 0.
   */
  size_t valid_m;
  size_t valid_k;
  bool transposed;
} NVTEXSwizzleEntry;

/**
 * Moves block scales from the compact order to tiles, or back.
 *
 * With a group, an entry stands for the matrices of all members, one after the other: those of the
 * row-wise scales (`transposed`: of the column-wise ones) of MXFP8 data.
 */
typedef struct NVTEXSwizzleArgs {
  /**
   * Host array; groups: at most 2.
   */
  const struct NVTEXSwizzleEntry *entries;
  size_t num_entries;
  /**
   * From tiles to the compact order, padding included.
   */
  bool unswizzle;
  /**
   * Rows of the data of the group.
   */
  size_t rows;
  size_t cols;
  NVTEXGroup group;
} NVTEXSwizzleArgs;

/**
 * Exponents of the row-wise scales of FP8 blocks as E8M0 codes of MXFP8 blocks, in tiles: all four
 * codes of 128 columns are `bits(scale) >> 23 & 0xFF`.
 */
typedef struct NVTEXScaleCodesArgs {
  /**
   * 1D: `[cols / 128][row]`; `square`: `[rows / 128][cols / 128]`.
   */
  const float *scales;
  /**
   * Tiles of `[rows, cols / 32]` codes; those of rows past the end are 0 (`square`: those of the
   * block).
   */
  void *codes;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of `scales` to the next.
   */
  size_t stride;
  bool square;
} NVTEXScaleCodesArgs;

#endif  /* NVTE_BACKEND_SWIZZLE_H */
