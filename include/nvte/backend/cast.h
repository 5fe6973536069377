#ifndef NVTE_BACKEND_CAST_H
#define NVTE_BACKEND_CAST_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/function.h"
#include "nvte/backend/group.h"

/**
 * Cast of the elements v of a `[rows, cols]` matrix, by scaling mode. Without a fusion v is the
 * input x; else, in modes 1 to 3, v is rounded to the input's dtype first.
 *
 * Per tensor (mode 0): `y = cast(x * scale)` for FP8 outputs, `y = cast(x)` otherwise; `amax =
 * max(amax, max|x|)` (NaN ignored); `scale_inv = 1 / scale`.
 *
 * FP8 blocks (modes 2 and 3): each block of 128 elements (1D: of a row for row-wise data, of a column
 * for column-wise data; 2D: 128 x 128) has `a = max(max|x|, epsilon)`, `s = fp8_max / a` (1 if `a` is
 * 0, Inf or NaN; an infinite quotient becomes the largest finite value of the input dtype; with `pow2`
 * the mantissa is cleared), `y = cast(x * s)` and `scale_inv = 1 / s`, a float. Scale matrices:
 * 1D row-wise `[cols / 128][row]`, column-wise `[rows / 128][col]`;
 * 2D row-wise `[rows / 128][cols / 128]`, column-wise `[cols / 128][rows / 128]`.
 *
 * MXFP8 (mode 1): blocks of 32 (of a row, of a column, or 32 x 32 with `square_blocks`) with the E8M0
 * code `e = e8m0(max|x| / fp8_max)`, rounded up, and `y = cast(x * 2^(127 - e))`. Codes: row-wise
 * `[row][cols / 32]`, column-wise `[rows / 32][col]`, or with `swizzled` in tiles of 128 x 4; padding up
 * to multiples of 128 and 4 is set to 0.
 *
 * Other structs have it inside of them: it never grows.
 */
typedef struct NVTEXCast {
  /**
   * `[rows, cols]` (see [`Form`]), F32, F16 or BF16.
   */
  const void *input;
  /**
   * `[rows, cols]`, or null.
   */
  void *rowwise;
  /**
   * `[cols, rows]` (MXFP8: `[rows, cols]`), or null.
   */
  void *colwise;
  /**
   * Mode 0: one float (groups: one per member), or null for 1. Read only if the output is FP8.
   */
  const float *scale;
  /**
   * Modes 0 and 1: one non-negative float, accumulated with integer max, or null (groups: null).
   */
  float *amax;
  /**
   * Mode 0: one float each, or null (groups: null). Else the scale matrix of each direction that is written.
   */
  void *rowwise_scale_inv;
  void *colwise_scale_inv;
  /**
   * One float, or null: exactly 1 means that nothing may be written.
   */
  const float *noop;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of a scale matrix to the next; 0 in mode 0.
   */
  size_t rowwise_scale_stride;
  size_t colwise_scale_stride;
  /**
   * Modes 2 and 3.
   */
  float epsilon;
  NVTEScalingMode mode;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  /**
   * E4M3 or E5M2; in mode 0 also F32, F16 and BF16.
   */
  NVTEDType output_dtype;
  /**
   * Modes 2 and 3.
   */
  bool pow2;
  /**
   * Mode 1.
   */
  bool square_blocks;
  /**
   * Mode 1.
   */
  bool swizzled;
  NVTEXFusion fusion;
  /**
   * The members of the output, and those of the input.
   */
  NVTEXGroup group;
} NVTEXCast;

/**
 * A cast by itself, see [`Cast`].
 */
typedef struct NVTEXQuantizeArgs {
  struct NVTEXCast cast;
} NVTEXQuantizeArgs;

/**
 * `y = cast(float(x) * scale_inv)` of `[rows, cols]`, with scales as [`Cast`] describes
 * them. With `colwise` the input are column-wise data: `[cols, rows]` (MXFP8: `[rows, cols]`).
 */
typedef struct NVTEXDequantizeArgs {
  const void *input;
  void *output;
  /**
   * Mode 0: one float (groups: one per member). Else the scale matrix of the direction that is read.
   */
  const void *scale_inv;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of the scale matrix to the next; 0 in mode 0 and for groups.
   */
  size_t scale_stride;
  NVTEScalingMode mode;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType input_dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType output_dtype;
  bool colwise;
  /**
   * Mode 1.
   */
  bool swizzled;
  /**
   * The members of input and output.
   */
  NVTEXGroup group;
} NVTEXDequantizeArgs;

/**
 * Row-wise MXFP8 data to column-wise ones, for groups of whole rows.
 *
 * `v = float(input) * 2^(code - 127)`, rounded to BF16 with `through_bf16`; `dequantized = bf16(v)`;
 * `colwise` and its codes as [`Cast`] has them for an input v. Codes of both directions are in
 * tiles of 128 x 4: of the row-wise ones, which are copied, as of one matrix; of the column-wise ones,
 * group by group. Rows from `offsets[num_groups]` on are not touched.
 */
typedef struct NVTEXRequantizeArgs {
  /**
   * `[rows, cols]`, aligned to 16 bytes, as are `colwise` and `dequantized`.
   */
  const void *input;
  /**
   * `[row][cols / 32]`
   */
  const uint8_t *codes;
  /**
   * `[rows, cols]`, E4M3.
   */
  void *colwise;
  uint8_t *rowwise_codes;
  uint8_t *colwise_codes;
  /**
   * `[rows, cols]`, BF16, or null.
   */
  void *dequantized;
  /**
   * First element of each group and the end, on the device: multiples of `128 * cols`, ascending.
   */
  const int64_t *offsets;
  size_t num_groups;
  /**
   * Multiples of 128.
   */
  size_t rows;
  size_t cols;
  /**
   * Codes from one row to the next.
   */
  size_t code_stride;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType input_dtype;
  bool through_bf16;
} NVTEXRequantizeArgs;

#endif  /* NVTE_BACKEND_CAST_H */
