#ifndef NVTE_BACKEND_TRANSPOSE_H
#define NVTE_BACKEND_TRANSPOSE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Bit copy `output[c][r] = input[r][c]` of a `[rows, cols]` matrix.
 */
typedef struct NVTEXTransposeArgs {
  const void *input;
  void *output;
  const float *noop;
  size_t rows;
  size_t cols;
  /**
   * 1, 2 or 4 bytes.
   */
  size_t element_size;
} NVTEXTransposeArgs;

/**
 * Swap of the first two dimensions: `output[j][i] = input[i][j]` of rows of bytes.
 */
typedef struct NVTEXSwapFirstDimsArgs {
  /**
   * `[first, second, row_bytes]`
   */
  const void *input;
  /**
   * `[second, first, row_bytes]`
   */
  void *output;
  size_t first;
  size_t second;
  size_t row_bytes;
} NVTEXSwapFirstDimsArgs;

/**
 * Transpose of an FP8 matrix with the sums of its columns: `output[c][r] = input[r][c]`, bit by bit,
 * and `dbias[c] = cast(sum over r of float(input[r][c]) * scale_inv)`, products rounded to float32 and
 * added in the order of [`Fusion::dbias`], each sum from 0 on.
 */
typedef struct NVTEXTransposeDbiasArgs {
  /**
   * `[rows, cols]`
   */
  const void *input;
  /**
   * `[cols, rows]`
   */
  void *output;
  /**
   * One float, or null for 1.
   */
  const float *scale_inv;
  /**
   * `[cols]`
   */
  void *dbias;
  /**
   * `rows.div_ceil(128) * cols` floats.
   */
  float *workspace;
  /**
   * May be 0.
   */
  size_t rows;
  size_t cols;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dbias_dtype;
} NVTEXTransposeDbiasArgs;

/**
 * Transpose of a matrix of 4-bit elements, two in a byte, the first in the low bits.
 */
typedef struct NVTEXNvfp4TransposeArgs {
  /**
   * `[rows, cols / 2]` bytes.
   */
  const void *input;
  /**
   * `[cols, rows / 2]` bytes.
   */
  void *output;
  /**
   * Even.
   */
  size_t rows;
  /**
   * Even.
   */
  size_t cols;
} NVTEXNvfp4TransposeArgs;

/**
 * Scales of the transpose of a matrix that has one scale for each 16 x 16:
 * `output[r][c] = r / 16 < row_tiles ? input[16 c][r / 16] : 0` for `r < rows` and `c < cols`.
 */
typedef struct NVTEXNvfp4ScaleTransposeArgs {
  /**
   * Bytes, `16 * cols - 15` rows of at least `row_tiles`.
   */
  const void *input;
  /**
   * Bytes, `rows` rows of at least `cols`, the rest of which is not written.
   */
  void *output;
  size_t rows;
  size_t cols;
  size_t row_tiles;
  /**
   * Bytes from one row to the next.
   */
  size_t input_stride;
  size_t output_stride;
} NVTEXNvfp4ScaleTransposeArgs;

#endif  /* NVTE_BACKEND_TRANSPOSE_H */
