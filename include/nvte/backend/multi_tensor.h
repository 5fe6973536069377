#ifndef NVTE_BACKEND_MULTI_TENSOR_H
#define NVTE_BACKEND_MULTI_TENSOR_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * What holds the parameters of an [`AdamArgs`] in float32.
 */
typedef enum NVTEXAdamMaster {
  /**
   * Nothing: `data[1]` is read and written.
   */
  NVTEX_ADAM_NO_MASTER = 0,
  /**
   * `data[4]`, of F32: `data[1]` is only written, from the new master.
   */
  NVTEX_ADAM_FLOAT_MASTER = 1,
  /**
   * `data[1]`, of BF16, and `data[4]`, of Int16: the remainder is the low half of the master's bits,
   * the parameter the high half, plus 1 if the remainder is negative.
   */
  NVTEX_ADAM_REMAINDER = 2,
} NVTEXAdamMaster;

/**
 * How the learning rate follows from the number of steps s before this one, of which there are W with warm-up and T
 * in all: `base * (s + 1) / (W + 1)` while s < W, then by the fraction `p = min(1, (s - W) / (T - W))`.
 */
typedef enum NVTEXRateRule {
  /**
   * `base`
   */
  NVTEX_RATE_CONSTANT = 0,
  /**
   * `base * (1 - (1 - last) * p)`
   */
  NVTEX_RATE_LINEAR = 1,
  /**
   * `base * (last + (1 - last) * (1 + cos(pi * p)) / 2)`
   */
  NVTEX_RATE_COSINE = 2,
} NVTEXRateRule;

/**
 * What a [`MuonArgs`] does with its tensors.
 */
typedef enum NVTEXMuonPart {
  /**
   * `g *= grad_scale`; `b = momentum * b + g`; `u = nesterov ? g + momentum * b : b`, rounded to BF16. Data of a
   * tensor: gradient g, momentum b of F32, u of BF16. Without effect if `noop` is 1.
   */
  NVTEX_MUON_MOMENTUM = 0,
  /**
   * `u = u / (norms[t] + epsilon)` for tensor number t. Data of a tensor: u of BF16.
   */
  NVTEX_MUON_NORMALIZE = 1,
} NVTEXMuonPart;

/**
 * One of the tensors in a list. What each `data` is, the operator says.
 */
typedef struct NVTEXMultiTensor {
  void *data[8];
  /**
   * Elements of each buffer; not 0 unless the operator says so.
   */
  size_t numel;
} NVTEXMultiTensor;

/**
 * One step of Adam on many tensors, in this order of operations, each rounded to float32:
 *
 * `g *= inv_scale` or `g *= grad_scale`; if `l2`, `g += weight_decay * p`;
 * `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
 * `u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)`; unless `l2`, `u += weight_decay * p`;
 * `p = p - lr * u`.
 *
 * Data of a tensor: gradient g, parameter p, moments m and v, master (see [`AdamMaster`]). FP8
 * parameters have a float master and three floats: scale, amax and scale_inv, or null each. Then
 * `data[1] = cast(p * scale)` (1 without a scale), `amax = max(amax, max|p|)` by the integer maximum of
 * the bits, NaN ignored, and `scale_inv = 1 / scale`.
 *
 * Moments of E4M3 are m and the square root of v in blocks of 128 elements. A code x of a block with scale s stands
 * for `s x`; `data[5]` has the scales of m and `data[6]` those of the roots, F32, one for each block. After a step the
 * scale is the least power of two, at least 2^-126, for which the largest magnitude of the block over it is at most
 * 448; one that is not finite gets the code NaN. Magnitudes are rounded stochastically, up if the bits that have no
 * place are above a random number; a root above 0 keeps a code above 0. Philox 4x32-7 with the key 0 and the counter
 * `block + 2^64 (lane + 2^32 step)` has the numbers of the elements `lane + 32 j` of a block, j < 4, in word j: its low
 * half is that of m, its high half that of the root, each followed by a 1 and zeros. `device_step` is not null then,
 * `inv_scale` is, and parameters are not FP8.
 */
