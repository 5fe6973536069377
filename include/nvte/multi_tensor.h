#ifndef NVTE_MULTI_TENSOR_H
#define NVTE_MULTI_TENSOR_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Computes the Euclidean norm of all tensors of a list together, and with `per_tensor` of each.
 *
 * What it computes: `ret = sqrt(sum x^2)` over all elements, `ret_per_tensor[t]` over those of tensor
 * t, in Float32 or better, in a fixed order. `noop_flag` becomes 1 if the sum of squares of some part
 * is not finite; it is not read. The norm of empty tensors, or of no tensor, is 0.
 *
 * Lists: x.
 *
 * Scratch: `output`, 320 or more entries. With `per_tensor` also `output_per_tensor`, of
 * `num_tensors_per_list * max_chunks_per_tensor` entries, which the caller sets to 0, where
 * `max_chunks_per_tensor >= ceil(n / chunk_size)` for the n elements of each tensor. Without
 * `per_tensor`, `output_per_tensor`, `ret_per_tensor` and `max_chunks_per_tensor` are ignored.
 *
 * Dtypes: x Float32, Float16 or BFloat16, all tensors the same; scratch and results Float32; the flag
 * Int32.
 *
 * Errors: other dtypes; a wrong number of lists; scratch that is too small; null or misaligned
 * pointers; `chunk_size` below 1.
 */
void nvte_multi_tensor_l2norm_cuda(int32_t chunk_size,
                                   NVTETensor noop_flag,
                                   NVTETensor **tensor_lists,
                                   size_t num_tensor_lists,
                                   size_t num_tensors_per_list,
                                   NVTETensor output,
                                   NVTETensor output_per_tensor,
                                   NVTETensor ret,
                                   NVTETensor ret_per_tensor,
                                   int32_t per_tensor,
                                   int32_t max_chunks_per_tensor,
                                   cudaStream_t stream);

/**
 * Computes the norms of `nvte_multi_tensor_l2norm_cuda` for `x * inv_scale`, where `inv_scale` is one
 * Float32 on the device. x is not changed.
 */
void nvte_multi_tensor_unscale_l2norm_cuda(int32_t chunk_size,
                                           NVTETensor noop_flag,
                                           NVTETensor **tensor_lists,
                                           size_t num_tensor_lists,
                                           size_t num_tensors_per_list,
                                           NVTETensor output,
                                           NVTETensor output_per_tensor,
                                           NVTETensor ret,
                                           NVTETensor ret_per_tensor,
                                           NVTETensor inv_scale,
                                           int32_t per_tensor,
                                           int32_t max_chunks_per_tensor,
                                           cudaStream_t stream);

/**
 * Takes one step of Adam (`mode` 0: weight decay is part of the gradient) or AdamW (other modes: it
 * acts on the parameter).
 *
 * What it computes, in Float32, in this order of operations: in mode 0 `g += weight_decay * p`;
 * `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
 * `u = (m * (1 / b1)) / (sqrt(v * (1 / b2)) + epsilon)`; in other modes `u += weight_decay * p`;
 * `p = p - lr * u`. With `bias_correction` 1, `b1 = 1 - beta1^step` and `b2 = 1 - beta2^step`,
 * computed in Float64, otherwise both are 1. The caller counts the steps, from 1. Subnormal numbers
 * are kept.
 *
 * Lists: g, p, m, v, or with a fifth list Float32 masters, which are read and updated in place of p; p
 * is then only written. Every tensor of the other lists has at least as many elements as that of list
 * 0.
 *
 * Dtypes: g and p each Float32, Float16 or BFloat16; m and v both Float32 or both BFloat16.
 *
 * Notes: `noop_flag` is not used, `chunk_size` has no influence. Nothing is written for empty tensors
 * or empty lists.
 *
 * Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
 * misaligned pointers; a step below 1 with bias correction; `chunk_size` below 1.
 *
 * Source: Kingma, Ba, Adam (2014); Loshchilov, Hutter, Decoupled Weight Decay Regularization (2017).
 */
void nvte_multi_tensor_adam_cuda(int32_t chunk_size,
                                 NVTETensor noop_flag,
                                 NVTETensor **tensor_lists,
                                 size_t num_tensor_lists,
                                 size_t num_tensors_per_list,
                                 float lr,
                                 float beta1,
                                 float beta2,
                                 float epsilon,
                                 int32_t step,
                                 int32_t mode,
                                 int32_t bias_correction,
                                 float weight_decay,
                                 cudaStream_t stream);

/**
 * Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with Float32 masters that are stored
 * in two halves.
 *
 * The fifth list holds the low 16 bits of each master (Int16). p (BFloat16) holds its high half, plus
 * 1 if the low half is negative, so that p is the master rounded to nearest, ties away from 0. Begin
 * with remainders of 0.
 */
