#ifndef NVTE_TYPES_H
#define NVTE_TYPES_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Version of these headers; `nvtex_version_number` returns that of the library.
 */
#define NVTE_VERSION_MAJOR 0
#define NVTE_VERSION_MINOR 1
#define NVTE_VERSION_PATCH 0

/**
 * A version as a number, so that later versions are greater: `#if NVTE_VERSION >= NVTE_MAKE_VERSION(0, 1, 0)`.
 */
#define NVTE_MAKE_VERSION(major, minor, patch) ((major) * 1000000 + (minor) * 1000 + (patch))
#define NVTE_VERSION \
  NVTE_MAKE_VERSION(NVTE_VERSION_MAJOR, NVTE_VERSION_MINOR, NVTE_VERSION_PATCH)

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem ncclWindow_vidmem;

/**
 * Element type of a buffer.
 */
typedef enum NVTEDType {
  kNVTEByte = 0,
  kNVTEInt16 = 1,
  kNVTEInt32 = 2,
  kNVTEInt64 = 3,
  kNVTEFloat32 = 4,
  kNVTEFloat16 = 5,
  kNVTEBFloat16 = 6,
  kNVTEFloat8E4M3 = 7,
  kNVTEFloat8E5M2 = 8,
  kNVTEFloat8E8M0 = 9,
  kNVTEFloat4E2M1 = 10,
  kNVTENumTypes = 11,
} NVTEDType;

/**
 * How the scales of a tensor are laid out; mode 0 is also "not quantized".
 */
typedef enum NVTEScalingMode {
  NVTE_DELAYED_TENSOR_SCALING = 0,
  NVTE_MXFP8_1D_SCALING = 1,
  NVTE_BLOCK_SCALING_1D = 2,
  NVTE_BLOCK_SCALING_2D = 3,
  NVTE_NVFP4_1D_SCALING = 4,
  NVTE_INVALID_SCALING = 100,
} NVTEScalingMode;

/**
 * Kind of normalization.
 */
typedef enum NVTE_Norm_Type {
  LayerNorm = 0,
  RMSNorm = 1,
} NVTE_Norm_Type;

/**
 * How a map of tokens to experts is stored: a byte or a bit for each expert.
 */
typedef enum NVTERoutingMapFormat {
  NVTE_ROUTING_MAP_FORMAT_BYTEMAP = 0,
  NVTE_ROUTING_MAP_FORMAT_BITMAP_U8 = 1,
} NVTERoutingMapFormat;

/**
 * Whether the router itself counts distances to the cutoff.
 */
typedef enum NVTEQBHistogramMode {
  NVTE_QB_HISTOGRAM_TWO_KERNEL = 0,
  NVTE_QB_HISTOGRAM_FUSED_ATOMIC = 1,
} NVTEQBHistogramMode;

/**
 * Parameters of a tensor handle.
 */
typedef enum NVTETensorParam {
  kNVTERowwiseData = 0,
  kNVTEColumnwiseData = 1,
  kNVTEScale = 2,
  kNVTEAmax = 3,
  kNVTERowwiseScaleInv = 4,
  kNVTEColumnwiseScaleInv = 5,
  kNVTEColumnwiseAmax = 6,
  kNVTEWithGEMMSwizzledScales = 7,
  kNVTERowScaledNVFP4 = 8,
  kNVTENVFP4E4M3Max = 9,
  kNVTENumTensorParams = 10,
} NVTETensorParam;

/**
 * Parameters of a grouped tensor handle.
 */
typedef enum NVTEGroupedTensorParam {
  kNVTEGroupedRowwiseData = 0,
  kNVTEGroupedColumnwiseData = 1,
  kNVTEGroupedScale = 2,
  kNVTEGroupedAmax = 3,
  kNVTEGroupedRowwiseScaleInv = 4,
  kNVTEGroupedColumnwiseScaleInv = 5,
  kNVTEGroupedColumnwiseAmax = 6,
  kNVTEGroupedFirstDims = 7,
  kNVTEGroupedLastDims = 8,
  kNVTEGroupedTensorOffsets = 9,
  kNVTEGroupedWithGEMMSwizzledScales = 10,
  kNVTENumGroupedTensorParams = 11,
} NVTEGroupedTensorParam;