typedef struct NVTEXAdamArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float lr;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  float bias1;
  float bias2;
  /**
   * On the device, or null: instead of `lr`.
   */
  const float *device_lr;
  /**
   * On the device, or null: `bias1 = 1 - beta1^step`, `bias2 = 1 - beta2^step` instead, as
   * `bias_correction` computes them.
   */
  const int32_t *device_step;
  /**
   * On the device, or null for 1; if there is one, the scaled gradient is also stored.
   */
  const float *inv_scale;
  /**
   * Null, or a flag that forbids everything if it is 1.
   */
  const int32_t *noop;
  bool l2;
  enum NVTEXAdamMaster master;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType grad_dtype;
  /**
   * F32, F16, BF16, E4M3 or E5M2.
   */
  NVTEDType param_dtype;
  /**
   * F32, BF16 or E4M3; F32 if the parameters are FP8.
   */
  NVTEDType moment_dtype;
  /**
   * On the device, or null for 1: `g *= grad_scale`, without storing the gradient. Null beside `inv_scale`.
   */
  const float *grad_scale;
} NVTEXAdamArgs;
/**
 * Elements of a block of moments in E4M3, which have one scale.
 */
#define NVTEXAdamArgs_MOMENT_BLOCK 128

/**
 * One step of gradient descent on many tensors, in this order of operations, each rounded to float32:
 *
 * `g *= grad_scale`; `g *= scale`; `g += weight_decay * w` unless `decay_after_momentum`; with a momentum that is not 0,
 * `b = g` in the first run, else `b = b * momentum + (1 - dampening) * g`, then
 * `g = g + momentum * b` if `nesterov`, else `g = b`; `g += weight_decay * w` if
 * `decay_after_momentum`; `d = -lr * g`, rounded to the dtype of the weights; `w = w + d`.
 * Decay of 0 adds nothing. Data of a tensor: gradient, weight w, momentum b, copy of the new weight or
 * null. Without momentum b is not touched.
 */
typedef struct NVTEXSgdArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float lr;
  float momentum;
  float dampening;
  float weight_decay;
  float scale;
  bool nesterov;
  bool first_run;
  bool decay_after_momentum;
  /**
   * A flag that forbids everything unless it is 0.
   */
  const int32_t *noop;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType grad_dtype;
  /**
   * F32, F16 or BF16, of weights and momentum.
   */
  NVTEDType weight_dtype;
  /**
   * F16 or BF16 beside F32 weights, of all copies.
   */
  NVTEDType copy_dtype;
  /**
   * On the device, or null: instead of `lr`.
   */
  const float *device_lr;
  /**
   * On the device, or null for 1: the gradient is multiplied by it before `scale`.
   */
  const float *grad_scale;
} NVTEXSgdArgs;

/**
 * `norm = sqrt(sum (x * inv_scale)^2)` over the elements of all tensors, squared and summed in float32 or
 * better, in a fixed order. Data of a tensor: x. Tensors may be empty; there may be none.
 */
typedef struct NVTEXL2NormArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  /**
   * On the device, or null for 1.
   */
  const float *inv_scale;
  float *norm;
  /**
   * The norm of each tensor, or null.
   */
  float *tensor_norms;
  /**
   * Workspace of `partials` floats.
   */
  float *workspace;
  size_t partials;
  /**
   * With `tensor_norms`: workspace of `num_tensors * chunks` floats, `ceil(numel / chunk) <= chunks`.
   */
  float *tensor_workspace;
  size_t chunks;
  size_t chunk;
  /**
   * Set to 1 if the sum of some part is not finite.
   */
  int32_t *non_finite;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXL2NormArgs;

/**
 * `y = cast(x * scale)` of many tensors. Data of a tensor: x, y, which may be the same.
 */
typedef struct NVTEXScaleTensorsArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float scale;
  /**
   * On the device, or null: instead of `scale`.
   */
  const float *device_scale;
  /**
   * Set to 1 if some x is not finite.
   */
  int32_t *non_finite;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  NVTEDType output_dtype;
} NVTEXScaleTensorsArgs;

