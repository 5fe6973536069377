#ifndef NVTE_TRANSFORMER_ENGINE_H
#define NVTE_TRANSFORMER_ENGINE_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a tensor of a scaling mode, without buffers. Destroy it with `nvte_destroy_tensor`.
 *
 * Errors: an unknown mode (the result is then null).
 */
NVTETensor nvte_create_tensor(NVTEScalingMode scaling_mode);

/**
 * Creates `N` tensors, all or none, and stores their handles in `tensors`.
 */
void nvte_create_tensors(NVTEScalingMode scaling_mode, NVTETensor *tensors, size_t N);

/**
 * Destroys a tensor. Null is ignored. The buffers belong to the caller and stay.
 */
void nvte_destroy_tensor(NVTETensor tensor);

/**
 * Destroys `N` tensors in order; nulls are ignored. It stops at the first wrong handle.
 */
void nvte_destroy_tensors(NVTETensor *tensors, size_t N);

/**
 * Returns the address of the row-wise data, or null for a null handle.
 */
void *nvte_tensor_data(NVTETensor tensor);

/**
 * Returns the address of the column-wise data, or null for a null handle.
 */
void *nvte_tensor_columnwise_data(NVTETensor tensor);

/**
 * Makes a shape of `ndim` dimensions (at most 15), of zeros if `data` is null.
 */
NVTEShape nvte_make_shape(const size_t *data, size_t ndim);

/**
 * Returns the logical shape: that of the row-wise data, otherwise the one that the column-wise data
 * stand for.
 */
NVTEShape nvte_tensor_shape(NVTETensor tensor);

/**
 * Returns the shape of the column-wise data as stored (transposed in most scaling modes).
 */
NVTEShape nvte_tensor_columnwise_shape(NVTETensor tensor);

/**
 * Returns the number of dimensions of the logical shape.
 */
size_t nvte_tensor_ndims(NVTETensor tensor);

/**
 * Returns dimension `dim` of the logical shape.
 */
size_t nvte_tensor_size(NVTETensor tensor, size_t dim);

/**
 * Returns the bytes of the data of the logical shape, or 0 for a null handle.
 */
size_t nvte_tensor_size_bytes(NVTETensor tensor);

/**
 * Returns the number of elements of the logical shape.
 */
size_t nvte_tensor_numel(NVTETensor tensor);

/**
 * Returns the bytes of one element (4 for a null handle). Errors: Float4E2M1, which has half a byte.
 */
size_t nvte_tensor_element_size(NVTETensor tensor);

/**
 * Returns the bits of one element (32 for a null handle).
 */
size_t nvte_tensor_element_size_bits(NVTETensor tensor);

/**
 * Returns the element type of the data (Float32 for a null handle).
 */
NVTEDType nvte_tensor_type(NVTETensor tensor);

/**
 * Returns the address of `amax`, or null for a null handle. Errors: `amax` is not Float32.
 */
float *nvte_tensor_amax(NVTETensor tensor);

/**
 * Returns the address of `scale`, or null for a null handle. Errors: `scale` is not Float32.
 */
float *nvte_tensor_scale(NVTETensor tensor);

/**
 * Returns the address of the row-wise `scale_inv`, whatever its type, or null for a null handle.
 */
float *nvte_tensor_scale_inv(NVTETensor tensor);

/**
 * Returns the shape of the row-wise `scale_inv`, or `(0)` for a null handle.
 */
NVTEShape nvte_tensor_scale_inv_shape(NVTETensor tensor);

/**
 * Sets the row-wise data and `amax` to zero bytes, on the stream. A null handle is ignored.
 */
void nvte_zero_tensor(NVTETensor tensor, cudaStream_t stream);

/**
 * Sets a buffer of the tensor that `tensor` points to. Deprecated: `nvte_set_tensor_param_v2`.
 */
void nvte_set_tensor_param(NVTETensor *tensor,
                           NVTETensorParam param_name,
                           const NVTEBasicTensor *param);

/**
 * Returns a buffer of a tensor; an unset one for a null handle. Deprecated:
 * `nvte_get_tensor_param_v2`.
 */
NVTEBasicTensor nvte_get_tensor_param(NVTETensor tensor, NVTETensorParam param_name);

/**
 * Sets a parameter of a tensor from `size_in_bytes` bytes at `buf`: an `NVTEBasicTensor`, a `uint8_t`
 * flag or an `int`, as the parameter says.
 *
 * Errors: an unknown parameter; too few bytes; an unknown dtype; more than 15 dimensions; a product of
 * dimensions past the address space.
 */
void nvte_set_tensor_param_v2(NVTETensor tensor,
                              NVTETensorParam param,
                              const void *buf,
                              size_t size_in_bytes);

/**
 * Copies a parameter of a tensor to `buf`, and its size to `size_written` (null: nowhere). With a null
 * `buf` only the size is written. A null handle gives the values of an empty tensor. A call that fails
 * writes nothing.
 */
void nvte_get_tensor_param_v2(NVTETensor tensor,
                              NVTETensorParam param,
                              void *buf,
                              size_t size_in_bytes,
                              size_t *size_written);

/**
 * Returns the scaling mode of a tensor; delayed tensor scaling for a null handle.
 */
NVTEScalingMode nvte_tensor_scaling_mode(NVTETensor tensor);

/**
 * Creates the 10 tensors of a pack, in delayed tensor scaling. `size` is left alone. Attention expects
 * it to be 0 at first, so begin with `NVTETensorPack pack = {0}`.
 */
