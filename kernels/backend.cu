// The table of the CUDA backend. The matrix product is added by its owner, which loads cuBLASLt.

#include "nvte/backend.h"

extern "C" {
NVTEXOutcome nvte_cuda_quantize(const NVTEXQuantizeArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_dequantize(const NVTEXDequantizeArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_amax(const NVTEXAmaxArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_scale_from_amax(const NVTEXScaleFromAmaxArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_delayed_scaling(const NVTEXDelayedScalingArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_memset(const NVTEXMemsetArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_host_copy(const NVTEXHostCopyArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_offsets(const NVTEXOffsetsArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_scaled_activation(const NVTEXScaledActivationArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_softmax(const NVTEXSoftmaxArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_dropout(const NVTEXDropoutArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_rope(const NVTEXRopeArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_device_arch(int *) noexcept;
NVTEXOutcome nvte_cuda_device_malloc(void **, size_t) noexcept;
NVTEXOutcome nvte_cuda_device_free(void *) noexcept;
NVTEXOutcome nvte_cuda_device_memcpy(void *, const void *, size_t, NVTEXCopyKind,
                                     cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_stream_create(cudaStream_t *) noexcept;
NVTEXOutcome nvte_cuda_stream_destroy(cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_stream_synchronize(cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_compute_stream(int, cudaStream_t *) noexcept;
NVTEXOutcome nvte_cuda_compute_event(int, cudaEvent_t *) noexcept;
NVTEXOutcome nvte_cuda_swap_first_dims(const NVTEXSwapFirstDimsArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_transpose_dbias(const NVTEXTransposeDbiasArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_requantize(const NVTEXRequantizeArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_swizzle(const NVTEXSwizzleArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_scale_codes(const NVTEXScaleCodesArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_group_amax(const NVTEXGroupAmaxArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_partial_amax(const NVTEXPartialAmaxArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_partial_cast(const NVTEXPartialCastArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_norm_forward(const NVTEXNormForwardArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_norm_backward(const NVTEXNormBackwardArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_move_rows(const NVTEXMoveRowsArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_reindex_cache(const NVTEXReindexCacheArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_grad_correction(const NVTEXGradCorrectionArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_half_lse(const NVTEXHalfLseArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_out_correction(const NVTEXOutCorrectionArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_partition(const NVTEXPartitionArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_seed(const NVTEXSeedArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_copy_rows(const NVTEXCopyRowsArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_adam(const NVTEXAdamArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_sgd(const NVTEXSgdArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_l2_norm(const NVTEXL2NormArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_scale_tensors(const NVTEXScaleTensorsArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_scales_from_amax(const NVTEXScalesFromAmaxArgs *, cudaStream_t) noexcept;
NVTEXOutcome nvte_cuda_attention_plan(const NVTEXAttentionArgs *, NVTEXAttentionPlan *) noexcept;
NVTEXOutcome nvte_cuda_attention(const NVTEXAttentionArgs *, cudaStream_t) noexcept;
}

extern "C" void nvte_cuda_table(NVTEXOpTable *table) noexcept {
  *table = {};
  table->struct_size = sizeof(NVTEXOpTable);
  table->api_version = NVTEX_BACKEND_API_VERSION;
  table->quantize = nvte_cuda_quantize;
  table->dequantize = nvte_cuda_dequantize;
  table->transpose = nvte_cuda_transpose;
  table->amax = nvte_cuda_amax;
  table->scale_from_amax = nvte_cuda_scale_from_amax;
  table->delayed_scaling = nvte_cuda_delayed_scaling;
  table->memset = nvte_cuda_memset;
  table->host_copy = nvte_cuda_host_copy;
  table->offsets = nvte_cuda_offsets;
  table->scaled_activation = nvte_cuda_scaled_activation;
  table->softmax = nvte_cuda_softmax;
  table->dropout = nvte_cuda_dropout;
  table->rope = nvte_cuda_rope;
  table->device_arch = nvte_cuda_device_arch;
  table->device_malloc = nvte_cuda_device_malloc;
  table->device_free = nvte_cuda_device_free;
  table->device_memcpy = nvte_cuda_device_memcpy;
  table->stream_create = nvte_cuda_stream_create;
  table->stream_destroy = nvte_cuda_stream_destroy;
  table->stream_synchronize = nvte_cuda_stream_synchronize;
  table->compute_stream = nvte_cuda_compute_stream;
  table->compute_event = nvte_cuda_compute_event;
  table->swap_first_dims = nvte_cuda_swap_first_dims;
  table->transpose_dbias = nvte_cuda_transpose_dbias;
  table->requantize = nvte_cuda_requantize;
  table->swizzle = nvte_cuda_swizzle;
  table->scale_codes = nvte_cuda_scale_codes;
  table->group_amax = nvte_cuda_group_amax;
  table->partial_amax = nvte_cuda_partial_amax;
  table->partial_cast = nvte_cuda_partial_cast;
  table->norm_forward = nvte_cuda_norm_forward;
  table->norm_backward = nvte_cuda_norm_backward;
  table->move_rows = nvte_cuda_move_rows;
  table->reindex_cache = nvte_cuda_reindex_cache;
  table->grad_correction = nvte_cuda_grad_correction;
  table->half_lse = nvte_cuda_half_lse;
  table->out_correction = nvte_cuda_out_correction;
  table->partition = nvte_cuda_partition;
  table->seed = nvte_cuda_seed;
  table->copy_rows = nvte_cuda_copy_rows;
  table->adam = nvte_cuda_adam;
  table->sgd = nvte_cuda_sgd;
  table->l2_norm = nvte_cuda_l2_norm;
  table->scale_tensors = nvte_cuda_scale_tensors;
  table->scales_from_amax = nvte_cuda_scales_from_amax;
  table->attention_plan = nvte_cuda_attention_plan;
  table->attention = nvte_cuda_attention;
}
