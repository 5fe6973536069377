#ifndef NVTE_BACKEND_OPERATORS_H
#define NVTE_BACKEND_OPERATORS_H

/* Generated from src/backend/operators.rs and src/backend/args by tests/abi.rs. */

#include "nvte/types.h"
#include "nvte/backend/activation.h"
#include "nvte/backend/attention.h"
#include "nvte/backend/cast.h"
#include "nvte/backend/dropout.h"
#include "nvte/backend/ep.h"
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
 * Fails to compile unless enumerations and structs have the sizes that they have in the library: options such as
 * -fshort-enums and -fpack-struct change them.
 */
#ifdef __cplusplus
#define NVTEX_ASSERT_SIZE(TYPE, BYTES) \
  static_assert(sizeof(TYPE) == BYTES, #TYPE " has another size than in the library")
#else
#define NVTEX_ASSERT_SIZE(TYPE, BYTES) \
  _Static_assert(sizeof(TYPE) == BYTES, #TYPE " has another size than in the library")
#endif

/*
 * Of each operator NVTEX_OP_<NAME>_VERSION, the version of its arguments as major << 16 | minor, their size, and
 * the bits of its features.
 */

#define NVTEX_OP_QUANTIZE_VERSION 0x10000u
#define NVTEX_OP_QUANTIZE_SIZE sizeof(NVTEXQuantizeArgs)
NVTEX_ASSERT_SIZE(NVTEXQuantizeArgs, 240);

#define NVTEX_OP_DEQUANTIZE_VERSION 0x10000u
#define NVTEX_OP_DEQUANTIZE_SIZE sizeof(NVTEXDequantizeArgs)
NVTEX_ASSERT_SIZE(NVTEXDequantizeArgs, 128);

#define NVTEX_OP_TRANSPOSE_VERSION 0x10000u
#define NVTEX_OP_TRANSPOSE_SIZE sizeof(NVTEXTransposeArgs)
NVTEX_ASSERT_SIZE(NVTEXTransposeArgs, 48);

#define NVTEX_OP_AMAX_VERSION 0x10000u
#define NVTEX_OP_AMAX_SIZE sizeof(NVTEXAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXAmaxArgs, 40);

#define NVTEX_OP_SCALE_FROM_AMAX_VERSION 0x10000u
#define NVTEX_OP_SCALE_FROM_AMAX_SIZE sizeof(NVTEXScaleFromAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXScaleFromAmaxArgs, 64);

#define NVTEX_OP_DELAYED_SCALING_VERSION 0x10000u
#define NVTEX_OP_DELAYED_SCALING_SIZE sizeof(NVTEXDelayedScalingArgs)
NVTEX_ASSERT_SIZE(NVTEXDelayedScalingArgs, 48);

#define NVTEX_OP_GEMM_VERSION 0x10000u
#define NVTEX_OP_GEMM_SIZE sizeof(NVTEXGemmArgs)
NVTEX_ASSERT_SIZE(NVTEXGemmArgs, 240);

#define NVTEX_OP_MEMSET_VERSION 0x10000u
#define NVTEX_OP_MEMSET_SIZE sizeof(NVTEXMemsetArgs)
NVTEX_ASSERT_SIZE(NVTEXMemsetArgs, 24);

#define NVTEX_OP_HOST_COPY_VERSION 0x10000u
#define NVTEX_OP_HOST_COPY_SIZE sizeof(NVTEXHostCopyArgs)
NVTEX_ASSERT_SIZE(NVTEXHostCopyArgs, 24);

#define NVTEX_OP_OFFSETS_VERSION 0x10000u
#define NVTEX_OP_OFFSETS_SIZE sizeof(NVTEXOffsetsArgs)
NVTEX_ASSERT_SIZE(NVTEXOffsetsArgs, 48);

#define NVTEX_OP_SCALED_ACTIVATION_VERSION 0x10000u
#define NVTEX_OP_SCALED_ACTIVATION_SIZE sizeof(NVTEXScaledActivationArgs)
NVTEX_ASSERT_SIZE(NVTEXScaledActivationArgs, 104);

#define NVTEX_OP_SOFTMAX_VERSION 0x10000u
#define NVTEX_OP_SOFTMAX_SIZE sizeof(NVTEXSoftmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXSoftmaxArgs, 80);

#define NVTEX_OP_DROPOUT_VERSION 0x10000u
#define NVTEX_OP_DROPOUT_SIZE sizeof(NVTEXDropoutArgs)
NVTEX_ASSERT_SIZE(NVTEXDropoutArgs, 88);

#define NVTEX_OP_ROPE_VERSION 0x10000u
#define NVTEX_OP_ROPE_SIZE sizeof(NVTEXRopeArgs)
NVTEX_ASSERT_SIZE(NVTEXRopeArgs, 440);

#define NVTEX_OP_SWAP_FIRST_DIMS_VERSION 0x10000u
#define NVTEX_OP_SWAP_FIRST_DIMS_SIZE sizeof(NVTEXSwapFirstDimsArgs)
NVTEX_ASSERT_SIZE(NVTEXSwapFirstDimsArgs, 40);

#define NVTEX_OP_TRANSPOSE_DBIAS_VERSION 0x10000u
#define NVTEX_OP_TRANSPOSE_DBIAS_SIZE sizeof(NVTEXTransposeDbiasArgs)
NVTEX_ASSERT_SIZE(NVTEXTransposeDbiasArgs, 64);

#define NVTEX_OP_REQUANTIZE_VERSION 0x10000u
#define NVTEX_OP_REQUANTIZE_SIZE sizeof(NVTEXRequantizeArgs)
NVTEX_ASSERT_SIZE(NVTEXRequantizeArgs, 96);

#define NVTEX_OP_SWIZZLE_VERSION 0x10000u
#define NVTEX_OP_SWIZZLE_SIZE sizeof(NVTEXSwizzleArgs)
NVTEX_ASSERT_SIZE(NVTEXSwizzleArgs, 104);

#define NVTEX_OP_SCALE_CODES_VERSION 0x10000u
#define NVTEX_OP_SCALE_CODES_SIZE sizeof(NVTEXScaleCodesArgs)
NVTEX_ASSERT_SIZE(NVTEXScaleCodesArgs, 48);

#define NVTEX_OP_GROUP_AMAX_VERSION 0x10000u
#define NVTEX_OP_GROUP_AMAX_SIZE sizeof(NVTEXGroupAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXGroupAmaxArgs, 120);

#define NVTEX_OP_PARTIAL_AMAX_VERSION 0x10000u
#define NVTEX_OP_PARTIAL_AMAX_SIZE sizeof(NVTEXPartialAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXPartialAmaxArgs, 96);

#define NVTEX_OP_PARTIAL_CAST_VERSION 0x10000u
#define NVTEX_OP_PARTIAL_CAST_SIZE sizeof(NVTEXPartialCastArgs)
NVTEX_ASSERT_SIZE(NVTEXPartialCastArgs, 112);

#define NVTEX_OP_NORM_FORWARD_VERSION 0x10000u
#define NVTEX_OP_NORM_FORWARD_SIZE sizeof(NVTEXNormForwardArgs)
NVTEX_ASSERT_SIZE(NVTEXNormForwardArgs, 312);

#define NVTEX_OP_NORM_BACKWARD_VERSION 0x10000u
#define NVTEX_OP_NORM_BACKWARD_SIZE sizeof(NVTEXNormBackwardArgs)
NVTEX_ASSERT_SIZE(NVTEXNormBackwardArgs, 128);

#define NVTEX_OP_MOVE_ROWS_VERSION 0x10000u
#define NVTEX_OP_MOVE_ROWS_SIZE sizeof(NVTEXMoveRowsArgs)
NVTEX_ASSERT_SIZE(NVTEXMoveRowsArgs, 152);

#define NVTEX_OP_REINDEX_CACHE_VERSION 0x10000u
#define NVTEX_OP_REINDEX_CACHE_SIZE sizeof(NVTEXReindexCacheArgs)
NVTEX_ASSERT_SIZE(NVTEXReindexCacheArgs, 64);

#define NVTEX_OP_GRAD_CORRECTION_VERSION 0x10000u
#define NVTEX_OP_GRAD_CORRECTION_SIZE sizeof(NVTEXGradCorrectionArgs)
NVTEX_ASSERT_SIZE(NVTEXGradCorrectionArgs, 72);

#define NVTEX_OP_HALF_LSE_VERSION 0x10000u
#define NVTEX_OP_HALF_LSE_SIZE sizeof(NVTEXHalfLseArgs)
NVTEX_ASSERT_SIZE(NVTEXHalfLseArgs, 64);

#define NVTEX_OP_OUT_CORRECTION_VERSION 0x10000u
#define NVTEX_OP_OUT_CORRECTION_SIZE sizeof(NVTEXOutCorrectionArgs)
NVTEX_ASSERT_SIZE(NVTEXOutCorrectionArgs, 112);

#define NVTEX_OP_PARTITION_VERSION 0x10000u
#define NVTEX_OP_PARTITION_SIZE sizeof(NVTEXPartitionArgs)
NVTEX_ASSERT_SIZE(NVTEXPartitionArgs, 48);

#define NVTEX_OP_SEED_VERSION 0x10000u
#define NVTEX_OP_SEED_SIZE sizeof(NVTEXSeedArgs)
NVTEX_ASSERT_SIZE(NVTEXSeedArgs, 40);

#define NVTEX_OP_COPY_ROWS_VERSION 0x10000u
#define NVTEX_OP_COPY_ROWS_SIZE sizeof(NVTEXCopyRowsArgs)
NVTEX_ASSERT_SIZE(NVTEXCopyRowsArgs, 16);

#define NVTEX_OP_ATTENTION_VERSION 0x10000u
#define NVTEX_OP_ATTENTION_SIZE sizeof(NVTEXAttentionArgs)
NVTEX_ASSERT_SIZE(NVTEXAttentionArgs, 1024);

#define NVTEX_OP_ADAM_VERSION 0x10000u
#define NVTEX_OP_ADAM_SIZE sizeof(NVTEXAdamArgs)
NVTEX_ASSERT_SIZE(NVTEXAdamArgs, 104);

#define NVTEX_OP_SGD_VERSION 0x10000u
#define NVTEX_OP_SGD_SIZE sizeof(NVTEXSgdArgs)
NVTEX_ASSERT_SIZE(NVTEXSgdArgs, 64);

#define NVTEX_OP_L2_NORM_VERSION 0x10000u
#define NVTEX_OP_L2_NORM_SIZE sizeof(NVTEXL2NormArgs)
NVTEX_ASSERT_SIZE(NVTEXL2NormArgs, 96);

#define NVTEX_OP_SCALE_TENSORS_VERSION 0x10000u
#define NVTEX_OP_SCALE_TENSORS_SIZE sizeof(NVTEXScaleTensorsArgs)
NVTEX_ASSERT_SIZE(NVTEXScaleTensorsArgs, 48);

#define NVTEX_OP_SCALES_FROM_AMAX_VERSION 0x10000u
#define NVTEX_OP_SCALES_FROM_AMAX_SIZE sizeof(NVTEXScalesFromAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXScalesFromAmaxArgs, 32);

#define NVTEX_OP_ROUTER_FORWARD_VERSION 0x10000u
#define NVTEX_OP_ROUTER_FORWARD_SIZE sizeof(NVTEXRouterForwardArgs)
NVTEX_ASSERT_SIZE(NVTEXRouterForwardArgs, 136);

#define NVTEX_OP_ROUTER_BACKWARD_VERSION 0x10000u
#define NVTEX_OP_ROUTER_BACKWARD_SIZE sizeof(NVTEXRouterBackwardArgs)
NVTEX_ASSERT_SIZE(NVTEXRouterBackwardArgs, 104);

#define NVTEX_OP_ROUTER_HISTOGRAM_VERSION 0x10000u
#define NVTEX_OP_ROUTER_HISTOGRAM_SIZE sizeof(NVTEXRouterHistogramArgs)
NVTEX_ASSERT_SIZE(NVTEXRouterHistogramArgs, 56);

#define NVTEX_OP_AUX_LOSS_VERSION 0x10000u
#define NVTEX_OP_AUX_LOSS_SIZE sizeof(NVTEXAuxLossArgs)
NVTEX_ASSERT_SIZE(NVTEXAuxLossArgs, 80);

#define NVTEX_OP_AUX_LOSS_BACKWARD_VERSION 0x10000u
#define NVTEX_OP_AUX_LOSS_BACKWARD_SIZE sizeof(NVTEXAuxLossBackwardArgs)
NVTEX_ASSERT_SIZE(NVTEXAuxLossBackwardArgs, 56);

#define NVTEX_OP_PADDING_VERSION 0x10000u
#define NVTEX_OP_PADDING_SIZE sizeof(NVTEXPaddingArgs)
NVTEX_ASSERT_SIZE(NVTEXPaddingArgs, 16);

#define NVTEX_OP_ROW_MAP_VERSION 0x10000u
#define NVTEX_OP_ROW_MAP_SIZE sizeof(NVTEXRowMapArgs)
NVTEX_ASSERT_SIZE(NVTEXRowMapArgs, 40);

#define NVTEX_OP_PERMUTE_VERSION 0x10000u
#define NVTEX_OP_PERMUTE_SIZE sizeof(NVTEXPermuteArgs)
NVTEX_ASSERT_SIZE(NVTEXPermuteArgs, 88);

#define NVTEX_OP_UNPERMUTE_VERSION 0x10000u
#define NVTEX_OP_UNPERMUTE_SIZE sizeof(NVTEXUnpermuteArgs)
NVTEX_ASSERT_SIZE(NVTEXUnpermuteArgs, 72);

#define NVTEX_OP_SORT_PAIRS_VERSION 0x10000u
#define NVTEX_OP_SORT_PAIRS_SIZE sizeof(NVTEXSortPairsArgs)
NVTEX_ASSERT_SIZE(NVTEXSortPairsArgs, 56);

#define NVTEX_OP_TOPK_VERSION 0x10000u
#define NVTEX_OP_TOPK_SIZE sizeof(NVTEXTopkArgs)
NVTEX_ASSERT_SIZE(NVTEXTopkArgs, 72);

#define NVTEX_OP_NVFP4_QUANTIZE_VERSION 0x10000u
#define NVTEX_OP_NVFP4_QUANTIZE_SIZE sizeof(NVTEXNvfp4QuantizeArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4QuantizeArgs, 168);

#define NVTEX_OP_NVFP4_DEQUANTIZE_VERSION 0x10000u
#define NVTEX_OP_NVFP4_DEQUANTIZE_SIZE sizeof(NVTEXNvfp4DequantizeArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4DequantizeArgs, 72);

#define NVTEX_OP_HADAMARD_VERSION 0x10000u
#define NVTEX_OP_HADAMARD_SIZE sizeof(NVTEXHadamardArgs)
NVTEX_ASSERT_SIZE(NVTEXHadamardArgs, 40);

#define NVTEX_OP_HADAMARD_AMAX_VERSION 0x10000u
#define NVTEX_OP_HADAMARD_AMAX_SIZE sizeof(NVTEXHadamardAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXHadamardAmaxArgs, 128);

#define NVTEX_OP_NVFP4_TRANSPOSE_VERSION 0x10000u
#define NVTEX_OP_NVFP4_TRANSPOSE_SIZE sizeof(NVTEXNvfp4TransposeArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4TransposeArgs, 32);

#define NVTEX_OP_NVFP4_SCALE_TRANSPOSE_VERSION 0x10000u
#define NVTEX_OP_NVFP4_SCALE_TRANSPOSE_SIZE sizeof(NVTEXNvfp4ScaleTransposeArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4ScaleTransposeArgs, 56);

#define NVTEX_OP_NVFP4_ALPHA_VERSION 0x10000u
#define NVTEX_OP_NVFP4_ALPHA_SIZE sizeof(NVTEXNvfp4AlphaArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4AlphaArgs, 40);

#define NVTEX_OP_NVFP4_GLOBAL_SCALE_VERSION 0x10000u
#define NVTEX_OP_NVFP4_GLOBAL_SCALE_SIZE sizeof(NVTEXNvfp4GlobalScaleArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4GlobalScaleArgs, 24);

#define NVTEX_OP_NVFP4_BLOCK_SCALE_VERSION 0x10000u
#define NVTEX_OP_NVFP4_BLOCK_SCALE_SIZE sizeof(NVTEXNvfp4BlockScaleArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4BlockScaleArgs, 72);

#define NVTEX_OP_NVFP4_PARTIAL_AMAX_VERSION 0x10000u
#define NVTEX_OP_NVFP4_PARTIAL_AMAX_SIZE sizeof(NVTEXNvfp4PartialAmaxArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4PartialAmaxArgs, 72);

#define NVTEX_OP_NVFP4_PARTIAL_CAST_VERSION 0x10000u
#define NVTEX_OP_NVFP4_PARTIAL_CAST_SIZE sizeof(NVTEXNvfp4PartialCastArgs)
NVTEX_ASSERT_SIZE(NVTEXNvfp4PartialCastArgs, 88);

#define NVTEX_OP_GROUPED_GEMM_VERSION 0x10000u
#define NVTEX_OP_GROUPED_GEMM_SIZE sizeof(NVTEXGroupedGemmArgs)
NVTEX_ASSERT_SIZE(NVTEXGroupedGemmArgs, 488);

#define NVTEX_OP_GROUPED_BIAS_VERSION 0x10000u
#define NVTEX_OP_GROUPED_BIAS_SIZE sizeof(NVTEXGroupedBiasArgs)
NVTEX_ASSERT_SIZE(NVTEXGroupedBiasArgs, 64);

#define NVTEX_OP_WIDEN_VERSION 0x10000u
#define NVTEX_OP_WIDEN_SIZE sizeof(NVTEXWidenArgs)
NVTEX_ASSERT_SIZE(NVTEXWidenArgs, 32);

#define NVTEX_OP_COUNTERS_VERSION 0x10000u
#define NVTEX_OP_COUNTERS_SIZE sizeof(NVTEXCountersArgs)
NVTEX_ASSERT_SIZE(NVTEXCountersArgs, 32);

#define NVTEX_OP_ADD_VERSION 0x10000u
#define NVTEX_OP_ADD_SIZE sizeof(NVTEXAddArgs)
NVTEX_ASSERT_SIZE(NVTEXAddArgs, 32);

#define NVTEX_OP_EXPERT_ROWS_VERSION 0x10000u
#define NVTEX_OP_EXPERT_ROWS_SIZE sizeof(NVTEXExpertRowsArgs)
NVTEX_ASSERT_SIZE(NVTEXExpertRowsArgs, 112);

#endif  /* NVTE_BACKEND_OPERATORS_H */
