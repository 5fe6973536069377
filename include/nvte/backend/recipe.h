#ifndef NVTE_BACKEND_RECIPE_H
#define NVTE_BACKEND_RECIPE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/group.h"

/**
 * Which amax of the history sets the scale.
 */
typedef enum NVTEXAmaxAlgo {
  NVTEX_AMAX_ALGO_MAX = 0,
  NVTEX_AMAX_ALGO_MOST_RECENT = 1,
} NVTEXAmaxAlgo;

/**
 * `amax = max|x|` over `numel` elements (0 for none; NaN ignored).
 */
typedef struct NVTEXAmaxArgs {
  const void *input;
  float *amax;
  const float *noop;
  /**
   * May be 0.
   */
  size_t numel;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXAmaxArgs;

/**
 * `a = max(amax, epsilon)`; `scale = fp8_max / a`, 1 if `a` is 0, Inf or NaN; an infinite quotient
 * becomes the largest float; with `pow2` the mantissa is cleared.
 */
typedef struct NVTEXScaleFromAmaxArgs {
  const float *amax;
  float *scale;
  const float *noop;
  float fp8_max;
  float epsilon;
  bool pow2;
  /**
   * Values in each array.
   */
  size_t length;
  /**
   * `1 / scale`, or null.
   */
  float *scale_inv;
  /**
   * `1 / scale` once more, or null.
   */
  float *colwise_scale_inv;
} NVTEXScaleFromAmaxArgs;

/**
 * One tensor of a delayed-scaling update; in place if the outputs equal the inputs.
 */
typedef struct NVTEXDelayedScalingEntry {
  /**
   * `[length, num_scales]`, row 0 is the newest.
   */
  const float *history;
  const float *scale;
  float *new_history;
  float *new_scale;
  size_t num_scales;
} NVTEXDelayedScalingEntry;

/**
 * Rolls amax histories by one row and sets the scales from them.
 *
 * For each column, with `last = history[0]` (or the reduced value, if there is one that is not 0):
 * row i takes row i + 1, the last row takes `last`, row 0 becomes 0;
 * `scale = scaled_max / amax` if `amax` is finite and positive, else unchanged; an infinite scale
 * becomes the largest float. With `keep_if_unused`, a column whose `last` is 0 keeps its history,
 * and its amax is 0.
 */
typedef struct NVTEXDelayedScalingArgs {
  /**
   * Host array.
   */
  const struct NVTEXDelayedScalingEntry *entries;
  size_t num_entries;
  /**
   * Concatenation of `num_scales` reduced amax values for each entry, or null.
   */
  const float *reduced_amax;
  /**
   * Rows of every history, at least 1.
   */
  size_t length;
  /**
   * `fp8_max * 2^-margin`.
   */
  float scaled_max;
  enum NVTEXAmaxAlgo algo;
  bool keep_if_unused;
} NVTEXDelayedScalingArgs;

/**
 * `amax[t] = max|x|` over the elements of member t (0 for none; NaN ignored).
 */
typedef struct NVTEXGroupAmaxArgs {
  const void *input;
  /**
   * One for each member.
   */
  float *amax;
  const float *noop;
  /**
   * Elements of the input, gaps between members and what follows the last of them included.
   */
  size_t numel;
  size_t rows;
  size_t cols;
  NVTEXGroup group;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXGroupAmaxArgs;

/**
 * A part of a row-major matrix `[rows, cols]`: the elements from `start` on, `length` of them.
 */
typedef struct NVTEXShard {
  const void *input;
  size_t start;
  size_t length;
  size_t rows;
  size_t cols;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXShard;

/**
 * `max|x|` over the elements of a shard in each block of the whole matrix (0 for none; NaN ignored).
 */
typedef struct NVTEXPartialAmaxArgs {
  /**
   * `length` may be 0.
   */
  struct NVTEXShard shard;
  /**
   * Mode 3: floats, block (i, j) of 128 x 128 at `i * rowwise_stride + j * block_step`.
   * Mode 1: of the input's dtype, block j of 32 in row i at `i * rowwise_stride + j`, or null;
   * entries up to the next multiple of 4 in a row become 0.
   */
  void *rowwise;
  /**
   * Mode 1: of the input's dtype, block i of 32 in column j at `i * colwise_stride + j`, or null;
   * entries up to the next multiple of 128 in a row become 0.
   */
  void *colwise;
  size_t rowwise_stride;
  size_t colwise_stride;
  size_t block_step;
  /**
   * The scaling mode, 1 or 3.
   */
  NVTEScalingMode mode;
} NVTEXPartialAmaxArgs;

/**
 * Casts a shard with scales of the whole matrix, laid out as those maxima. Mode 3:
 * `y = cast(x * scale)`. Mode 1: `y = cast(x / 2^e)` with E8M0 codes, once for blocks along the rows,
 * once for blocks along the columns.
 */
typedef struct NVTEXPartialCastArgs {
  struct NVTEXShard shard;
  /**
   * `length` elements each; mode 1: or null.
   */
  void *rowwise;
  /**
   * Like `rowwise`, with scales in the other direction; in mode 1 only.
   */
  void *colwise;
  const void *rowwise_scales;
  const void *colwise_scales;
  size_t rowwise_stride;
  size_t colwise_stride;
  size_t block_step;
  /**
   * The scaling mode, 1 or 3.
   */
  NVTEScalingMode mode;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType output_dtype;
} NVTEXPartialCastArgs;

/**
 * `output[0] = ((alpha * amax_a) * amax_b) * factor`, and `output[1] = beta` if there is one.
 */
typedef struct NVTEXNvfp4AlphaArgs {
  const float *amax_a;
  const float *amax_b;
  float *output;
  float alpha;
  float beta;
  float factor;
  bool with_beta;
} NVTEXNvfp4AlphaArgs;

/**
 * `scale = G(amax)` with `G(a) = min(2688 / max(a, FLT_MIN), FLT_MAX)`, 1 unless `a > 0`.
 */
typedef struct NVTEXNvfp4GlobalScaleArgs {
  const float *amax;
  float *scale;
  /**
   * The number of elements of both arrays.
   */
  size_t length;
} NVTEXNvfp4GlobalScaleArgs;

/**
 * Scales of square NVFP4 blocks: `s = min(input * (G(global_amax) * (1 / 6)), FLT_MAX)` with G as in
 * [`Nvfp4GlobalScaleArgs`], or the input as it is. `scale = s`, and `codes[r][c] = e4m3(s)` of the block
 * (r / block_len, c), 0 in rows of no block.
 */
typedef struct NVTEXNvfp4BlockScaleArgs {
  /**
   * `[tile_rows, tile_cols]`
   */
  const float *input;
  /**
   * One float, or null if the input already holds scales.
   */
  const float *global_amax;
  /**
   * As the input, or null.
   */
  float *scale;
  /**
   * Bytes `[rows, tile_cols]`, or null.
   */
  void *codes;
  /**
   * Becomes `global_amax`, or null.
   */
  float *target_amax;
  size_t tile_rows;
  size_t tile_cols;
  /**
   * Rows of the codes.
   */
  size_t rows;
  /**
   * Not 0.
   */
  size_t block_len;
} NVTEXNvfp4BlockScaleArgs;

/**
 * `max|x|` over the elements of a shard in each block of 16 x 16 of the whole matrix (0 for none; NaN
 * ignored), block (i, j) at `i * stride + j * step`.
 */
typedef struct NVTEXNvfp4PartialAmaxArgs {
  /**
   * `length` may be 0.
   */
  struct NVTEXShard shard;
  float *amax;
  size_t stride;
  size_t step;
} NVTEXNvfp4PartialAmaxArgs;

/**
 * `code = e2m1(x * q)` for the elements of a shard, with `q = min(1 / (e4m3(scale) * (1 / g)), FLT_MAX)` of
 * their block (FLT_MAX without a positive scale), `g = global_scale`, 1 unless it is positive. Element i
 * of the matrix is in byte `i / 2 - start / 2`, in the low bits if i is even; the other half of the first
 * and the last byte stays if it is not in the shard.
 */
typedef struct NVTEXNvfp4PartialCastArgs {
  struct NVTEXShard shard;
  void *output;
  /**
   * Laid out as the maxima of [`Nvfp4PartialAmaxArgs`].
   */
  const float *scale;
  const float *global_scale;
  size_t stride;
  size_t step;
} NVTEXNvfp4PartialCastArgs;

#endif  /* NVTE_BACKEND_RECIPE_H */
