#ifndef NVTE_BACKEND_FUSED_ROUTER_H
#define NVTE_BACKEND_FUSED_ROUTER_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Score of an expert, of its logit x.
 */
typedef enum NVTEXRouterScore {
  /**
   * `1 / (1 + exp(-x))`
   */
  NVTEX_ROUTER_SIGMOID = 0,
  /**
   * `exp(x - max) / sum exp(x - max)`
   */
  NVTEX_ROUTER_SOFTMAX = 1,
  /**
   * `sqrt(log(1 + exp(x)))`
   */
  NVTEX_ROUTER_SQRTSOFTPLUS = 2,
} NVTEXRouterScore;

/**
 * The experts of each token, in one of three forms; the pointers of the others are null.
 */
typedef struct NVTEXRouting {
  /**
   * `[tokens, experts]`: 1 for the token's experts, 0 for others. As an input: not 0 and 0.
   */
  uint8_t *bytes;
  /**
   * `[tokens, ceil(experts / 8)]`: expert e is bit `e % 8` of byte `e / 8`; bits after the last
   * expert are 0.
   */
  uint8_t *bits;
  /**
   * `[tokens, topk]`, best score first.
   */
  void *indices;
  /**
   * Int16, Int32 or Int64.
   */
  NVTEDType index_dtype;
} NVTEXRouting;

/**
 * Choice of `topk` experts for each token, in float32 from the logits x `[tokens, experts]` on.
 *
 * Scores s: of x, except for a softmax that is not `pre_softmax`, which has `s = x`. With a bias the
 * choice goes by `s + bias`. One order for everything that is chosen: the greater score first, of
 * equal ones (0 and -0 are) that of the lower index; NaN after all numbers.
 * With groups: the `groups` groups of neighbouring experts have as their score the sum of their
 * best `topk / group_topk`, added from the greatest on; experts outside the best `group_topk` groups are
 * not chosen.
 *
 * Probabilities of those chosen, 0 for the others: `scaling_factor * p` with p = s for the softmax
 * of all and for `topk` 1, `s / (sum s + 1e-20)` for the other functions, and the softmax of the
 * chosen logits if not `pre_softmax`.
 *
 * `all`: the scores of all experts, normalised over them (`s / (sum s + 1e-20)` for any `topk`; the
 * softmax as it is), are the probabilities; the choice goes by them. No bias, groups, cutoff.
 */
typedef struct NVTEXRouterForwardArgs {
  const void *logits;
  /**
   * `[experts]` or null; null for the softmax.
   */
  const void *expert_bias;
  /**
   * `[tokens, experts]`
   */
  void *probs;
  struct NVTEXRouting routing;
  /**
   * `[tokens, experts]`: s for the sigmoid and the softmax of all experts, x for sqrtsoftplus. For a softmax
   * that is not `pre_softmax`, p of the chosen experts (also where it is 0), -Inf for the others.
   */
  float *intermediate;
  /**
   * `[tokens]` or null: the greatest `s + bias` that is not chosen. If it is not null, some expert is not chosen.
   */
  float *cutoff;
  size_t tokens;
  size_t experts;
  /**
   * 1 to `experts`.
   */
  size_t topk;
  /**
   * 0 for none; else it divides `experts`.
   */
  size_t groups;
  /**
   * Divides `topk`, at most `groups`.
   */
  size_t group_topk;
  float scaling_factor;
  enum NVTEXRouterScore score;
  /**
   * False unless the score is the softmax; true if that and `all`.
   */
  bool pre_softmax;
  bool all;
  /**
   * F32, F16 or BF16, of the logits.
   */
  NVTEDType dtype;
  /**
   * Of the probabilities: `dtype`, or if `all` also F32.
   */
  NVTEDType probs_dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType bias_dtype;
} NVTEXRouterForwardArgs;

/**
 * Gradients of the logits from those of the probabilities, in float32, with the intermediate output of
 * the forward. `g = scaling_factor * grad` of routed experts, 0 of others; sums over the routed.
 *
 * Sigmoid (y = intermediate) and sqrtsoftplus (y of x = intermediate): if `topk > 1` or `all`,
 * with `S = sum y + 1e-20` and `D = sum g y`, `g = g / S - D / S^2` for the routed; then `g y (1 - y)`,
 * or `g f / (2 y + 1e-20)` with f = 1 for x > 20, else sigmoid(x).
 * Softmax (y = intermediate): `y (g - sum g y)`, for the routed if not `pre_softmax` (others 0), else for
 * all experts.
 */
