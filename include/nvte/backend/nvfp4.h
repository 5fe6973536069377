#ifndef NVTE_BACKEND_NVFP4_H
#define NVTE_BACKEND_NVFP4_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Which kernels an operator has in the reference: their order of random words and their rules for
 * numbers that are not finite.
 *
 * The words of the 16 elements of a block are those of one call of Philox 4x32-10 with the seed as key
 * and the counter `offset + call + 2^64 sequence`; `random_call` of the CPU backend gives call and
 * sequence of a block.
 */
enum NVTEXNvfp4Variant
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  NVTEX_NVFP4_TUNED = 0,
  NVTEX_NVFP4_SQUARE = 1,
  NVTEX_NVFP4_GENERAL = 2,
  NVTEX_NVFP4_HADAMARD_COLUMNS = 3,
  NVTEX_NVFP4_HADAMARD = 4,
  NVTEX_NVFP4_HADAMARD_GROUP = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum NVTEXNvfp4Variant NVTEXNvfp4Variant;
#else
typedef int32_t NVTEXNvfp4Variant;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How each block takes 4 or 6 as the magnitude of its largest element.
 */
enum NVTEXNvfp4Choice
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Always 6.
   */
  NVTEX_NVFP4_SIX = 0,
  /**
   * By the sum of absolute errors.
   */
  NVTEX_NVFP4_LEAST_ABSOLUTE = 1,
  /**
   * By the sum of squared errors.
   */
  NVTEX_NVFP4_LEAST_SQUARES = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum NVTEXNvfp4Choice NVTEXNvfp4Choice;
#else
typedef int32_t NVTEXNvfp4Choice;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * One direction of an NVFP4 matrix: its lines are the rows, or for column-wise data the columns.
 */
typedef struct NVTEXNvfp4Lines {
  /**
   * E2M1 codes of the lines, one after the other, the first of two in the lower half of a byte; null:
   * the direction is not written. Lines have an even number of elements.
   */
  void *data;
  /**
   * E4M3, one for each 16 elements of a line; padding is not touched.
   */
  void *scales;
  /**
   * One float: the largest magnitude of the matrix, or of each member of a group; null: the global
   * scale is 1. With `scaled_lines` one float for each line, which the cast sets first.
   */
  float *amax;
  /**
   * Scales from one line to the next; in tiles of 128 x 4 that rounded up to a multiple of 4.
   */
  size_t scale_stride;
} NVTEXNvfp4Lines;

/**
 * Cast of a `[rows, cols]` matrix x to NVFP4, in blocks of 16 elements of a row (row-wise) or of a
 * column (column-wise, stored transposed), or with `square` of 16 x 16.
 *
 * `S = min(6 e4m3_max / amax, FLT_MAX)`, 1 if `amax` or that is 0; a block with the largest magnitude b
 * has the scale `s = e4m3(min(b * (S / 6), FLT_MAX))`, its elements the codes `e2m1(x * q)` with
 * `q = min(1 / (s * (1 / S)), FLT_MAX)`, each operation rounded to float32, S / 6 as a product with the
 * rounded sixth. NaN do not count as magnitudes.
 *
 * With `fast_math` q is `bf16(min(S / s, bf16_max))` (the variant TUNED; HADAMARD: see there).
 * A choice other than SIX: `base = (b / 6) * S`, candidates `s6 = e4m3(base)` and `s4 = e4m3(1.5 base)`;
 * s4 is taken if the error of the dequantized block (`fast_error`: times S) is less.
 * `stochastic`: instead of nearest, `e2m1` rounds y to neighbours by a random byte u of the block's words:
 * `floor((|y| + u / 256 * d) / d) * d`, at most 6, with d = 2, 1 or 1/2 from 4, from 2 and below.
 *
 * With `hadamard`, a BF16 matrix H `[16, 16]`, column-wise blocks have `sum over k of x[k] * H[k][n]` in
 * place of x[n], rounded to BF16 unless `fast_math`: products are added in pairs, pairs of these, and so
 * on. In its variants a NaN makes its block NaN (0x7F, codes 7), HADAMARD_COLUMNS has the scale NaN
 * for `amax` NaN, the others 1 for an `amax` that is not positive and 0 for Inf.
 *
 * Groups (`offsets` is not null): member t has the rows from `offsets[t] / cols` to `offsets[t + 1] /
 * cols`; column-wise data of it begin at byte `offsets[t] / 2` and scales at `offsets[t] / 16`, as those
 * of a lone matrix; row-wise ones are as of one matrix. Rows past the last are not touched.
 */
typedef struct NVTEXNvfp4QuantizeArgs {
  /**
   * `[rows, cols]`, F32, F16 or BF16.
   */
  const void *input;
  struct NVTEXNvfp4Lines rowwise;
  struct NVTEXNvfp4Lines colwise;
  /**
   * One float, or null: exactly 1 means that nothing may be written.
   */
  const float *noop;
  /**
   * `[16, 16]`, BF16, or null.
   */
  const void *hadamard;
  /**
   * Seed and offset; null for zeros.
   */
  const uint64_t *rng_state;
  /**
   * `num_tensors + 1` entries on the device, multiples of `128 * cols`, ascending from 0; or null.
   */
  const int64_t *offsets;
  size_t num_tensors;
  size_t rows;
  size_t cols;
  /**
   * For the random words: rows before this matrix in one that was split, and rows of that.
   */
  size_t first_row;
  size_t total_rows;
  NVTEDType input_dtype;
  /**
   * 448 or 256.
   */
  float e4m3_max;
  NVTEXNvfp4Variant variant;
  NVTEXNvfp4Choice choice;
  bool fast_error;
  bool scaled_lines;
  bool square;
  /**
   * Scales in tiles of 128 lines and 4 blocks.
   */
  bool swizzled;
  bool fast_math;
  bool stochastic;
} NVTEXNvfp4QuantizeArgs;

/**
 * `y = cast(value * f)` of `[rows, cols]` in row-wise blocks, with `f = scale * amax * (1 / (6
 * e4m3_max))`, multiplied from the left, each operation rounded to float32.
 */
typedef struct NVTEXNvfp4DequantizeArgs {
  struct NVTEXNvfp4Lines input;
  void *output;
  size_t rows;
  /**
   * A multiple of 16.
   */
  size_t cols;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType output_dtype;
  float e4m3_max;
  /**
   * One amax for each row.
   */
  bool scaled_lines;
  bool swizzled;
} NVTEXNvfp4DequantizeArgs;

#endif  /* NVTE_BACKEND_NVFP4_H */