/**
 * Block-scale selection rule of NVFP4 quantization.
 */
typedef enum NVTENVFP44Over6Mode {
  kNVTENVFP44Over6Disabled = 0,
  kNVTENVFP44Over6MinMAE = 1,
  kNVTENVFP44Over6MinMSE = 2,
} NVTENVFP44Over6Mode;

/**
 * Attributes of a quantization config.
 */
typedef enum NVTEQuantizationConfigAttribute {
  kNVTEQuantizationConfigForcePow2Scales = 0,
  kNVTEQuantizationConfigAmaxEpsilon = 1,
  kNVTEQuantizationConfigNoopTensor = 2,
  kNVTEQuantizationConfigFloat8BlockScaleTensorFormat = 3,
  kNVTEQuantizationConfigRNGState = 4,
  kNVTEQuantizationConfigNVFP42DQuantization = 5,
  kNVTEQuantizationConfigStochasticRounding = 6,
  kNVTEQuantizationConfigUseFastMath = 7,
  kNVTEQuantizationConfigNVFP44Over6Mode = 8,
  kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath = 9,
  kNVTEQuantizationConfigMXFP82DQuantization = 10,
  kNVTEQuantizationConfigNumAttributes = 11,
} NVTEQuantizationConfigAttribute;

/**
 * Attributes of a matmul config.
 */
typedef enum NVTEMatmulConfigAttribute {
  kNVTEMatmulConfigBiasTensor = 0,
  kNVTEMatmulConfigDBiasTensor = 1,
  kNVTEMatmulConfigWithGELUEpilogue = 2,
  kNVTEMatmulConfigWithDGELUEpilogue = 3,
  kNVTEMatmulConfigEpilogueAuxTensor = 4,
  kNVTEMatmulConfigUseSplitAccumulator = 5,
  kNVTEMatmulConfigSMCount = 6,
  kNVTEMatmulConfigNumAttributes = 7,
} NVTEMatmulConfigAttribute;

/**
 * Attributes of a grouped matmul config.
 */
typedef enum NVTEGroupedMatmulConfigAttribute {
  kNVTEGroupedMatmulConfigAvgM = 0,
  kNVTEGroupedMatmulConfigAvgN = 1,
  kNVTEGroupedMatmulConfigAvgK = 2,
  kNVTEGroupedMatmulConfigSMCount = 3,
  kNVTEGroupedMatmulConfigUseSplitAccumulator = 4,
  kNVTEGroupedMatmulConfigNumAttributes = 5,
} NVTEGroupedMatmulConfigAttribute;

/**
 * Activations, plain and gated. No function takes such a value.
 */
typedef enum NVTE_Activation_Type {
  GELU = 0,
  GEGLU = 1,
  GLU = 2,
  SILU = 3,
  SWIGLU = 4,
  RELU = 5,
  REGLU = 6,
  QGELU = 7,
  QGEGLU = 8,
  SRELU = 9,
  SREGLU = 10,
  CLAMPED_SWIGLU = 11,
} NVTE_Activation_Type;

/**
 * Order of the dimensions of queries, keys and values: sequence, batch, heads, elements, or packed
 * tokens (T) of all sequences.
 */
typedef enum NVTE_QKV_Format {
  NVTE_SBHD = 0,
  NVTE_BSHD = 1,
  NVTE_THD = 2,
  NVTE_BSHD_2SBHD = 3,
  NVTE_SBHD_2BSHD = 4,
  NVTE_THD_2BSHD = 5,
  NVTE_THD_2SBHD = 6,
  NVTE_BHSD = 7,
  NVTE_QKV_Format_NOT_SET = 8,
} NVTE_QKV_Format;

/**
 * How queries, keys and values lie in memory: dimensions in order (sequence, batch, heads, elements, or
 * packed tokens T), 3 or 2 of them interleaved, or one after the other.
 */