/**
 * Scales of many tensors from their amax.
 *
 * Floats: amax, scale, scale_inv, as [`ScaleFromAmaxArgs`] defines them. E8M0: a BF16 amax and the code
 * of `amax / 448`, rounded up to a power of two: 0xff for NaN, at most 0xfe otherwise.
 */
typedef struct NVTEXScalesFromAmaxArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float fp8_max;
  float epsilon;
  bool pow2;
  bool e8m0;
} NVTEXScalesFromAmaxArgs;

/**
 * `dst = cast(dst + (0 + src))`, elementwise in float32. The sum begins with 0 as that of a product, so that
 * -0 and -0 make 0.
 */
typedef struct NVTEXAddArgs {
  const void *src;
  void *dst;
  /**
   * At least 1.
   */
  size_t numel;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType src_dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dst_dtype;
} NVTEXAddArgs;

/**
 * The numbers of an optimizer that change from step to step, on the device.
 */
typedef struct NVTEXStepNumbers {
  /**
   * Steps that have changed the parameters.
   */
  int32_t step;
  /**
   * 1 if the newest step changes nothing, because its gradients are not finite.
   */
  int32_t skip;
  /**
   * Steps that have changed nothing.
   */
  int32_t skipped;
  /**
   * Steps since the loss scale has changed or a step was skipped.
   */
  int32_t good_steps;
  /**
   * Set to 1 by norms that are not finite; 0 after each step.
   */
  int32_t non_finite;
  /**
   * The largest learning rate, from which the schedule computes that of a step.
   */
  float base_rate;
  /**
   * The learning rate of the newest step.
   */
  float rate;
  /**
   * What the loss is multiplied by.
   */
  float loss_scale;
  /**
   * What the gradients of the newest step are multiplied by.
   */
  float grad_scale;
  /**
   * The norm of the gradients of the newest step without the loss scale and before clipping; 0 without norms.
   */
  float norm;
} NVTEXStepNumbers;

/**
 * The numbers of the next step, in float32 if nothing else is said:
 *
 * `unscale = factor / loss_scale`; `norm = sqrt(sum norms^2) * unscale` (the root in float64);
 * `grad_scale = unscale * min(1, max_norm / (norm + 1e-6))`, without the minimum if `max_norm` is 0;
 * `skip = non_finite`, or 1 if the norm is not finite; `non_finite = 0`. A skipped step counts as `skipped`, and
 * `loss_scale = max(least_scale, loss_scale * backoff)` with 0 good steps. Another one counts as a step and a good
 * step; the `growth_interval`-th good step sets `loss_scale = min(most_scale, loss_scale * growth)`, with 0 good
 * steps. With an interval of 0 the loss scale stays. `rate` by the schedule in float64, and `rates[i] = rate *
 * factors[i]`.
 */
typedef struct NVTEXStepNumbersArgs {
  struct NVTEXStepNumbers *numbers;
  /**
   * Norms of parts of the gradients, or null.
   */
  const float *norms;
  size_t num_norms;
  /**
   * Factors of learning rates and the learning rates, `num_rates` each.
   */
  const float *factors;
  float *rates;
  size_t num_rates;
  float factor;
  /**
   * 0: no clipping.
   */
  float max_norm;
  enum NVTEXRateRule schedule;
  int32_t warmup_steps;
  int32_t total_steps;
  float last;
  float growth;
  float backoff;
  int32_t growth_interval;
  float least_scale;
  float most_scale;
} NVTEXStepNumbersArgs;

/**
 * The parts of a step of Muon before and after the norms, each operation rounded to float32.
 */
typedef struct NVTEXMuonArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  enum NVTEXMuonPart part;
  float momentum;
  bool nesterov;
  float epsilon;
  /**
   * On the device: of the first part.
   */
  const float *grad_scale;
  const int32_t *noop;
  /**
   * On the device: of the second part.
   */
  const float *norms;
  /**
   * F32, F16 or BF16: of the first part.
   */
  NVTEDType grad_dtype;
} NVTEXMuonArgs;

#endif  /* NVTE_BACKEND_MULTI_TENSOR_H */
