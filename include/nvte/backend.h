#ifndef NVTE_BACKEND_H
#define NVTE_BACKEND_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/activation.h"
#include "nvte/backend/attention.h"
#include "nvte/backend/cast.h"
#include "nvte/backend/dropout.h"
#include "nvte/backend/function.h"
#include "nvte/backend/fused_attn.h"
#include "nvte/backend/fused_rope.h"
#include "nvte/backend/fused_router.h"
#include "nvte/backend/gemm.h"
#include "nvte/backend/group.h"
#include "nvte/backend/grouped_gemm.h"
#include "nvte/backend/hadamard_transform.h"
#include "nvte/backend/multi_tensor.h"
#include "nvte/backend/normalization.h"
#include "nvte/backend/nvfp4.h"
#include "nvte/backend/nvtex.h"
#include "nvte/backend/outcome.h"
#include "nvte/backend/padding.h"
#include "nvte/backend/permutation.h"
#include "nvte/backend/recipe.h"
#include "nvte/backend/softmax.h"
#include "nvte/backend/swizzle.h"
#include "nvte/backend/topk.h"
#include "nvte/backend/transformer_engine.h"
#include "nvte/backend/transpose.h"
#include "nvte/backend/utils.h"

/**
 * Bump when a struct that backends see changes incompatibly.
 */
#define NVTEX_BACKEND_API_VERSION 5

/**
 * Functions of a backend. A null entry is unimplemented.
 */