typedef enum NVTE_QKV_Layout {
  NVTE_SB3HD = 0,
  NVTE_SBH3D = 1,
  NVTE_SBHD_SB2HD = 2,
  NVTE_SBHD_SBH2D = 3,
  NVTE_SBHD_SBHD_SBHD = 4,
  NVTE_BS3HD = 5,
  NVTE_BSH3D = 6,
  NVTE_BSHD_BS2HD = 7,
  NVTE_BSHD_BSH2D = 8,
  NVTE_BSHD_BSHD_BSHD = 9,
  NVTE_T3HD = 10,
  NVTE_TH3D = 11,
  NVTE_THD_T2HD = 12,
  NVTE_THD_TH2D = 13,
  NVTE_THD_THD_THD = 14,
  NVTE_SBHD_BSHD_BSHD = 15,
  NVTE_BSHD_SBHD_SBHD = 16,
  NVTE_THD_BSHD_BSHD = 17,
  NVTE_THD_SBHD_SBHD = 18,
  NVTE_Paged_KV_BSHD_BSHD_BSHD = 19,
  NVTE_Paged_KV_BSHD_SBHD_SBHD = 20,
  NVTE_Paged_KV_SBHD_BSHD_BSHD = 21,
  NVTE_Paged_KV_SBHD_SBHD_SBHD = 22,
  NVTE_Paged_KV_THD_BSHD_BSHD = 23,
  NVTE_Paged_KV_THD_SBHD_SBHD = 24,
  NVTE_BHSD_BHSD_BHSD = 25,
  NVTE_QKV_Layout_NOT_SET = 26,
} NVTE_QKV_Layout;

/**
 * Which of the three are interleaved, and where.
 */
typedef enum NVTE_QKV_Layout_Group {
  NVTE_3HD = 0,
  NVTE_H3D = 1,
  NVTE_HD_2HD = 2,
  NVTE_HD_H2D = 3,
  NVTE_HD_HD_HD = 4,
  NVTE_Paged_KV_HD_HD_HD = 5,
  NVTE_SD_SD_SD = 6,
} NVTE_QKV_Layout_Group;

/**
 * What is added to the scores.
 */
typedef enum NVTE_Bias_Type {
  NVTE_NO_BIAS = 0,
  NVTE_PRE_SCALE_BIAS = 1,
  NVTE_POST_SCALE_BIAS = 2,
  NVTE_ALIBI = 3,
} NVTE_Bias_Type;

/**
 * Which scores count.
 */
typedef enum NVTE_Mask_Type {
  NVTE_NO_MASK = 0,
  NVTE_PADDING_MASK = 1,
  NVTE_CAUSAL_MASK = 2,
  NVTE_PADDING_CAUSAL_MASK = 3,
  NVTE_CAUSAL_BOTTOM_RIGHT_MASK = 4,
  NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK = 5,
} NVTE_Mask_Type;

/**
 * Whether the softmax has one more column.
 */
typedef enum NVTE_Softmax_Type {
  NVTE_VANILLA_SOFTMAX = 0,
  NVTE_OFF_BY_ONE_SOFTMAX = 1,
  NVTE_LEARNABLE_SOFTMAX = 2,
} NVTE_Softmax_Type;

/**
 * Kind of implementation of an attention.
 */
typedef enum NVTE_Fused_Attn_Backend {
  NVTE_No_Backend = -1,
  NVTE_F16_arbitrary_seqlen = 1,
  NVTE_FP8 = 2,
} NVTE_Fused_Attn_Backend;

/**
 * Attributes of a config of attention.
 */