void nvte_tensor_pack_create(NVTETensorPack *pack);

/**
 * Destroys the 10 tensors of a pack, whatever its `size`.
 */
void nvte_tensor_pack_destroy(NVTETensorPack *pack);

/**
 * Creates a quantization config with defaults. Destroy it with `nvte_destroy_quantization_config`.
 */
NVTEQuantizationConfig nvte_create_quantization_config(void);

/**
 * Copies an attribute of a config to `buf`, and its size to `size_written` (null: nowhere). With a
 * null `buf` only the size is written, and then `config` may be null. A call that fails writes
 * nothing.
 */
void nvte_get_quantization_config_attribute(NVTEQuantizationConfig config,
                                            NVTEQuantizationConfigAttribute attr,
                                            void *buf,
                                            size_t size_in_bytes,
                                            size_t *size_written);

/**
 * Sets an attribute of a config from `size_in_bytes` bytes at `buf`. Tensors that are stored this way
 * must live until the operators that use the config have been called.
 */
void nvte_set_quantization_config_attribute(NVTEQuantizationConfig config,
                                            NVTEQuantizationConfigAttribute attr,
                                            const void *buf,
                                            size_t size_in_bytes);

/**
 * Destroys a quantization config. Null is ignored.
 */
void nvte_destroy_quantization_config(NVTEQuantizationConfig config);

/**
 * Returns 1 if FP8 products take operands in any layout on the current device, or 0 if each operand
 * must be contiguous along the contracted dimension (Hopper and the CPU backend).
 */
int32_t nvte_is_non_tn_fp8_gemm_supported(void);

/**
 * Sets `size_in_bytes` bytes to the low 8 bits of `value`, on the stream.
 */
void nvte_memset(void *ptr, int32_t value, size_t size_in_bytes, cudaStream_t stream);

/**
 * Computes the offsets of parts from their sizes: `output[0] = 0`,
 * `output[i + 1] = stride * (split_sizes[0] + ... + split_sizes[i])`.
 *
 * Both are arrays on the device, with `num_splits` and `num_splits + 1` entries. Arithmetic wraps in
 * 64 bits.
 *
 * Errors: null arrays; no splits; a `stride` that is not positive.
 */
void nvte_splits_to_offsets(const int64_t *split_sizes,
                            int64_t *output,
                            size_t num_splits,
                            int64_t stride,
                            cudaStream_t stream);

/**
 * Computes the offsets of matrices from their dimensions: `output[0] = 0`,
 * `output[i + 1] = first_dims[0] * last_dims[0] + ... + first_dims[i] * last_dims[i]`.
 *
 * Shapes: `[n]`, `[n]`, `[n + 1]`, n at least 1. Dtypes: Int32 or Int64 each; Int32 outputs wrap.
 */
void nvte_splits_to_offsets_2d(NVTETensor first_dims,
                               NVTETensor last_dims,
                               NVTETensor output,
                               cudaStream_t stream);

/**
 * Computes several arrays of offsets from the sizes of parts:
 * `outputs[j][i] = strides[j] * (split_sizes[0] + ... + split_sizes[i])`, preceded by a 0 where
 * `include_leading_zero[j]` is not 0. `strides` and `include_leading_zero` are host arrays.
 *
 * Shapes: `[n]` to `[n]` or `[n + 1]`. Dtypes: Int32 or Int64 each; Int32 outputs wrap.
 */
void nvte_splits_to_offsets_multi(NVTETensor split_sizes,
                                  NVTETensor *outputs,
                                  const int64_t *strides,
                                  const int32_t *include_leading_zero,
                                  size_t num_outputs,
                                  cudaStream_t stream);

/**
 * Creates a grouped tensor of `num_tensors` members. Destroy it with `nvte_destroy_grouped_tensor`.
 *
 * Errors: no members; a `logical_shape` that has not exactly 2 dimensions.
 */
NVTEGroupedTensor nvte_create_grouped_tensor(NVTEScalingMode scaling_mode,
                                             size_t num_tensors,
                                             NVTEShape logical_shape);

/**
 * Destroys a grouped tensor. Null is ignored.
 */
void nvte_destroy_grouped_tensor(NVTEGroupedTensor tensor);

/**
 * Sets a parameter of a grouped tensor; dimensions and offsets must be Int64.
 */
void nvte_set_grouped_tensor_param(NVTEGroupedTensor tensor,
                                   NVTEGroupedTensorParam param,
                                   const void *buf,
                                   size_t size_in_bytes);

/**
 * Copies a parameter of a grouped tensor, as `nvte_get_tensor_param_v2` does.
 */
void nvte_get_grouped_tensor_param(NVTEGroupedTensor tensor,
                                   NVTEGroupedTensorParam param,
                                   void *buf,
                                   size_t size_in_bytes,
                                   size_t *size_written);

/**
 * Returns the number of members; 0 for a null handle.
 */
size_t nvte_grouped_tensor_num_tensors(NVTEGroupedTensor tensor);

/**
 * Returns the element type of the data; Float32 for a null handle.
 */
NVTEDType nvte_grouped_tensor_type(NVTEGroupedTensor tensor);

/**
 * Returns the scaling mode; delayed tensor scaling for a null handle.
 */
NVTEScalingMode nvte_grouped_tensor_scaling_mode(NVTEGroupedTensor tensor);

/**
 * Returns the logical shape; `(0)` for a null handle.
 */
NVTEShape nvte_get_grouped_tensor_logical_shape(NVTEGroupedTensor tensor);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_TRANSFORMER_ENGINE_H */