typedef struct NVTEXOpTable {
  /**
   * Bytes of this struct as the backend was built.
   */
  size_t struct_size;
  /**
   * `NVTEX_BACKEND_API_VERSION` as the backend was built.
   */
  uint32_t api_version;
  NVTEXOutcome (*quantize)(const NVTEXQuantizeArgs*, cudaStream_t);
  NVTEXOutcome (*dequantize)(const NVTEXDequantizeArgs*, cudaStream_t);
  NVTEXOutcome (*transpose)(const NVTEXTransposeArgs*, cudaStream_t);
  NVTEXOutcome (*amax)(const NVTEXAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*scale_from_amax)(const NVTEXScaleFromAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*delayed_scaling)(const NVTEXDelayedScalingArgs*, cudaStream_t);
  NVTEXOutcome (*gemm)(const NVTEXGemmArgs*, cudaStream_t);
  NVTEXOutcome (*memset)(const NVTEXMemsetArgs*, cudaStream_t);
  NVTEXOutcome (*host_copy)(const NVTEXHostCopyArgs*, cudaStream_t);
  NVTEXOutcome (*offsets)(const NVTEXOffsetsArgs*, cudaStream_t);
  NVTEXOutcome (*scaled_activation)(const NVTEXScaledActivationArgs*, cudaStream_t);
  NVTEXOutcome (*softmax)(const NVTEXSoftmaxArgs*, cudaStream_t);
  NVTEXOutcome (*dropout)(const NVTEXDropoutArgs*, cudaStream_t);
  NVTEXOutcome (*rope)(const NVTEXRopeArgs*, cudaStream_t);
  /**
   * 10 * major + minor of the current device, 0 for a backend without one.
   */
  NVTEXOutcome (*device_arch)(int *arch);
  /**
   * Memory of the current device, aligned to 256 bytes. `bytes` is not 0.
   */
  NVTEXOutcome (*device_malloc)(void **ptr, size_t bytes);
  NVTEXOutcome (*device_free)(void *ptr);
  /**
   * Asynchronous on the stream, except that copies from and to pageable memory may block.
   */
  NVTEXOutcome (*device_memcpy)(void *dst,
                                const void *src,
                                size_t bytes,
                                NVTEXCopyKind kind,
                                cudaStream_t stream);
  /**
   * Copies device bytes to the host and waits for them. `*copied` is false, and nothing was copied, while
   * the stream is being captured into a graph.
   */
  NVTEXOutcome (*read_back)(void *dst,
                            const void *src,
                            size_t bytes,
                            bool *copied,
                            cudaStream_t stream);
  NVTEXOutcome (*stream_create)(cudaStream_t *stream);
  NVTEXOutcome (*stream_destroy)(cudaStream_t stream);
  NVTEXOutcome (*stream_synchronize)(cudaStream_t stream);
  /**
   * Whether the stream is being captured into a graph. A backend without the entry may capture any time.
   */
  NVTEXOutcome (*stream_is_capturing)(cudaStream_t stream, bool *capturing);
  /**
   * Stream `index` of the current device's pool, created on first use.
   */
  NVTEXOutcome (*compute_stream)(int index, cudaStream_t *stream);
  /**
   * Event `index` of the current device's pool, created on first use.
   */
  NVTEXOutcome (*compute_event)(int index, cudaEvent_t *event);
  NVTEXOutcome (*swap_first_dims)(const NVTEXSwapFirstDimsArgs*, cudaStream_t);
  NVTEXOutcome (*transpose_dbias)(const NVTEXTransposeDbiasArgs*, cudaStream_t);
  NVTEXOutcome (*requantize)(const NVTEXRequantizeArgs*, cudaStream_t);
  NVTEXOutcome (*swizzle)(const NVTEXSwizzleArgs*, cudaStream_t);
  NVTEXOutcome (*scale_codes)(const NVTEXScaleCodesArgs*, cudaStream_t);
  NVTEXOutcome (*group_amax)(const NVTEXGroupAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*partial_amax)(const NVTEXPartialAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*partial_cast)(const NVTEXPartialCastArgs*, cudaStream_t);
  NVTEXOutcome (*norm_forward)(const NVTEXNormForwardArgs*, cudaStream_t);
  NVTEXOutcome (*norm_backward)(const NVTEXNormBackwardArgs*, cudaStream_t);
  NVTEXOutcome (*move_rows)(const NVTEXMoveRowsArgs*, cudaStream_t);
  NVTEXOutcome (*reindex_cache)(const NVTEXReindexCacheArgs*, cudaStream_t);
  NVTEXOutcome (*grad_correction)(const NVTEXGradCorrectionArgs*, cudaStream_t);
  NVTEXOutcome (*half_lse)(const NVTEXHalfLseArgs*, cudaStream_t);
  NVTEXOutcome (*out_correction)(const NVTEXOutCorrectionArgs*, cudaStream_t);
  NVTEXOutcome (*partition)(const NVTEXPartitionArgs*, cudaStream_t);
  NVTEXOutcome (*seed)(const NVTEXSeedArgs*, cudaStream_t);
  NVTEXOutcome (*copy_rows)(const NVTEXCopyRowsArgs*, cudaStream_t);
  /**
   * The implementation of a pass and its workspace; UNIMPLEMENTED with all reasons if there is none.
   */
  NVTEXOutcome (*attention_plan)(const NVTEXAttentionArgs*, NVTEXAttentionPlan*);
  NVTEXOutcome (*attention)(const NVTEXAttentionArgs*, cudaStream_t);
  NVTEXOutcome (*adam)(const NVTEXAdamArgs*, cudaStream_t);
  NVTEXOutcome (*sgd)(const NVTEXSgdArgs*, cudaStream_t);
  NVTEXOutcome (*l2_norm)(const NVTEXL2NormArgs*, cudaStream_t);
  NVTEXOutcome (*scale_tensors)(const NVTEXScaleTensorsArgs*, cudaStream_t);
  NVTEXOutcome (*scales_from_amax)(const NVTEXScalesFromAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*router_forward)(const NVTEXRouterForwardArgs*, cudaStream_t);
  NVTEXOutcome (*router_backward)(const NVTEXRouterBackwardArgs*, cudaStream_t);
  NVTEXOutcome (*router_histogram)(const NVTEXRouterHistogramArgs*, cudaStream_t);
  NVTEXOutcome (*aux_loss)(const NVTEXAuxLossArgs*, cudaStream_t);
  NVTEXOutcome (*aux_loss_backward)(const NVTEXAuxLossBackwardArgs*, cudaStream_t);
  NVTEXOutcome (*padding)(const NVTEXPaddingArgs*, cudaStream_t);
  NVTEXOutcome (*row_map)(const NVTEXRowMapArgs*, cudaStream_t);
  NVTEXOutcome (*permute)(const NVTEXPermuteArgs*, cudaStream_t);
  NVTEXOutcome (*unpermute)(const NVTEXUnpermuteArgs*, cudaStream_t);
  NVTEXOutcome (*sort_pairs)(const NVTEXSortPairsArgs*, cudaStream_t);
  NVTEXOutcome (*topk)(const NVTEXTopkArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_quantize)(const NVTEXNvfp4QuantizeArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_dequantize)(const NVTEXNvfp4DequantizeArgs*, cudaStream_t);
  NVTEXOutcome (*hadamard)(const NVTEXHadamardArgs*, cudaStream_t);
  NVTEXOutcome (*hadamard_amax)(const NVTEXHadamardAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_transpose)(const NVTEXNvfp4TransposeArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_scale_transpose)(const NVTEXNvfp4ScaleTransposeArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_alpha)(const NVTEXNvfp4AlphaArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_global_scale)(const NVTEXNvfp4GlobalScaleArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_block_scale)(const NVTEXNvfp4BlockScaleArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_partial_amax)(const NVTEXNvfp4PartialAmaxArgs*, cudaStream_t);
  NVTEXOutcome (*nvfp4_partial_cast)(const NVTEXNvfp4PartialCastArgs*, cudaStream_t);
  NVTEXOutcome (*grouped_gemm)(const NVTEXGroupedGemmArgs*, cudaStream_t);
  NVTEXOutcome (*grouped_bias)(const NVTEXGroupedBiasArgs*, cudaStream_t);
  NVTEXOutcome (*widen)(const NVTEXWidenArgs*, cudaStream_t);
  /**
   * Streams of the calling thread, at most 4, that wait for what is on `stream` by now.
   */
  NVTEXOutcome (*fork)(cudaStream_t stream, int count, cudaStream_t *branches);
  /**
   * `stream` waits for what is on the first `count` of them by now.
   */
  NVTEXOutcome (*join)(cudaStream_t stream, int count);
  NVTEXOutcome (*counters)(const NVTEXCountersArgs*, cudaStream_t);
} NVTEXOpTable;

#endif  /* NVTE_BACKEND_H */