void nvte_multi_tensor_adam_param_remainder_cuda(int32_t chunk_size,
                                                 NVTETensor noop_flag,
                                                 NVTETensor **tensor_lists,
                                                 size_t num_tensor_lists,
                                                 size_t num_tensors_per_list,
                                                 float lr,
                                                 float beta1,
                                                 float beta2,
                                                 float epsilon,
                                                 int32_t step,
                                                 int32_t mode,
                                                 int32_t bias_correction,
                                                 float weight_decay,
                                                 cudaStream_t stream);

/**
 * Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with FP8 parameters and Float32
 * masters.
 *
 * What it computes: also `p = cast(master * scale)`, saturating (without a scale: 1),
 * `amax = max(amax, max|master|)`, NaN ignored, and `scale_inv = 1 / scale`. The scale is not changed.
 *
 * Lists: g, p, m, v, master, scale, amax, scale_inv; the last three have one Float32 for each tensor,
 * or a null pointer.
 *
 * Dtypes: p `fp8_dtype` (Float8E4M3 or Float8E5M2) or Byte; m and v Float32; g as in
 * `nvte_multi_tensor_adam_cuda`.
 */
void nvte_multi_tensor_adam_fp8_cuda(int32_t chunk_size,
                                     NVTETensor noop_flag,
                                     NVTETensor **tensor_lists,
                                     size_t num_tensor_lists,
                                     size_t num_tensors_per_list,
                                     float lr,
                                     float beta1,
                                     float beta2,
                                     float epsilon,
                                     int32_t step,
                                     int32_t mode,
                                     int32_t bias_correction,
                                     float weight_decay,
                                     NVTEDType fp8_dtype,
                                     cudaStream_t stream);

/**
 * Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with rate, step and scale on the
 * device, so that a captured graph may change them.
 *
 * `lr` and `inv_scale` (Float32) and `step` (Int32) are read when the kernels run. The gradients
 * become `g * inv_scale`, rounded to their dtype; the step itself uses the product in Float32. If
 * `noop_flag` (Int32) is 1, nothing is written.
 *
 * Lists: g, p, m, v. Dtypes: as `nvte_multi_tensor_adam_cuda`.
 *
 * Errors: as `nvte_multi_tensor_adam_cuda`, except that steps below 1 are no error and give a
 * correction of 0.
 */
void nvte_multi_tensor_adam_capturable_cuda(int32_t chunk_size,
                                            NVTETensor noop_flag,
                                            NVTETensor **tensor_lists,
                                            size_t num_tensor_lists,
                                            size_t num_tensors_per_list,
                                            NVTETensor lr,
                                            float beta1,
                                            float beta2,
                                            float epsilon,
                                            NVTETensor step,
                                            int32_t mode,
                                            int32_t bias_correction,
                                            float weight_decay,
                                            NVTETensor inv_scale,
                                            cudaStream_t stream);

/**
 * Takes one step of Adam as `nvte_multi_tensor_adam_capturable_cuda` does, with a fifth list of
 * Float32 masters.
 */
void nvte_multi_tensor_adam_capturable_master_cuda(int32_t chunk_size,
                                                   NVTETensor noop_flag,
                                                   NVTETensor **tensor_lists,
                                                   size_t num_tensor_lists,
                                                   size_t num_tensors_per_list,
                                                   NVTETensor lr,
                                                   float beta1,
                                                   float beta2,
                                                   float epsilon,
                                                   NVTETensor step,
                                                   int32_t mode,
                                                   int32_t bias_correction,
                                                   float weight_decay,
                                                   NVTETensor inv_scale,
                                                   cudaStream_t stream);

/**
 * Takes one step of gradient descent with momentum and weight decay.
 *
 * What it computes, in Float32, in this order of operations: `g = gradient * scale`; `g += wd * w`
 * unless `wd_after_momentum`; if `momentum` is not 0,
 * `b = first_run ? g : b * momentum + (1 - dampening) * g`, then
 * `g = nesterov ? g + momentum * b : b`; `g += wd * w` if `wd_after_momentum`;
 * `w = w + cast(-lr * g)`, each cast to the dtype of w. Without momentum b is not touched. If
 * `noop_flag` (Int32) is not 0, nothing is written.
 *
 * Lists: gradient, w, b, or with a fourth list copies of the new w.
 *
 * Dtypes: gradient Float32, Float16 or BFloat16; w and b Float32, or without copies also that of the
 * gradient; copies Float16 or BFloat16.
 *
 * Notes: `chunk_size` has no influence. Nothing is written for empty tensors or empty lists.
 *
 * Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
 * misaligned pointers; `chunk_size` below 1.
 */
