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
 * `g *= inv_scale`; if `l2`, `g += weight_decay * p`;
 * `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
 * `u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)`; unless `l2`, `u += weight_decay * p`;
 * `p = p - lr * u`.
 *
 * Data of a tensor: gradient g, parameter p, moments m and v, master (see [`AdamMaster`]). FP8
 * parameters have a float master and three floats: scale, amax and scale_inv, or null each. Then
 * `data[1] = cast(p * scale)` (1 without a scale), `amax = max(amax, max|p|)` by the integer maximum of
 * the bits, NaN ignored, and `scale_inv = 1 / scale`.
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
   * F32 or BF16; F32 if the parameters are FP8.
   */
  NVTEDType moment_dtype;
} NVTEXAdamArgs;

/**
 * One step of gradient descent on many tensors, in this order of operations, each rounded to float32:
 *
 * `g *= scale`; `g += weight_decay * w` unless `decay_after_momentum`; with a momentum that is not 0,
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

#endif  /* NVTE_BACKEND_MULTI_TENSOR_H */