typedef enum NVTEFusedAttnConfigAttribute {
  kNVTEFusedAttnConfigIsTraining = 0,
  kNVTEFusedAttnConfigDeterministic = 1,
  kNVTEFusedAttnConfigCudaGraph = 2,
  kNVTEFusedAttnConfigReturnMaxLogit = 3,
  kNVTEFusedAttnConfigAttnMaskType = 4,
  kNVTEFusedAttnConfigBiasType = 5,
  kNVTEFusedAttnConfigWindowSizeLeft = 6,
  kNVTEFusedAttnConfigWindowSizeRight = 7,
  kNVTEFusedAttnConfigBottomRightDiagonal = 8,
  kNVTEFusedAttnConfigSoftmaxType = 9,
  kNVTEFusedAttnConfigScalingMode = 10,
  kNVTEFusedAttnConfigDropout = 11,
  kNVTEFusedAttnConfigAttnScale = 12,
  kNVTEFusedAttnConfigQKVDtype = 13,
  kNVTEFusedAttnConfigODtype = 14,
  kNVTEFusedAttnConfigDODtype = 15,
  kNVTEFusedAttnConfigDQKVDtype = 16,
  kNVTEFusedAttnConfigQKVLayout = 17,
  kNVTEFusedAttnConfigOFormat = 18,
  kNVTEFusedAttnConfigDOFormat = 19,
  kNVTEFusedAttnConfigDQKVLayout = 20,
  kNVTEFusedAttnConfigQKVScaleInvFormat = 21,
  kNVTEFusedAttnConfigDOScaleInvFormat = 22,
  kNVTEFusedAttnConfigBatchSize = 23,
  kNVTEFusedAttnConfigNumAttnHeads = 24,
  kNVTEFusedAttnConfigNumGQAGroups = 25,
  kNVTEFusedAttnConfigHeadDimQK = 26,
  kNVTEFusedAttnConfigHeadDimV = 27,
  kNVTEFusedAttnConfigMaxSeqlenQ = 28,
  kNVTEFusedAttnConfigMaxSeqlenKV = 29,
  kNVTEFusedAttnConfigNumTokensQ = 30,
  kNVTEFusedAttnConfigNumTokensKV = 31,
  kNVTEFusedAttnConfigNumPagesK = 32,
  kNVTEFusedAttnConfigNumPagesV = 33,
  kNVTEFusedAttnConfigPageSizeK = 34,
  kNVTEFusedAttnConfigPageSizeV = 35,
  kNVTEFusedAttnConfigMaxPagesPerSeqK = 36,
  kNVTEFusedAttnConfigMaxPagesPerSeqV = 37,
  kNVTEFusedAttnConfigBiasBatchSize = 38,
  kNVTEFusedAttnConfigBiasNumHeads = 39,
  kNVTEFusedAttnConfigBiasSeqlenQ = 40,
  kNVTEFusedAttnConfigBiasSeqlenKV = 41,
  kNVTEFusedAttnConfigNumAttributes = 42,
} NVTEFusedAttnConfigAttribute;

/**
 * Attributes of the parameters of a forward attention.
 */
typedef enum NVTEFusedAttnFwdParamsAttribute {
  kNVTEFusedAttnFwdParamsQ = 0,
  kNVTEFusedAttnFwdParamsK = 1,
  kNVTEFusedAttnFwdParamsV = 2,
  kNVTEFusedAttnFwdParamsBias = 3,
  kNVTEFusedAttnFwdParamsSoftmaxOffset = 4,
  kNVTEFusedAttnFwdParamsS = 5,
  kNVTEFusedAttnFwdParamsO = 6,
  kNVTEFusedAttnFwdParamsAuxCtxTensors = 7,
  kNVTEFusedAttnFwdParamsCuSeqlensQ = 8,
  kNVTEFusedAttnFwdParamsCuSeqlensKV = 9,
  kNVTEFusedAttnFwdParamsCuSeqlensQPadded = 10,
  kNVTEFusedAttnFwdParamsCuSeqlensKVPadded = 11,
  kNVTEFusedAttnFwdParamsPageTableK = 12,
  kNVTEFusedAttnFwdParamsPageTableV = 13,
  kNVTEFusedAttnFwdParamsRngState = 14,
  kNVTEFusedAttnFwdParamsIsTraining = 15,
  kNVTEFusedAttnFwdParamsCudaGraph = 16,
  kNVTEFusedAttnFwdParamsReturnMaxLogit = 17,
  kNVTEFusedAttnFwdParamsAttnMaskType = 18,
  kNVTEFusedAttnFwdParamsBiasType = 19,
  kNVTEFusedAttnFwdParamsWindowSizeLeft = 20,
  kNVTEFusedAttnFwdParamsWindowSizeRight = 21,
  kNVTEFusedAttnFwdParamsBottomRightDiagonal = 22,
  kNVTEFusedAttnFwdParamsSoftmaxType = 23,
  kNVTEFusedAttnFwdParamsDropout = 24,
  kNVTEFusedAttnFwdParamsAttnScale = 25,
  kNVTEFusedAttnFwdParamsQKVLayout = 26,
  kNVTEFusedAttnFwdParamsOFormat = 27,
  kNVTEFusedAttnFwdParamsQKVScaleInvFormat = 28,
  kNVTEFusedAttnFwdParamsMaxSeqlenQ = 29,
  kNVTEFusedAttnFwdParamsMaxSeqlenKV = 30,
  kNVTEFusedAttnFwdParamsWorkspace = 31,
  kNVTEFusedAttnFwdParamsStream = 32,
  kNVTEFusedAttnFwdParamsNumAttributes = 33,
} NVTEFusedAttnFwdParamsAttribute;

