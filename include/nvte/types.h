#ifndef NVTE_TYPES_H
#define NVTE_TYPES_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

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

#endif  /* NVTE_TYPES_H */