void nvte_multi_tensor_sgd_cuda(int32_t chunk_size,
                                NVTETensor noop_flag,
                                NVTETensor **tensor_lists,
                                size_t num_tensor_lists,
                                size_t num_tensors_per_list,
                                float wd,
                                float momentum,
                                float dampening,
                                float lr,
                                int32_t nesterov,
                                int32_t first_run,
                                int32_t wd_after_momentum,
                                float scale,
                                cudaStream_t stream);

/**
 * Multiplies tensors by a number: `y = cast(x * scale)`.
 *
 * `is_infinite` (Int32) becomes 1 if some x is not finite; it is not read, and results that overflow
 * do not count.
 *
 * Lists: x, y, which may be the same tensors.
 *
 * Dtypes: x and y each Float32, Float16 or BFloat16.
 *
 * Notes: `chunk_size` has no influence. Nothing is written for empty tensors or empty lists.
 *
 * Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
 * misaligned pointers; `chunk_size` below 1.
 */
void nvte_multi_tensor_scale_cuda(int32_t chunk_size,
                                  NVTETensor is_infinite,
                                  NVTETensor **tensor_lists,
                                  size_t num_tensor_lists,
                                  size_t num_tensors_per_list,
                                  float scale,
                                  cudaStream_t stream);

/**
 * Multiplies tensors by a number as `nvte_multi_tensor_scale_cuda` does, where the scale is one
 * Float32 on the device.
 */
void nvte_multi_tensor_scale_tensor_cuda(int32_t chunk_size,
                                         NVTETensor is_infinite,
                                         NVTETensor **tensor_lists,
                                         size_t num_tensor_lists,
                                         size_t num_tensors_per_list,
                                         NVTETensor scale,
                                         cudaStream_t stream);

/**
 * Computes the FP8 scales of many tensors from their amax.
 *
 * What it computes: with `a = max(amax, epsilon)`, `scale = max_fp8 / a`, or 1 if a is 0, Inf or NaN.
 * An infinite quotient becomes the largest Float32. With `force_pow_2_scales` the mantissa is cleared.
 * Then `scale_inv = 1 / scale`. Subnormal numbers are kept.
 *
 * Lists: amax (not negative), scale, scale_inv, elementwise. Dtypes: Float32.
 *
 * Notes: `noop_flag` is not used, `chunk_size` has no influence.
 *
 * Errors: other dtypes; a wrong number of lists; too few elements; null or misaligned pointers;
 * `chunk_size` below 1.
 */
void nvte_multi_tensor_compute_scale_and_scale_inv_cuda(int32_t chunk_size,
                                                        NVTETensor noop_flag,
                                                        NVTETensor **tensor_lists,
                                                        size_t num_tensor_lists,
                                                        size_t num_tensors_per_list,
                                                        float max_fp8,
                                                        int32_t force_pow_2_scales,
                                                        float epsilon,
                                                        cudaStream_t stream);

/**
 * Computes the E8M0 codes of many tensors from their amax.
 *
 * What it computes: the code of `amax / 448` (amax times the Float32 nearest to 1/448), rounded up to
 * a power of two: 0xff for NaN, 0xfe at most otherwise, 0 for 0.
 *
 * Lists: amax (not negative), scale_inv, elementwise. Dtypes: BFloat16; Byte or Float8E8M0.
 *
 * Errors: as `nvte_multi_tensor_compute_scale_and_scale_inv_cuda`.
 */
void nvte_multi_tensor_compute_scale_inv_e8m0_cuda(int32_t chunk_size,
                                                   NVTETensor **tensor_lists,
                                                   size_t num_tensor_lists,
                                                   size_t num_tensors_per_list,
                                                   cudaStream_t stream);

/**
 * Computes the largest magnitudes of parts of a matrix, NaN ignored: `outputs[i].amax` is that of the
 * next `split_sections[i]` rows, and so is `outputs[i].columnwise_amax` if it has an address.
 *
 * Parts: there may be any number. Rows after the last part do not count. A part without rows has a
 * maximum of 0, and its tensor may be null. Without tensors nothing happens.
 *
 * Shapes: `[rows, cols]`; rows of each part and columns are multiples of 16.
 *
 * Dtypes: BFloat16; maxima one Float32 each.
 *
 * Errors: other dtypes or shapes; a part with rows and without `amax`; parts with more rows than the
 * input; null or misaligned pointers.
 */
void nvte_group_amax(NVTETensor input,
                     NVTETensor *outputs,
                     const size_t *split_sections,
                     size_t num_tensors,
                     cudaStream_t stream);

/**
 * Computes the largest magnitude of each member of a grouped tensor, NaN ignored, 0 for an empty one:
 * `output.amax[t]`, and also `output.columnwise_amax[t]` if it has an address.
 *
 * Members, dtypes, errors: as `nvte_group_hadamard_transform_amax_graph_safe`.
 */
void nvte_group_amax_graph_safe(NVTEGroupedTensor input,
                                NVTEGroupedTensor output,
                                cudaStream_t stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_MULTI_TENSOR_H */
