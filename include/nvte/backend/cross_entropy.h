#ifndef NVTE_BACKEND_CROSS_ENTROPY_H
#define NVTE_BACKEND_CROSS_ENTROPY_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * What a call of the loss computes.
 */
typedef enum NVTEXCrossEntropyPass {
  /**
   * `loss`, and `logsumexp` if it is not null.
   */
  NVTEX_CROSS_ENTROPY_FORWARD = 0,
  /**
   * `partials` of the columns that are here.
   */
  NVTEX_CROSS_ENTROPY_PARTIAL = 1,
  /**
   * `grad_logits` from `logsumexp`.
   */
  NVTEX_CROSS_ENTROPY_BACKWARD = 2,
  /**
   * `loss`, `logsumexp` if it is not null, and `grad_logits`, which is the memory of the logits.
   */
  NVTEX_CROSS_ENTROPY_FUSED = 3,
} NVTEXCrossEntropyPass;

/**
 * Cross entropy of `[tokens, vocabulary]` logits x against one target for each token; all in float32.
 *
 * With `l = log sum_v exp(x_v)`: `loss = l - (1 - s) x_target - s / total * sum_v x_v + z l^2`, where s is
 * `label_smoothing`, z is `z_loss`, and a term with the factor 0 is left out. Gradient:
 * `dx_v = g (exp(x_v - l) (1 + 2 z l) - (v = target ? 1 - s : 0) - s / total)`, with `g = grad / max(count, 1)`.
 *
 * The columns are `start` to `start + vocabulary` of `total`. A target that is ignored has loss, logsumexp and
 * gradients of 0. One that is neither ignored nor in `[0, total)` makes its loss and gradients NaN.
 *
 * Partials, `[4, tokens]`: the maximum m of the row, `sum_v exp(x_v - m)`, the logit of the target, which is 0 if
 * that is not among the columns, and `sum_v x_v`; of ignored targets -Inf, 0, 0 and 0.
 */
typedef struct NVTEXCrossEntropyArgs {
  const void *logits;
  /**
   * `[tokens]`
   */
  const void *targets;
  /**
   * `[tokens]`
   */
  float *loss;
  /**
   * `[tokens]`, or null; read by the backward.
   */
  float *logsumexp;
  /**
   * `[4, tokens]`
   */
  float *partials;
  /**
   * As the logits, which it may be.
   */
  void *grad_logits;
  /**
   * Gradient of the loss: one number, or `[tokens]` with `grad_per_token`; null for 1.
   */
  const float *grad;
  /**
   * One number on the device, or null for 1.
   */
  const float *count;
  size_t tokens;
  size_t vocabulary;
  size_t start;
  size_t total;
  /**
   * The target that is ignored.
   */
  int64_t ignored;
  float label_smoothing;
  float z_loss;
  enum NVTEXCrossEntropyPass pass;
  /**
   * F32, F16 or BF16, of logits and gradients.
   */
  NVTEDType dtype;
  /**
   * Int32 or Int64.
   */
  NVTEDType target_dtype;
  bool grad_per_token;
} NVTEXCrossEntropyArgs;

/**
 * Loss and logsumexp from the partials `[parts, 4, tokens]` of all parts of the vocabulary, as
 * [`CrossEntropyArgs`] defines them; parts in their order.
 */
typedef struct NVTEXCombineCrossEntropyArgs {
  const float *partials;
  /**
   * `[tokens]`
   */
  const void *targets;
  /**
   * `[tokens]`
   */
  float *loss;
  /**
   * `[tokens]`, or null.
   */
  float *logsumexp;
  size_t parts;
  size_t tokens;
  size_t total;
  /**
   * The target that is ignored.
   */
  int64_t ignored;
  float label_smoothing;
  float z_loss;
  /**
   * Int32 or Int64.
   */
  NVTEDType target_dtype;
} NVTEXCombineCrossEntropyArgs;

/**
 * How many targets are not ignored, and the sum or mean of losses, in float64 and a fixed order.
 */
typedef struct NVTEXTotalLossArgs {
  /**
   * `[tokens]`, which are counted to `count`; null if `count` is there already.
   */
  const void *targets;
  /**
   * `[tokens]`, or null.
   */
  const float *losses;
  /**
   * `sum losses`, divided by `max(count, 1)` if `mean`; null without losses.
   */
  float *total;
  /**
   * One number on the device.
   */
  float *count;
  size_t tokens;
  /**
   * The target that is ignored.
   */
  int64_t ignored;
  /**
   * Int32 or Int64.
   */
  NVTEDType target_dtype;
  bool mean;
} NVTEXTotalLossArgs;

#endif  /* NVTE_BACKEND_CROSS_ENTROPY_H */