/**
 * Attributes of the parameters of a backward attention.
 */
typedef enum NVTEFusedAttnBwdParamsAttribute {
  kNVTEFusedAttnBwdParamsQ = 0,
  kNVTEFusedAttnBwdParamsK = 1,
  kNVTEFusedAttnBwdParamsV = 2,
  kNVTEFusedAttnBwdParamsO = 3,
  kNVTEFusedAttnBwdParamsDO = 4,
  kNVTEFusedAttnBwdParamsS = 5,
  kNVTEFusedAttnBwdParamsDP = 6,
  kNVTEFusedAttnBwdParamsAuxCtxTensors = 7,
  kNVTEFusedAttnBwdParamsDQ = 8,
  kNVTEFusedAttnBwdParamsDK = 9,
  kNVTEFusedAttnBwdParamsDV = 10,
  kNVTEFusedAttnBwdParamsDBias = 11,
  kNVTEFusedAttnBwdParamsDSoftmaxOffset = 12,
  kNVTEFusedAttnBwdParamsCuSeqlensQ = 13,
  kNVTEFusedAttnBwdParamsCuSeqlensKV = 14,
  kNVTEFusedAttnBwdParamsCuSeqlensQPadded = 15,
  kNVTEFusedAttnBwdParamsCuSeqlensKVPadded = 16,
  kNVTEFusedAttnBwdParamsDeterministic = 17,
  kNVTEFusedAttnBwdParamsCudaGraph = 18,
  kNVTEFusedAttnBwdParamsAttnMaskType = 19,
  kNVTEFusedAttnBwdParamsBiasType = 20,
  kNVTEFusedAttnBwdParamsWindowSizeLeft = 21,
  kNVTEFusedAttnBwdParamsWindowSizeRight = 22,
  kNVTEFusedAttnBwdParamsBottomRightDiagonal = 23,
  kNVTEFusedAttnBwdParamsSoftmaxType = 24,
  kNVTEFusedAttnBwdParamsDropout = 25,
  kNVTEFusedAttnBwdParamsAttnScale = 26,
  kNVTEFusedAttnBwdParamsQKVLayout = 27,
  kNVTEFusedAttnBwdParamsOFormat = 28,
  kNVTEFusedAttnBwdParamsDOFormat = 29,
  kNVTEFusedAttnBwdParamsDQKVLayout = 30,
  kNVTEFusedAttnBwdParamsQKVScaleInvFormat = 31,
  kNVTEFusedAttnBwdParamsDOScaleInvFormat = 32,
  kNVTEFusedAttnBwdParamsMaxSeqlenQ = 33,
  kNVTEFusedAttnBwdParamsMaxSeqlenKV = 34,
  kNVTEFusedAttnBwdParamsWorkspace = 35,
  kNVTEFusedAttnBwdParamsStream = 36,
  kNVTEFusedAttnBwdParamsNumAttributes = 37,
} NVTEFusedAttnBwdParamsAttribute;

/**
 * How a product and its communication overlap: a hint.
 */
