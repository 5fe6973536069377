#ifndef NVTE_BACKEND_NORMALIZATION_H
#define NVTE_BACKEND_NORMALIZATION_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/cast.h"

/**
 * The weight of a normalization, `g = gamma`, or `gamma + 1` if it is stored centred at zero.
 */
typedef struct NVTEXGamma {
  /**
   * `[cols]`
   */
  const void *data;
  /**
   * F32, F16 or BF16; also of beta and, backward, of `dz`, `add`, `dgamma` and `dbeta`.
   */
  NVTEDType dtype;
  bool zero_centered;
  /**
   * Rounds `gamma + 1` to gamma's dtype.
   */
  bool rounded;
} NVTEXGamma;

/**
 * Normalizes each row x of a matrix, in float32, and casts the result.
 *
 * LayerNorm: `mu = mean(x)`, `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)`,
 * `v = g (rsigma (x - mu)) + beta`. RMSNorm: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`,
 * `v = g (rsigma x)`. v is cast as [`Cast`] says of an input in F32, except that the amax of
 * an output in F32, F16 or BF16 is that of the rounded values.
 */
typedef struct NVTEXNormForwardArgs {
  /**
   * From x, `[rows, cols]`, to the result; without a fusion, a group or a noop flag. There may be
   * no rows, but at least one column. In mode 0 there are row-wise data.
   */
  NVTEXCast cast;
  /**
   * As x, or null: what is added to x before it is normalized, and where the sum, rounded to the
   * dtype of x, goes (it may be x or `residual`).
   */
  const void *residual;
  void *sum;
  struct NVTEXGamma gamma;
  /**
   * `[cols]`; null for RMSNorm.
   */
  const void *beta;
  /**
   * `[rows]`; null for RMSNorm.
   */
  float *mu;
  /**
   * `[rows]`
   */
  float *rsigma;
  float epsilon;
  NVTE_Norm_Type norm;
  /**
   * Multiprocessors to use at most.
   */
  int sm_count;
} NVTEXNormForwardArgs;

/**
 * Gradients of a normalization, in float32. With `y = rsigma (x - mu)` (RMSNorm: `mu = 0`) and
 * `d = g dz`, for each row: `dx = rsigma (d - mean(d y) y - mean(d)) + add` (RMSNorm: without
 * `mean(d)`); over the rows: `dgamma = sum(dz y)`, `dbeta = sum(dz)`.
 */
typedef struct NVTEXNormBackwardArgs {
  /**
   * `[rows, cols]`
   */
  const void *dz;
  /**
   * `[rows, cols]`
   */
  const void *x;
  /**
   * `[rows, cols]`, or null.
   */
  const void *add;
  /**
   * `[rows]`; null for RMSNorm.
   */
  const float *mu;
  /**
   * `[rows]`
   */
  const float *rsigma;
  struct NVTEXGamma gamma;
  /**
   * `[rows, cols]`, of the dtype of x; may be `dz`, `x` or `add` if that has this dtype.
   */
  void *dx;
  /**
   * `[cols]`
   */
  void *dgamma;
  /**
   * `[cols]`; null for RMSNorm.
   */
  void *dbeta;
  /**
   * Room for sums over some of the rows, `[parts, cols]` for dgamma, then for dbeta, then for `add_sums` and
   * `dx_sums` if one of them is wanted.
   */
  float *partial;
  /**
   * As `parts()` says; at least 1.
   */
  size_t parts;
  /**
   * May be 0.
   */
  size_t rows;
  /**
   * At least 1.
   */
  size_t cols;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType x_dtype;
  NVTE_Norm_Type norm;
  /**
   * Multiprocessors to use at most.
   */
  int sm_count;
  /**
   * `[cols]`, of gamma's dtype, or null: the sums of `add` and of dx over the rows, dx before it is rounded or
   * afterwards. With either of them dx is not `add`.
   */
  void *add_sums;
  void *dx_sums;
} NVTEXNormBackwardArgs;

#endif  /* NVTE_BACKEND_NORMALIZATION_H */