typedef struct NVTEXRouterBackwardArgs {
  /**
   * Unused if `all`.
   */
  struct NVTEXRouting routing;
  const float *intermediate;
  /**
   * `[tokens, experts]`, of `grad_dtype`.
   */
  const void *grad;
  /**
   * `[tokens, experts]`
   */
  void *grad_logits;
  size_t tokens;
  size_t experts;
  size_t topk;
  float scaling_factor;
  enum NVTEXRouterScore score;
  bool pre_softmax;
  /**
   * Every expert is routed, whatever `routing` says.
   */
  bool all;
  /**
   * F32, F16 or BF16, of the gradients of the logits.
   */
  NVTEDType dtype;
  /**
   * Of the gradients of the probabilities: `dtype`, or if `all` also F32.
   */
  NVTEDType grad_dtype;
} NVTEXRouterBackwardArgs;

/**
 * Counts distances to the cutoff: for every token t and expert e,
 * `b = floor(((cutoff[t] - scores[t, e]) - lower) * (bins / (upper - lower)))`, 0 for NaN, moved to
 * `[0, bins - 1]`, and `histogram[e, b] += 1`. The histogram is not cleared.
 */
typedef struct NVTEXRouterHistogramArgs {
  /**
   * `[tokens, experts]`
   */
  const float *scores;
  /**
   * `[tokens]`
   */
  const float *cutoff;
  /**
   * lower, upper
   */
  const float *bin_bounds;
  /**
   * `[experts, bins]`
   */
  int32_t *histogram;
  size_t tokens;
  size_t experts;
  size_t bins;
} NVTEXRouterHistogramArgs;

/**
 * `loss = c * sum_j (sum_i probs[i, j]) * counts[j]` in float32, in a fixed order, with
 * `c = experts * coeff / topk / total / total` from left to right.
 */
typedef struct NVTEXAuxLossArgs {
  /**
   * `[rows, cols]`; no row: 0 is the loss.
   */
  const void *probs;
  /**
   * `[cols]`
   */
  const void *counts;
  /**
   * On the device, or null: `total_tokens`.
   */
  const int64_t *device_total;
  float total_tokens;
  float experts;
  float topk;
  float coeff;
  size_t rows;
  size_t cols;
  /**
   * One element of `dtype`.
   */
  void *loss;
  /**
   * `[2]`: c, and the loss in float32.
   */
  float *constants;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
  /**
   * Int16, Int32, Int64, BF16 or F32.
   */
  NVTEDType counts_dtype;
} NVTEXAuxLossArgs;

/**
 * `grad_probs[i, j] = cast((c * counts[j]) * grad_loss)` for all of the `rows` rows.
 */
typedef struct NVTEXAuxLossBackwardArgs {
  /**
   * c
   */
  const float *constants;
  const void *counts;
  const void *grad_loss;
  void *grad_probs;
  size_t rows;
  size_t cols;
  /**
   * F32, F16 or BF16, of both gradients.
   */
  NVTEDType dtype;
  /**
   * Int16, Int32, Int64, BF16 or F32.
   */
  NVTEDType counts_dtype;
} NVTEXAuxLossBackwardArgs;

/**
 * The probabilities of the chosen experts one behind the other, `weights[t, k] = probs[t, indices[t, k]]`; or
 * (`backward`) their gradients where the probabilities are: `probs[t, indices[t, k]] = weights[t, k]`, 0 elsewhere. An
 * index that is not below `experts` has the weight 0, and no gradient.
 */
typedef struct NVTEXRouterWeightsArgs {
  /**
   * `[tokens, experts]`; written if `backward`.
   */
  float *probs;
  /**
   * `[tokens, topk]`; written unless `backward`.
   */
  float *weights;
  /**
   * `[tokens, topk]`, different ones for each token.
   */
  const int32_t *indices;
  size_t tokens;
  size_t experts;
  size_t topk;
  bool backward;
} NVTEXRouterWeightsArgs;

/**
 * The loss of the size of the logits, with `l = log(sum_e exp(logits[t, e]))` in float32: `terms[t] = factor * l^2`; or
 * its gradient, which is added: `grad_logits[t, e] += 2 factor g l exp(logits[t, e] - l)`, g = `*grad_loss`.
 */
typedef struct NVTEXRouterZLossArgs {
  /**
   * `[tokens, experts]`
   */
  const float *logits;
  /**
   * `[tokens]`; null if `grad_logits` is not.
   */
  float *terms;
  /**
   * `[tokens, experts]`, or null.
   */
  float *grad_logits;
  /**
   * One float; null without `grad_logits`.
   */
  const float *grad_loss;
  size_t tokens;
  size_t experts;
  float factor;
} NVTEXRouterZLossArgs;

#endif  /* NVTE_BACKEND_FUSED_ROUTER_H */