typedef enum NVTECommGemmAlgoType {
  kNVTECommGemmAlgoDefault = 0,
  kNVTECommGemmAlgoSplitP2P = 1,
  kNVTECommGemmAlgoSplitMulticast = 2,
  kNVTECommGemmAlgoAtomicP2P = 3,
  kNVTECommGemmAlgoAtomicMulticast = 4,
} NVTECommGemmAlgoType;

/**
 * What products over the ranks of a communicator keep.
 */
typedef struct NVTECommGemmCtx NVTECommGemmCtx;

/**
 * What iterations over the ranks of a communicator keep.
 */
typedef struct NVTECusolverMpCtx NVTECusolverMpCtx;

/**
 * Dimensions of a tensor; entries at and past `ndim` are not read.
 */
typedef struct NVTEShape {
  size_t data[15];
  size_t ndim;
} NVTEShape;

/**
 * A buffer: pointer, element type, shape. The memory belongs to the caller.
 */
typedef struct NVTEBasicTensor {
  void *data_ptr;
  enum NVTEDType dtype;
  struct NVTEShape shape;
} NVTEBasicTensor;

/**
 * Handle of a tensor. Null is "no tensor".
 */
typedef void *NVTETensor;

/**
 * A fixed array of tensor handles, `size` of them in use.
 */
typedef struct NVTETensorPack {
  NVTETensor tensors[10];
  size_t size;
#ifdef __cplusplus
  static constexpr int MAX_SIZE = 10;
  NVTETensorPack() : tensors(), size(0) {}
#endif
} NVTETensorPack;

/**
 * Symmetric memory in place of a tensor's own pointers; all zero: the pointers are used. Offsets are
 * in bytes. The second pair stands for `scale_inv`.
 */
typedef struct NVTECommWindow {
  ncclWindow_vidmem *window;
  uint64_t offset;
  ncclWindow_vidmem *scale_window;
  uint64_t scale_offset;
} NVTECommWindow;

/**
 * A group of ranks between which the experts of layers are divided. Fields that `struct_size` does not
 * reach are 0.
 */
typedef struct NVTEEpGroupConfig {
  /**
   * At least 40, which 0 also means.
   */
  size_t struct_size;
  /**
   * Ranks.
   */
  int32_t ep_size;
  /**
   * Of all ranks: a multiple of `ep_size`.
   */
  int32_t num_experts;
  int32_t max_tokens_per_rank;
  /**
   * Most rows that a rank receives; 0: any number.
   */
  int32_t max_recv_tokens_per_rank;
  int32_t hidden_dim;
  /**
   * Multiprocessors for communication; 0: the library's choice.
   */
  int32_t num_comm_sms;
  enum NVTEDType max_token_dtype;
  /**
   * Payloads lie in windows.
   */
  int32_t zero_copy;
  int32_t num_topk;
  /**
   * Rows beyond `max_recv_tokens_per_rank` are left out; 0: they are an error.
   */
  int32_t drop_on_overflow;
} NVTEEpGroupConfig;

/**
 * A layer of experts.
 */
typedef struct NVTEEpLayerConfig {
  /**
   * At least 24, which 0 also means.
   */
  size_t struct_size;
  /**
   * Experts of a token.
   */
  int32_t top_k;
  /**
   * The rows of an expert are padded to a multiple of this; 0 and 1: not at all.
   */
  size_t dispatch_output_per_expert_alignment;
} NVTEEpLayerConfig;

/**
 * Handle of a grouped tensor.
 */
typedef void *NVTEGroupedTensor;

/**
 * Handle of a quantization config. Null means defaults.
 */
typedef void *NVTEQuantizationConfig;

/**
 * Handle of a matmul config. Null means defaults.
 */
typedef void *NVTEMatmulConfig;

/**
 * Handle of a grouped matmul config. Null means defaults.
 */
typedef void *NVTEGroupedMatmulConfig;

/**
 * Config of an attention.
 */
typedef void *NVTEFusedAttnConfig;

/**
 * Parameters of a forward attention.
 */
typedef void *NVTEFusedAttnFwdParams;

/**
 * Parameters of a backward attention.
 */
typedef void *NVTEFusedAttnBwdParams;

#endif  /* NVTE_TYPES_H */
