// Generated from the C headers by tests/abi.rs.
use std::ffi::{c_char, c_void};

/// Version of these headers; `nvtex_version_number` returns that of the library.
pub const NVTE_VERSION_MAJOR: u32 = 0;

pub const NVTE_VERSION_MINOR: u32 = 1;

pub const NVTE_VERSION_PATCH: u32 = 0;

/// What a handle points to.
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}
pub type cudaStream_t = *mut CUstream_st;

/// What a handle points to.
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}
pub type cudaEvent_t = *mut CUevent_st;

/// What a handle points to.
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}
pub type ncclComm_t = *mut ncclComm;

#[repr(C)]
#[derive(Debug)]
pub struct ncclWindow_vidmem {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// Element type of a buffer.
pub type NVTEDType = i32;
pub const kNVTEByte: NVTEDType = 0;
pub const kNVTEInt16: NVTEDType = 1;
pub const kNVTEInt32: NVTEDType = 2;
pub const kNVTEInt64: NVTEDType = 3;
pub const kNVTEFloat32: NVTEDType = 4;
pub const kNVTEFloat16: NVTEDType = 5;
pub const kNVTEBFloat16: NVTEDType = 6;
pub const kNVTEFloat8E4M3: NVTEDType = 7;
pub const kNVTEFloat8E5M2: NVTEDType = 8;
pub const kNVTEFloat8E8M0: NVTEDType = 9;
pub const kNVTEFloat4E2M1: NVTEDType = 10;
pub const kNVTENumTypes: NVTEDType = 11;

/// How the scales of a tensor are laid out; mode 0 is also "not quantized".
pub type NVTEScalingMode = i32;
pub const NVTE_DELAYED_TENSOR_SCALING: NVTEScalingMode = 0;
pub const NVTE_MXFP8_1D_SCALING: NVTEScalingMode = 1;
pub const NVTE_BLOCK_SCALING_1D: NVTEScalingMode = 2;
pub const NVTE_BLOCK_SCALING_2D: NVTEScalingMode = 3;
pub const NVTE_NVFP4_1D_SCALING: NVTEScalingMode = 4;
pub const NVTE_INVALID_SCALING: NVTEScalingMode = 100;

/// Kind of normalization.
pub type NVTE_Norm_Type = i32;
pub const LayerNorm: NVTE_Norm_Type = 0;
pub const RMSNorm: NVTE_Norm_Type = 1;

/// How a map of tokens to experts is stored: a byte or a bit for each expert.
pub type NVTERoutingMapFormat = i32;
pub const NVTE_ROUTING_MAP_FORMAT_BYTEMAP: NVTERoutingMapFormat = 0;
pub const NVTE_ROUTING_MAP_FORMAT_BITMAP_U8: NVTERoutingMapFormat = 1;

/// Whether the router itself counts distances to the cutoff.
pub type NVTEQBHistogramMode = i32;
pub const NVTE_QB_HISTOGRAM_TWO_KERNEL: NVTEQBHistogramMode = 0;
pub const NVTE_QB_HISTOGRAM_FUSED_ATOMIC: NVTEQBHistogramMode = 1;

/// Parameters of a tensor handle.
pub type NVTETensorParam = i32;
pub const kNVTERowwiseData: NVTETensorParam = 0;
pub const kNVTEColumnwiseData: NVTETensorParam = 1;
pub const kNVTEScale: NVTETensorParam = 2;
pub const kNVTEAmax: NVTETensorParam = 3;
pub const kNVTERowwiseScaleInv: NVTETensorParam = 4;
pub const kNVTEColumnwiseScaleInv: NVTETensorParam = 5;
pub const kNVTEColumnwiseAmax: NVTETensorParam = 6;
pub const kNVTEWithGEMMSwizzledScales: NVTETensorParam = 7;
pub const kNVTERowScaledNVFP4: NVTETensorParam = 8;
pub const kNVTENVFP4E4M3Max: NVTETensorParam = 9;
pub const kNVTENumTensorParams: NVTETensorParam = 10;

/// Parameters of a grouped tensor handle.
pub type NVTEGroupedTensorParam = i32;
pub const kNVTEGroupedRowwiseData: NVTEGroupedTensorParam = 0;
pub const kNVTEGroupedColumnwiseData: NVTEGroupedTensorParam = 1;
pub const kNVTEGroupedScale: NVTEGroupedTensorParam = 2;
pub const kNVTEGroupedAmax: NVTEGroupedTensorParam = 3;
pub const kNVTEGroupedRowwiseScaleInv: NVTEGroupedTensorParam = 4;
pub const kNVTEGroupedColumnwiseScaleInv: NVTEGroupedTensorParam = 5;
pub const kNVTEGroupedColumnwiseAmax: NVTEGroupedTensorParam = 6;
pub const kNVTEGroupedFirstDims: NVTEGroupedTensorParam = 7;
pub const kNVTEGroupedLastDims: NVTEGroupedTensorParam = 8;
pub const kNVTEGroupedTensorOffsets: NVTEGroupedTensorParam = 9;
pub const kNVTEGroupedWithGEMMSwizzledScales: NVTEGroupedTensorParam = 10;
pub const kNVTENumGroupedTensorParams: NVTEGroupedTensorParam = 11;

/// Block-scale selection rule of NVFP4 quantization.
pub type NVTENVFP44Over6Mode = i32;
pub const kNVTENVFP44Over6Disabled: NVTENVFP44Over6Mode = 0;
pub const kNVTENVFP44Over6MinMAE: NVTENVFP44Over6Mode = 1;
pub const kNVTENVFP44Over6MinMSE: NVTENVFP44Over6Mode = 2;

/// Attributes of a quantization config.
pub type NVTEQuantizationConfigAttribute = i32;
pub const kNVTEQuantizationConfigForcePow2Scales: NVTEQuantizationConfigAttribute = 0;
pub const kNVTEQuantizationConfigAmaxEpsilon: NVTEQuantizationConfigAttribute = 1;
pub const kNVTEQuantizationConfigNoopTensor: NVTEQuantizationConfigAttribute = 2;
pub const kNVTEQuantizationConfigFloat8BlockScaleTensorFormat: NVTEQuantizationConfigAttribute = 3;
pub const kNVTEQuantizationConfigRNGState: NVTEQuantizationConfigAttribute = 4;
pub const kNVTEQuantizationConfigNVFP42DQuantization: NVTEQuantizationConfigAttribute = 5;
pub const kNVTEQuantizationConfigStochasticRounding: NVTEQuantizationConfigAttribute = 6;
pub const kNVTEQuantizationConfigUseFastMath: NVTEQuantizationConfigAttribute = 7;
pub const kNVTEQuantizationConfigNVFP44Over6Mode: NVTEQuantizationConfigAttribute = 8;
pub const kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath: NVTEQuantizationConfigAttribute = 9;
pub const kNVTEQuantizationConfigMXFP82DQuantization: NVTEQuantizationConfigAttribute = 10;
pub const kNVTEQuantizationConfigNumAttributes: NVTEQuantizationConfigAttribute = 11;

/// Attributes of a matmul config.
pub type NVTEMatmulConfigAttribute = i32;
pub const kNVTEMatmulConfigBiasTensor: NVTEMatmulConfigAttribute = 0;
pub const kNVTEMatmulConfigDBiasTensor: NVTEMatmulConfigAttribute = 1;
pub const kNVTEMatmulConfigWithGELUEpilogue: NVTEMatmulConfigAttribute = 2;
pub const kNVTEMatmulConfigWithDGELUEpilogue: NVTEMatmulConfigAttribute = 3;
pub const kNVTEMatmulConfigEpilogueAuxTensor: NVTEMatmulConfigAttribute = 4;
pub const kNVTEMatmulConfigUseSplitAccumulator: NVTEMatmulConfigAttribute = 5;
pub const kNVTEMatmulConfigSMCount: NVTEMatmulConfigAttribute = 6;
pub const kNVTEMatmulConfigNumAttributes: NVTEMatmulConfigAttribute = 7;

/// Attributes of a grouped matmul config.
pub type NVTEGroupedMatmulConfigAttribute = i32;
pub const kNVTEGroupedMatmulConfigAvgM: NVTEGroupedMatmulConfigAttribute = 0;
pub const kNVTEGroupedMatmulConfigAvgN: NVTEGroupedMatmulConfigAttribute = 1;
pub const kNVTEGroupedMatmulConfigAvgK: NVTEGroupedMatmulConfigAttribute = 2;
pub const kNVTEGroupedMatmulConfigSMCount: NVTEGroupedMatmulConfigAttribute = 3;
pub const kNVTEGroupedMatmulConfigUseSplitAccumulator: NVTEGroupedMatmulConfigAttribute = 4;
pub const kNVTEGroupedMatmulConfigNumAttributes: NVTEGroupedMatmulConfigAttribute = 5;

/// Activations, plain and gated. No function takes such a value.
pub type NVTE_Activation_Type = i32;
pub const GELU: NVTE_Activation_Type = 0;
pub const GEGLU: NVTE_Activation_Type = 1;
pub const GLU: NVTE_Activation_Type = 2;
pub const SILU: NVTE_Activation_Type = 3;
pub const SWIGLU: NVTE_Activation_Type = 4;
pub const RELU: NVTE_Activation_Type = 5;
pub const REGLU: NVTE_Activation_Type = 6;
pub const QGELU: NVTE_Activation_Type = 7;
pub const QGEGLU: NVTE_Activation_Type = 8;
pub const SRELU: NVTE_Activation_Type = 9;
pub const SREGLU: NVTE_Activation_Type = 10;
pub const CLAMPED_SWIGLU: NVTE_Activation_Type = 11;

/// Order of the dimensions of queries, keys and values: sequence, batch, heads, elements, or packed
/// tokens (T) of all sequences.
pub type NVTE_QKV_Format = i32;
pub const NVTE_SBHD: NVTE_QKV_Format = 0;
pub const NVTE_BSHD: NVTE_QKV_Format = 1;
pub const NVTE_THD: NVTE_QKV_Format = 2;
pub const NVTE_BSHD_2SBHD: NVTE_QKV_Format = 3;
pub const NVTE_SBHD_2BSHD: NVTE_QKV_Format = 4;
pub const NVTE_THD_2BSHD: NVTE_QKV_Format = 5;
pub const NVTE_THD_2SBHD: NVTE_QKV_Format = 6;
pub const NVTE_BHSD: NVTE_QKV_Format = 7;
pub const NVTE_QKV_Format_NOT_SET: NVTE_QKV_Format = 8;

/// How queries, keys and values lie in memory: dimensions in order (sequence, batch, heads, elements, or
/// packed tokens T), 3 or 2 of them interleaved, or one after the other.
pub type NVTE_QKV_Layout = i32;
pub const NVTE_SB3HD: NVTE_QKV_Layout = 0;
pub const NVTE_SBH3D: NVTE_QKV_Layout = 1;
pub const NVTE_SBHD_SB2HD: NVTE_QKV_Layout = 2;
pub const NVTE_SBHD_SBH2D: NVTE_QKV_Layout = 3;
pub const NVTE_SBHD_SBHD_SBHD: NVTE_QKV_Layout = 4;
pub const NVTE_BS3HD: NVTE_QKV_Layout = 5;
pub const NVTE_BSH3D: NVTE_QKV_Layout = 6;
pub const NVTE_BSHD_BS2HD: NVTE_QKV_Layout = 7;
pub const NVTE_BSHD_BSH2D: NVTE_QKV_Layout = 8;
pub const NVTE_BSHD_BSHD_BSHD: NVTE_QKV_Layout = 9;
pub const NVTE_T3HD: NVTE_QKV_Layout = 10;
pub const NVTE_TH3D: NVTE_QKV_Layout = 11;
pub const NVTE_THD_T2HD: NVTE_QKV_Layout = 12;
pub const NVTE_THD_TH2D: NVTE_QKV_Layout = 13;
pub const NVTE_THD_THD_THD: NVTE_QKV_Layout = 14;
pub const NVTE_SBHD_BSHD_BSHD: NVTE_QKV_Layout = 15;
pub const NVTE_BSHD_SBHD_SBHD: NVTE_QKV_Layout = 16;
pub const NVTE_THD_BSHD_BSHD: NVTE_QKV_Layout = 17;
pub const NVTE_THD_SBHD_SBHD: NVTE_QKV_Layout = 18;
pub const NVTE_Paged_KV_BSHD_BSHD_BSHD: NVTE_QKV_Layout = 19;
pub const NVTE_Paged_KV_BSHD_SBHD_SBHD: NVTE_QKV_Layout = 20;
pub const NVTE_Paged_KV_SBHD_BSHD_BSHD: NVTE_QKV_Layout = 21;
pub const NVTE_Paged_KV_SBHD_SBHD_SBHD: NVTE_QKV_Layout = 22;
pub const NVTE_Paged_KV_THD_BSHD_BSHD: NVTE_QKV_Layout = 23;
pub const NVTE_Paged_KV_THD_SBHD_SBHD: NVTE_QKV_Layout = 24;
pub const NVTE_BHSD_BHSD_BHSD: NVTE_QKV_Layout = 25;
pub const NVTE_QKV_Layout_NOT_SET: NVTE_QKV_Layout = 26;

/// Which of the three are interleaved, and where.
pub type NVTE_QKV_Layout_Group = i32;
pub const NVTE_3HD: NVTE_QKV_Layout_Group = 0;
pub const NVTE_H3D: NVTE_QKV_Layout_Group = 1;
pub const NVTE_HD_2HD: NVTE_QKV_Layout_Group = 2;
pub const NVTE_HD_H2D: NVTE_QKV_Layout_Group = 3;
pub const NVTE_HD_HD_HD: NVTE_QKV_Layout_Group = 4;
pub const NVTE_Paged_KV_HD_HD_HD: NVTE_QKV_Layout_Group = 5;
pub const NVTE_SD_SD_SD: NVTE_QKV_Layout_Group = 6;

/// What is added to the scores.
pub type NVTE_Bias_Type = i32;
pub const NVTE_NO_BIAS: NVTE_Bias_Type = 0;
pub const NVTE_PRE_SCALE_BIAS: NVTE_Bias_Type = 1;
pub const NVTE_POST_SCALE_BIAS: NVTE_Bias_Type = 2;
pub const NVTE_ALIBI: NVTE_Bias_Type = 3;

/// Which scores count.
pub type NVTE_Mask_Type = i32;
pub const NVTE_NO_MASK: NVTE_Mask_Type = 0;
pub const NVTE_PADDING_MASK: NVTE_Mask_Type = 1;
pub const NVTE_CAUSAL_MASK: NVTE_Mask_Type = 2;
pub const NVTE_PADDING_CAUSAL_MASK: NVTE_Mask_Type = 3;
pub const NVTE_CAUSAL_BOTTOM_RIGHT_MASK: NVTE_Mask_Type = 4;
pub const NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK: NVTE_Mask_Type = 5;

/// Whether the softmax has one more column.
pub type NVTE_Softmax_Type = i32;
pub const NVTE_VANILLA_SOFTMAX: NVTE_Softmax_Type = 0;
pub const NVTE_OFF_BY_ONE_SOFTMAX: NVTE_Softmax_Type = 1;
pub const NVTE_LEARNABLE_SOFTMAX: NVTE_Softmax_Type = 2;

/// Kind of implementation of an attention.
pub type NVTE_Fused_Attn_Backend = i32;
pub const NVTE_No_Backend: NVTE_Fused_Attn_Backend = -1;
pub const NVTE_F16_arbitrary_seqlen: NVTE_Fused_Attn_Backend = 1;
pub const NVTE_FP8: NVTE_Fused_Attn_Backend = 2;

/// Attributes of a config of attention.
pub type NVTEFusedAttnConfigAttribute = i32;
pub const kNVTEFusedAttnConfigIsTraining: NVTEFusedAttnConfigAttribute = 0;
pub const kNVTEFusedAttnConfigDeterministic: NVTEFusedAttnConfigAttribute = 1;
pub const kNVTEFusedAttnConfigCudaGraph: NVTEFusedAttnConfigAttribute = 2;
pub const kNVTEFusedAttnConfigReturnMaxLogit: NVTEFusedAttnConfigAttribute = 3;
pub const kNVTEFusedAttnConfigAttnMaskType: NVTEFusedAttnConfigAttribute = 4;
pub const kNVTEFusedAttnConfigBiasType: NVTEFusedAttnConfigAttribute = 5;
pub const kNVTEFusedAttnConfigWindowSizeLeft: NVTEFusedAttnConfigAttribute = 6;
pub const kNVTEFusedAttnConfigWindowSizeRight: NVTEFusedAttnConfigAttribute = 7;
pub const kNVTEFusedAttnConfigBottomRightDiagonal: NVTEFusedAttnConfigAttribute = 8;
pub const kNVTEFusedAttnConfigSoftmaxType: NVTEFusedAttnConfigAttribute = 9;
pub const kNVTEFusedAttnConfigScalingMode: NVTEFusedAttnConfigAttribute = 10;
pub const kNVTEFusedAttnConfigDropout: NVTEFusedAttnConfigAttribute = 11;
pub const kNVTEFusedAttnConfigAttnScale: NVTEFusedAttnConfigAttribute = 12;
pub const kNVTEFusedAttnConfigQKVDtype: NVTEFusedAttnConfigAttribute = 13;
pub const kNVTEFusedAttnConfigODtype: NVTEFusedAttnConfigAttribute = 14;
pub const kNVTEFusedAttnConfigDODtype: NVTEFusedAttnConfigAttribute = 15;
pub const kNVTEFusedAttnConfigDQKVDtype: NVTEFusedAttnConfigAttribute = 16;
pub const kNVTEFusedAttnConfigQKVLayout: NVTEFusedAttnConfigAttribute = 17;
pub const kNVTEFusedAttnConfigOFormat: NVTEFusedAttnConfigAttribute = 18;
pub const kNVTEFusedAttnConfigDOFormat: NVTEFusedAttnConfigAttribute = 19;
pub const kNVTEFusedAttnConfigDQKVLayout: NVTEFusedAttnConfigAttribute = 20;
pub const kNVTEFusedAttnConfigQKVScaleInvFormat: NVTEFusedAttnConfigAttribute = 21;
pub const kNVTEFusedAttnConfigDOScaleInvFormat: NVTEFusedAttnConfigAttribute = 22;
pub const kNVTEFusedAttnConfigBatchSize: NVTEFusedAttnConfigAttribute = 23;
pub const kNVTEFusedAttnConfigNumAttnHeads: NVTEFusedAttnConfigAttribute = 24;
pub const kNVTEFusedAttnConfigNumGQAGroups: NVTEFusedAttnConfigAttribute = 25;
pub const kNVTEFusedAttnConfigHeadDimQK: NVTEFusedAttnConfigAttribute = 26;
pub const kNVTEFusedAttnConfigHeadDimV: NVTEFusedAttnConfigAttribute = 27;
pub const kNVTEFusedAttnConfigMaxSeqlenQ: NVTEFusedAttnConfigAttribute = 28;
pub const kNVTEFusedAttnConfigMaxSeqlenKV: NVTEFusedAttnConfigAttribute = 29;
pub const kNVTEFusedAttnConfigNumTokensQ: NVTEFusedAttnConfigAttribute = 30;
pub const kNVTEFusedAttnConfigNumTokensKV: NVTEFusedAttnConfigAttribute = 31;
pub const kNVTEFusedAttnConfigNumPagesK: NVTEFusedAttnConfigAttribute = 32;
pub const kNVTEFusedAttnConfigNumPagesV: NVTEFusedAttnConfigAttribute = 33;
pub const kNVTEFusedAttnConfigPageSizeK: NVTEFusedAttnConfigAttribute = 34;
pub const kNVTEFusedAttnConfigPageSizeV: NVTEFusedAttnConfigAttribute = 35;
pub const kNVTEFusedAttnConfigMaxPagesPerSeqK: NVTEFusedAttnConfigAttribute = 36;
pub const kNVTEFusedAttnConfigMaxPagesPerSeqV: NVTEFusedAttnConfigAttribute = 37;
pub const kNVTEFusedAttnConfigBiasBatchSize: NVTEFusedAttnConfigAttribute = 38;
pub const kNVTEFusedAttnConfigBiasNumHeads: NVTEFusedAttnConfigAttribute = 39;
pub const kNVTEFusedAttnConfigBiasSeqlenQ: NVTEFusedAttnConfigAttribute = 40;
pub const kNVTEFusedAttnConfigBiasSeqlenKV: NVTEFusedAttnConfigAttribute = 41;
pub const kNVTEFusedAttnConfigNumAttributes: NVTEFusedAttnConfigAttribute = 42;

/// Attributes of the parameters of a forward attention.
pub type NVTEFusedAttnFwdParamsAttribute = i32;
pub const kNVTEFusedAttnFwdParamsQ: NVTEFusedAttnFwdParamsAttribute = 0;
pub const kNVTEFusedAttnFwdParamsK: NVTEFusedAttnFwdParamsAttribute = 1;
pub const kNVTEFusedAttnFwdParamsV: NVTEFusedAttnFwdParamsAttribute = 2;
pub const kNVTEFusedAttnFwdParamsBias: NVTEFusedAttnFwdParamsAttribute = 3;
pub const kNVTEFusedAttnFwdParamsSoftmaxOffset: NVTEFusedAttnFwdParamsAttribute = 4;
pub const kNVTEFusedAttnFwdParamsS: NVTEFusedAttnFwdParamsAttribute = 5;
pub const kNVTEFusedAttnFwdParamsO: NVTEFusedAttnFwdParamsAttribute = 6;
pub const kNVTEFusedAttnFwdParamsAuxCtxTensors: NVTEFusedAttnFwdParamsAttribute = 7;
pub const kNVTEFusedAttnFwdParamsCuSeqlensQ: NVTEFusedAttnFwdParamsAttribute = 8;
pub const kNVTEFusedAttnFwdParamsCuSeqlensKV: NVTEFusedAttnFwdParamsAttribute = 9;
pub const kNVTEFusedAttnFwdParamsCuSeqlensQPadded: NVTEFusedAttnFwdParamsAttribute = 10;
pub const kNVTEFusedAttnFwdParamsCuSeqlensKVPadded: NVTEFusedAttnFwdParamsAttribute = 11;
pub const kNVTEFusedAttnFwdParamsPageTableK: NVTEFusedAttnFwdParamsAttribute = 12;
pub const kNVTEFusedAttnFwdParamsPageTableV: NVTEFusedAttnFwdParamsAttribute = 13;
pub const kNVTEFusedAttnFwdParamsRngState: NVTEFusedAttnFwdParamsAttribute = 14;
pub const kNVTEFusedAttnFwdParamsIsTraining: NVTEFusedAttnFwdParamsAttribute = 15;
pub const kNVTEFusedAttnFwdParamsCudaGraph: NVTEFusedAttnFwdParamsAttribute = 16;
pub const kNVTEFusedAttnFwdParamsReturnMaxLogit: NVTEFusedAttnFwdParamsAttribute = 17;
pub const kNVTEFusedAttnFwdParamsAttnMaskType: NVTEFusedAttnFwdParamsAttribute = 18;
pub const kNVTEFusedAttnFwdParamsBiasType: NVTEFusedAttnFwdParamsAttribute = 19;
pub const kNVTEFusedAttnFwdParamsWindowSizeLeft: NVTEFusedAttnFwdParamsAttribute = 20;
pub const kNVTEFusedAttnFwdParamsWindowSizeRight: NVTEFusedAttnFwdParamsAttribute = 21;
pub const kNVTEFusedAttnFwdParamsBottomRightDiagonal: NVTEFusedAttnFwdParamsAttribute = 22;
pub const kNVTEFusedAttnFwdParamsSoftmaxType: NVTEFusedAttnFwdParamsAttribute = 23;
pub const kNVTEFusedAttnFwdParamsDropout: NVTEFusedAttnFwdParamsAttribute = 24;
pub const kNVTEFusedAttnFwdParamsAttnScale: NVTEFusedAttnFwdParamsAttribute = 25;
pub const kNVTEFusedAttnFwdParamsQKVLayout: NVTEFusedAttnFwdParamsAttribute = 26;
pub const kNVTEFusedAttnFwdParamsOFormat: NVTEFusedAttnFwdParamsAttribute = 27;
pub const kNVTEFusedAttnFwdParamsQKVScaleInvFormat: NVTEFusedAttnFwdParamsAttribute = 28;
pub const kNVTEFusedAttnFwdParamsMaxSeqlenQ: NVTEFusedAttnFwdParamsAttribute = 29;
pub const kNVTEFusedAttnFwdParamsMaxSeqlenKV: NVTEFusedAttnFwdParamsAttribute = 30;
pub const kNVTEFusedAttnFwdParamsWorkspace: NVTEFusedAttnFwdParamsAttribute = 31;
pub const kNVTEFusedAttnFwdParamsStream: NVTEFusedAttnFwdParamsAttribute = 32;
pub const kNVTEFusedAttnFwdParamsNumAttributes: NVTEFusedAttnFwdParamsAttribute = 33;

/// Attributes of the parameters of a backward attention.
pub type NVTEFusedAttnBwdParamsAttribute = i32;
pub const kNVTEFusedAttnBwdParamsQ: NVTEFusedAttnBwdParamsAttribute = 0;
pub const kNVTEFusedAttnBwdParamsK: NVTEFusedAttnBwdParamsAttribute = 1;
pub const kNVTEFusedAttnBwdParamsV: NVTEFusedAttnBwdParamsAttribute = 2;
pub const kNVTEFusedAttnBwdParamsO: NVTEFusedAttnBwdParamsAttribute = 3;
pub const kNVTEFusedAttnBwdParamsDO: NVTEFusedAttnBwdParamsAttribute = 4;
pub const kNVTEFusedAttnBwdParamsS: NVTEFusedAttnBwdParamsAttribute = 5;
pub const kNVTEFusedAttnBwdParamsDP: NVTEFusedAttnBwdParamsAttribute = 6;
pub const kNVTEFusedAttnBwdParamsAuxCtxTensors: NVTEFusedAttnBwdParamsAttribute = 7;
pub const kNVTEFusedAttnBwdParamsDQ: NVTEFusedAttnBwdParamsAttribute = 8;
pub const kNVTEFusedAttnBwdParamsDK: NVTEFusedAttnBwdParamsAttribute = 9;
pub const kNVTEFusedAttnBwdParamsDV: NVTEFusedAttnBwdParamsAttribute = 10;
pub const kNVTEFusedAttnBwdParamsDBias: NVTEFusedAttnBwdParamsAttribute = 11;
pub const kNVTEFusedAttnBwdParamsDSoftmaxOffset: NVTEFusedAttnBwdParamsAttribute = 12;
pub const kNVTEFusedAttnBwdParamsCuSeqlensQ: NVTEFusedAttnBwdParamsAttribute = 13;
pub const kNVTEFusedAttnBwdParamsCuSeqlensKV: NVTEFusedAttnBwdParamsAttribute = 14;
pub const kNVTEFusedAttnBwdParamsCuSeqlensQPadded: NVTEFusedAttnBwdParamsAttribute = 15;
pub const kNVTEFusedAttnBwdParamsCuSeqlensKVPadded: NVTEFusedAttnBwdParamsAttribute = 16;
pub const kNVTEFusedAttnBwdParamsDeterministic: NVTEFusedAttnBwdParamsAttribute = 17;
pub const kNVTEFusedAttnBwdParamsCudaGraph: NVTEFusedAttnBwdParamsAttribute = 18;
pub const kNVTEFusedAttnBwdParamsAttnMaskType: NVTEFusedAttnBwdParamsAttribute = 19;
pub const kNVTEFusedAttnBwdParamsBiasType: NVTEFusedAttnBwdParamsAttribute = 20;
pub const kNVTEFusedAttnBwdParamsWindowSizeLeft: NVTEFusedAttnBwdParamsAttribute = 21;
pub const kNVTEFusedAttnBwdParamsWindowSizeRight: NVTEFusedAttnBwdParamsAttribute = 22;
pub const kNVTEFusedAttnBwdParamsBottomRightDiagonal: NVTEFusedAttnBwdParamsAttribute = 23;
pub const kNVTEFusedAttnBwdParamsSoftmaxType: NVTEFusedAttnBwdParamsAttribute = 24;
pub const kNVTEFusedAttnBwdParamsDropout: NVTEFusedAttnBwdParamsAttribute = 25;
pub const kNVTEFusedAttnBwdParamsAttnScale: NVTEFusedAttnBwdParamsAttribute = 26;
pub const kNVTEFusedAttnBwdParamsQKVLayout: NVTEFusedAttnBwdParamsAttribute = 27;
pub const kNVTEFusedAttnBwdParamsOFormat: NVTEFusedAttnBwdParamsAttribute = 28;
pub const kNVTEFusedAttnBwdParamsDOFormat: NVTEFusedAttnBwdParamsAttribute = 29;
pub const kNVTEFusedAttnBwdParamsDQKVLayout: NVTEFusedAttnBwdParamsAttribute = 30;
pub const kNVTEFusedAttnBwdParamsQKVScaleInvFormat: NVTEFusedAttnBwdParamsAttribute = 31;
pub const kNVTEFusedAttnBwdParamsDOScaleInvFormat: NVTEFusedAttnBwdParamsAttribute = 32;
pub const kNVTEFusedAttnBwdParamsMaxSeqlenQ: NVTEFusedAttnBwdParamsAttribute = 33;
pub const kNVTEFusedAttnBwdParamsMaxSeqlenKV: NVTEFusedAttnBwdParamsAttribute = 34;
pub const kNVTEFusedAttnBwdParamsWorkspace: NVTEFusedAttnBwdParamsAttribute = 35;
pub const kNVTEFusedAttnBwdParamsStream: NVTEFusedAttnBwdParamsAttribute = 36;
pub const kNVTEFusedAttnBwdParamsNumAttributes: NVTEFusedAttnBwdParamsAttribute = 37;

/// How a product and its communication overlap: a hint.
pub type NVTECommGemmAlgoType = i32;
pub const kNVTECommGemmAlgoDefault: NVTECommGemmAlgoType = 0;
pub const kNVTECommGemmAlgoSplitP2P: NVTECommGemmAlgoType = 1;
pub const kNVTECommGemmAlgoSplitMulticast: NVTECommGemmAlgoType = 2;
pub const kNVTECommGemmAlgoAtomicP2P: NVTECommGemmAlgoType = 3;
pub const kNVTECommGemmAlgoAtomicMulticast: NVTECommGemmAlgoType = 4;

/// What products over the ranks of a communicator keep.
#[repr(C)]
#[derive(Debug)]
pub struct NVTECommGemmCtx {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What iterations over the ranks of a communicator keep.
#[repr(C)]
#[derive(Debug)]
pub struct NVTECusolverMpCtx {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// Dimensions of a tensor; entries at and past `ndim` are not read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEShape {
    pub data: [usize; 15],
    pub ndim: usize,
}

/// A buffer: pointer, element type, shape. The memory belongs to the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEBasicTensor {
    pub data_ptr: *mut c_void,
    pub dtype: NVTEDType,
    pub shape: NVTEShape,
}

/// Handle of a tensor. Null is "no tensor".
pub type NVTETensor = *mut c_void;

/// A fixed array of tensor handles, `size` of them in use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTETensorPack {
    pub tensors: [NVTETensor; 10],
    pub size: usize,
}

/// Symmetric memory in place of a tensor's own pointers; all zero: the pointers are used. Offsets are
/// in bytes. The second pair stands for `scale_inv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTECommWindow {
    pub window: *mut ncclWindow_vidmem,
    pub offset: u64,
    pub scale_window: *mut ncclWindow_vidmem,
    pub scale_offset: u64,
}

/// A group of ranks between which the experts of layers are divided. Fields that `struct_size` does not
/// reach are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEEpGroupConfig {
    /// At least 40, which 0 also means.
    pub struct_size: usize,
    /// Ranks.
    pub ep_size: i32,
    /// Of all ranks: a multiple of `ep_size`.
    pub num_experts: i32,
    pub max_tokens_per_rank: i32,
    /// Most rows that a rank receives; 0: any number.
    pub max_recv_tokens_per_rank: i32,
    pub hidden_dim: i32,
    /// Multiprocessors for communication; 0: the library's choice.
    pub num_comm_sms: i32,
    pub max_token_dtype: NVTEDType,
    /// Payloads lie in windows.
    pub zero_copy: i32,
    pub num_topk: i32,
    /// Rows beyond `max_recv_tokens_per_rank` are left out; 0: they are an error.
    pub drop_on_overflow: i32,
}

/// A layer of experts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEEpLayerConfig {
    /// At least 24, which 0 also means.
    pub struct_size: usize,
    /// Experts of a token.
    pub top_k: i32,
    /// The rows of an expert are padded to a multiple of this; 0 and 1: not at all.
    pub dispatch_output_per_expert_alignment: usize,
}

/// Handle of a grouped tensor.
pub type NVTEGroupedTensor = *mut c_void;

/// Handle of a quantization config. Null means defaults.
pub type NVTEQuantizationConfig = *mut c_void;

/// Handle of a matmul config. Null means defaults.
pub type NVTEMatmulConfig = *mut c_void;

/// Handle of a grouped matmul config. Null means defaults.
pub type NVTEGroupedMatmulConfig = *mut c_void;

/// Config of an attention.
pub type NVTEFusedAttnConfig = *mut c_void;

/// Parameters of a forward attention.
pub type NVTEFusedAttnFwdParams = *mut c_void;

/// Parameters of a backward attention.
pub type NVTEFusedAttnBwdParams = *mut c_void;







































































































































































pub type NVTETensorReference = *const NVTETensor;

/// What one implementation of attention computes.
pub type NVTEXAttentionPass = i32;
pub const NVTEX_ATTENTION_FORWARD: NVTEXAttentionPass = 0;
pub const NVTEX_ATTENTION_BACKWARD: NVTEXAttentionPass = 1;



























































































































































/// What becomes of the losses of the tokens.
pub type NVTEXLossReduction = i32;
/// They stay as they are, and each has a gradient of its own.
pub const NVTEX_LOSS_NONE: NVTEXLossReduction = 0;
pub const NVTEX_LOSS_SUM: NVTEXLossReduction = 1;
/// The mean over the tokens whose targets are not ignored; 0 if all are.
pub const NVTEX_LOSS_MEAN: NVTEXLossReduction = 2;

/// Options of a cross entropy, set by `nvtex_cross_entropy_options_init`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXCrossEntropyOptions {
    /// The size of the struct.
    pub struct_size: usize,
    /// The target of tokens that do not count: -100. A number that is no target, such as INT64_MIN, ignores none.
    pub ignored_target: i64,
    /// Number of the first column of the logits in a vocabulary that is divided among ranks: 0.
    pub vocabulary_start: usize,
    /// Columns of the whole vocabulary: 0, which stands for those of the logits.
    pub vocabulary_size: usize,
    /// The part of a target's weight that is spread over all of the vocabulary, 0 to 1: 0.
    pub label_smoothing: f32,
    /// The factor of the square of the logsumexp, which is added to the loss: 0.
    pub z_loss: f32,
    /// NVTEX_LOSS_MEAN.
    pub reduction: NVTEXLossReduction,
}











/// Result of a call.
pub type NVTEXStatus = i32;
/// No call of this thread has failed since the status was cleared.
pub const NVTEX_OK: NVTEXStatus = 0;
/// An argument is wrong; the message names it.
pub const NVTEX_INVALID_ARGUMENT: NVTEXStatus = 1;
/// Valid, but not available in this build or on this device.
pub const NVTEX_UNSUPPORTED: NVTEXStatus = 2;
/// The device, its driver or one of its libraries failed.
pub const NVTEX_DEVICE_ERROR: NVTEXStatus = 3;
/// A defect of this library.
pub const NVTEX_INTERNAL_ERROR: NVTEXStatus = 4;

/// What a failing call does after it has stored status and message.
pub type NVTEXErrorMode = i32;
/// Print the message (not with `NVTE_VERBOSE=none`) and return 0 or null.
pub const NVTEX_ERROR_RETURN: NVTEXErrorMode = 0;
/// Print the message and abort the process.
pub const NVTEX_ERROR_ABORT: NVTEXErrorMode = 1;
/// Throw `std::runtime_error`.
pub const NVTEX_ERROR_THROW: NVTEXErrorMode = 2;

/// Which lines the library writes; each level adds to the one before.
pub type NVTEXLogLevel = i32;
pub const NVTEX_LOG_NONE: NVTEXLogLevel = 0;
/// Messages of failing calls, and warnings.
pub const NVTEX_LOG_ERROR: NVTEXLogLevel = 1;
/// Arguments that are legal but probably not meant.
pub const NVTEX_LOG_CHECK: NVTEXLogLevel = 2;
/// The backends and implementations chosen, and why others declined.
pub const NVTEX_LOG_DISPATCH: NVTEXLogLevel = 3;
/// A line for each operator run.
pub const NVTEX_LOG_EXEC: NVTEXLogLevel = 4;

/// What a handle of a graph points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXGraph_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// Handle of a graph.
pub type NVTEXGraph = *mut NVTEXGraph_st;






























/// Numbers of groups of a grid.
pub const NVTEX_GRID_GROUPS: u32 = 8;

/// How sums over ranks are made.
pub type NVTEXSumOrder = i32;
/// x0 + x1 + ... in Float32 in the order of the ranks, rounded once: the same bits on every rank, in every run, by
/// every transport.
pub const NVTEX_SUM_ORDERED: NVTEXSumOrder = 0;
/// As NCCL or the program's functions sum.
pub const NVTEX_SUM_FAST: NVTEXSumOrder = 1;

/// Whether calls of all ranks are compared before they run, where that costs a meeting of its own: on NCCL and with
/// the program's functions. Threads and processes that share memory always compare.
pub type NVTEXCallCheck = i32;
/// As `NVTE_COMM_CHECK=0|1` says; its default is 0.
pub const NVTEX_CALL_CHECK_DEFAULT: NVTEXCallCheck = 0;
pub const NVTEX_CALL_CHECK_OFF: NVTEXCallCheck = 1;
pub const NVTEX_CALL_CHECK_ON: NVTEXCallCheck = 2;

/// What moves the data of ranks that a launcher has started.
pub type NVTEXTransport = i32;
/// NCCL on CUDA, shared memory otherwise.
pub const NVTEX_TRANSPORT_AUTOMATIC: NVTEXTransport = 0;
/// Shared memory of the host. Ranks may have the same GPU, whose data are staged.
pub const NVTEX_TRANSPORT_SHARED: NVTEXTransport = 1;
pub const NVTEX_TRANSPORT_NCCL: NVTEXTransport = 2;

/// Groups of a grid. The ranks of each are ordered as those of `world`.
pub type NVTEXGridGroup = i32;
/// Ranks that share each weight.
pub const NVTEX_GRID_TP: NVTEXGridGroup = 0;
/// Ranks that share each sequence.
pub const NVTEX_GRID_CP: NVTEXGridGroup = 1;
/// Ranks that share the batch.
pub const NVTEX_GRID_DP: NVTEXGridGroup = 2;
/// Ranks that share the batch or its sequences: those over which gradients of weights are summed.
pub const NVTEX_GRID_DP_CP: NVTEXGridGroup = 3;
/// All ranks that have the same layers: those over which maxima of delayed scaling are taken.
pub const NVTEX_GRID_ALL_BUT_PP: NVTEXGridGroup = 4;
/// Ranks that share the experts: neighbours in NVTEX_GRID_DP_CP.
pub const NVTEX_GRID_EP: NVTEXGridGroup = 5;
/// Ranks that have the same experts: those over which gradients of experts are summed.
pub const NVTEX_GRID_EXPERT_DP: NVTEXGridGroup = 6;
/// Ranks that share the layers.
pub const NVTEX_GRID_PP: NVTEXGridGroup = 7;

/// How the values of all ranks become one.
pub type NVTEXReduction = i32;
pub const NVTEX_REDUCTION_SUM: NVTEXReduction = 0;
/// NaN if one of the values is.
pub const NVTEX_REDUCTION_MAX: NVTEXReduction = 1;

/// What a handle of a communicator points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXCommunicator_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a grid points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXGrid_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a program says about a communicator. Set all of it to 0, then `struct_size`, then what is wanted: 0 is a
/// default. All ranks say the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXCommunicatorConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// For messages; null: "world".
    pub name: *const c_char,
    /// Seconds that a rank waits for another one. 0: `NVTE_COMM_TIMEOUT`, whose default is 300.
    pub timeout: f64,
    /// Bytes of shared memory for data of each rank on their way; 0: 2 MiB.
    pub staging_bytes: usize,
    pub sum_order: NVTEXSumOrder,
    pub check: NVTEXCallCheck,
    /// For `nvtex_communicator_from_environment`.
    pub transport: NVTEXTransport,
    /// Not 0: a failure aborts a communicator of NCCL that the program has lent, too.
    pub abort_borrowed: i32,
    /// Called once with the message of the first failure, on a thread of the library, whatever the program is doing.
    /// It calls nothing of this library. Null: none.
    ///
    /// With collectives of the program, and on rank 0, this is also what connects all ranks by TCP, so that they hear of each other's
    /// end.
    pub on_failure: Option<unsafe extern "C" fn(user: *mut c_void, message: *const c_char)>,
    /// The first argument of `on_failure`.
    pub user: *mut c_void,
}

/// Handle of one rank of a communicator.
pub type NVTEXCommunicator = *mut NVTEXCommunicator_st;

/// A message between two ranks, for functions of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXMessage {
    pub data: *mut c_void,
    pub bytes: usize,
    pub peer: i32,
    /// 1: received; 0: sent.
    pub receive: i32,
}

/// Collectives of the program. Memory is that of the host; `bytes` are those of one rank. Functions return 0, or a
/// number that the error names. They are called by the thread that makes the call, one at a time for a communicator.
/// All may be null but `all_gather`, of which the others are then made; messages need `exchange`, splits `split`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXCollectives {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// The first argument of all functions.
    pub user: *mut c_void,
    pub all_gather: Option<unsafe extern "C" fn(user: *mut c_void, send: *const c_void, recv: *mut c_void, bytes: usize) -> i32>,
    pub all_to_all: Option<unsafe extern "C" fn(user: *mut c_void, send: *const c_void, recv: *mut c_void, bytes: usize) -> i32>,
    pub broadcast: Option<unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, bytes: usize, root: i32) -> i32>,
    pub barrier: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    /// Sends and receives all messages; those of a pair in one direction keep their order.
    pub exchange: Option<unsafe extern "C" fn(user: *mut c_void, messages: *const NVTEXMessage, num_messages: usize) -> i32>,
    /// Used with NVTEX_SUM_FAST only; `count` is that of `recv`, and `reduction` an NVTEXReduction.
    pub reduce_scatter: Option<unsafe extern "C" fn(user: *mut c_void, send: *const c_void, recv: *mut c_void, count: usize, dtype: NVTEDType, reduction: i32) -> i32>,
    /// Used with NVTEX_SUM_FAST only.
    pub all_reduce: Option<unsafe extern "C" fn(user: *mut c_void, send: *const c_void, recv: *mut c_void, count: usize, dtype: NVTEDType, reduction: i32) -> i32>,
    /// Gives `*child`, which takes the place of `user` for ranks of this color, ordered by key and then by rank.
    pub split: Option<unsafe extern "C" fn(user: *mut c_void, color: i32, key: i32, child: *mut *mut c_void) -> i32>,
    /// Called when the program aborts the communicator, or another rank has ended or has failed: calls that wait for it return. Any
    /// thread may call it.
    pub abort: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Called with a child when its communicator is destroyed.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// Handle of the place of one rank in a grid.
pub type NVTEXGrid = *mut NVTEXGrid_st;

/// How ranks are divided. Set all of it to 0, then `struct_size`, then what is wanted. All ranks say the same.
///
/// The rank in `world` is `((p * dp + d) * cp + c) * tp + t`, where t, c, d and p are the places in the groups of the same
/// names: neighbours share weights.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXGridConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Ranks that share each weight; 0: 1.
    pub tp: usize,
    /// Ranks that share each sequence; 0: 1.
    pub cp: usize,
    /// Ranks that share the batch; 0: as many as the others leave over.
    pub dp: usize,
    /// Ranks that share the layers; 0: 1.
    pub pp: usize,
    /// Ranks that share the experts: a divisor of dp x cp; 0: 1.
    pub ep: usize,
}

/// A message of `nvtex_exchange`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXTransfer {
    pub data: *mut c_void,
    /// Elements; both ranks say the same.
    pub count: usize,
    pub dtype: NVTEDType,
    /// The other rank, which may be the own one.
    pub peer: i32,
    /// 1: received into `data`; 0: sent from there.
    pub receive: i32,
}




























/// Flag of `nvtex_context_begin`: modules multiply as the recipe says; without it in high precision.
pub const NVTEX_CONTEXT_ENABLED: u32 = 1;

/// Flag of `nvtex_context_begin`: modules collect the maxima of delayed scaling while they compute in
/// high precision.
pub const NVTEX_CONTEXT_CALIBRATING: u32 = 2;

/// Flag of `nvtex_context_begin`: modules that are created keep their weights in the recipe's format
/// alone.
pub const NVTEX_CONTEXT_QUANTIZED_WEIGHTS: u32 = 4;

/// How operands of matrix products are scaled.
pub type NVTEXRecipeKind = i32;
/// One scale for a tensor, from the maxima of earlier steps.
pub const NVTEX_RECIPE_DELAYED_SCALING: NVTEXRecipeKind = 0;
/// One scale for a tensor, from its own maximum.
pub const NVTEX_RECIPE_CURRENT_SCALING: NVTEXRecipeKind = 1;
/// A scale for each 128 elements, or 128 x 128.
pub const NVTEX_RECIPE_BLOCK_SCALING: NVTEXRecipeKind = 2;
/// A power of two for each 32 elements, or 32 x 32 of a weight.
pub const NVTEX_RECIPE_MXFP8: NVTEXRecipeKind = 3;
/// The function `choose` says how each operand is scaled.
pub const NVTEX_RECIPE_CUSTOM: NVTEXRecipeKind = 4;
/// NVFP4: a Float8E4M3 for each 16 elements, or 16 x 16 of a weight, and a factor for the tensor.
/// For modules in Float32 or BFloat16, with inputs of a multiple of 16 rows.
pub const NVTEX_RECIPE_NVFP4: NVTEXRecipeKind = 5;

/// FP8 types of a recipe.
pub type NVTEXFormat = i32;
pub const NVTEX_FORMAT_E4M3: NVTEXFormat = 0;
/// E5M2 for everything. Every recipe refuses it, because two E5M2 operands cannot be multiplied.
pub const NVTEX_FORMAT_E5M2: NVTEXFormat = 1;
/// E4M3, and E5M2 for gradients.
pub const NVTEX_FORMAT_HYBRID: NVTEXFormat = 2;

/// Which maximum of a history counts.
pub type NVTEXHistoryAlgo = i32;
pub const NVTEX_HISTORY_MAX: NVTEXHistoryAlgo = 0;
pub const NVTEX_HISTORY_MOST_RECENT: NVTEXHistoryAlgo = 1;

/// Operands of the products of the backward pass.
pub type NVTEXBackward = i32;
/// Gradients, inputs and weights as the recipe casts them.
pub const NVTEX_BACKWARD_QUANTIZED: NVTEXBackward = 0;
/// Gradients, inputs and weights in high precision. Not with delayed scaling.
pub const NVTEX_BACKWARD_HIGH_PRECISION: NVTEXBackward = 1;
/// Gradients in high precision, and inputs and weights cast back from what the forward pass read. Not
/// with delayed scaling.
pub const NVTEX_BACKWARD_DEQUANTIZED: NVTEXBackward = 2;

/// Operands of the products of a layer.
pub type NVTEXRole = i32;
pub const NVTEX_ROLE_INPUT: NVTEXRole = 0;
pub const NVTEX_ROLE_WEIGHT: NVTEXRole = 1;
pub const NVTEX_ROLE_GRAD_OUTPUT: NVTEXRole = 2;

/// Scaling of an operand, for `NVTEX_RECIPE_CUSTOM`.
pub type NVTEXSlotScaling = i32;
/// The operand stays in high precision.
pub const NVTEX_SLOT_HIGH_PRECISION: NVTEXSlotScaling = 0;
pub const NVTEX_SLOT_DELAYED: NVTEXSlotScaling = 1;
pub const NVTEX_SLOT_CURRENT: NVTEXSlotScaling = 2;
pub const NVTEX_SLOT_BLOCK: NVTEXSlotScaling = 3;
pub const NVTEX_SLOT_MXFP8: NVTEXSlotScaling = 4;
pub const NVTEX_SLOT_NVFP4: NVTEXSlotScaling = 5;

/// How long memory of an allocator is wanted.
pub type NVTEXLifetime = i32;
/// Until the call returns.
pub const NVTEX_LIFETIME_SCRATCH: NVTEXLifetime = 0;
/// Until a tape is destroyed.
pub const NVTEX_LIFETIME_TAPE: NVTEXLifetime = 1;
/// Until the module or the context is destroyed.
pub const NVTEX_LIFETIME_PERSISTENT: NVTEXLifetime = 2;

/// Slots of delayed scaling.
pub type NVTEXPass = i32;
/// 3 slots: input, weight, output (not used).
pub const NVTEX_PASS_FORWARD: NVTEXPass = 0;
/// 2 slots: gradient of the output, gradient of the input (not used).
pub const NVTEX_PASS_BACKWARD: NVTEXPass = 1;

/// Which side of the weight of a linear layer ranks share.
pub type NVTEXParallelMode = i32;
/// As the kind of the module has it; of `nvtex_linear_create` neither.
pub const NVTEX_PARALLEL_DEFAULT: NVTEXParallelMode = 0;
/// The outputs: each rank has some rows of the weight, and writes some columns of the result.
pub const NVTEX_PARALLEL_COLUMN: NVTEXParallelMode = 1;
/// The inputs: each rank reads some columns of the input. The results are summed over the ranks, then the bias is
/// added.
pub const NVTEX_PARALLEL_ROW: NVTEXParallelMode = 2;

/// Norms of the heads of queries and keys.
pub type NVTEXQKNorm = i32;
pub const NVTEX_QK_NORM_NONE: NVTEXQKNorm = 0;
/// `x / sqrt(sum(x^2) + epsilon)`, without parameters.
pub const NVTEX_QK_NORM_L2: NVTEXQKNorm = 1;
pub const NVTEX_QK_NORM_RMS: NVTEXQKNorm = 2;
pub const NVTEX_QK_NORM_LAYER: NVTEXQKNorm = 3;

/// How the ranks that share each sequence do their attention.
pub type NVTEXContextParallelKind = i32;
/// NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL where that is possible and moves fewer bytes, unless there is a window to the
/// left; else NVTEX_CONTEXT_PARALLEL_ALL_GATHER.
pub const NVTEX_CONTEXT_PARALLEL_AUTOMATIC: NVTEXContextParallelKind = 0;
/// A rank gets some of the heads of whole sequences; heads of queries and of keys are multiples of the ranks. All
/// masks, packed tokens and dropout, which drops the same elements as on one rank.
pub const NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL: NVTEXContextParallelKind = 1;
/// A rank gets the keys and values that its queries see. No dropout; masks with padding only of packed tokens, which
/// have a causal mask, or neither a mask nor a window, and of which a rank gets all keys and values.
pub const NVTEX_CONTEXT_PARALLEL_ALL_GATHER: NVTEXContextParallelKind = 2;
/// A rank gets the keys and values of one rank after the other, so that its memory does not grow with the whole
/// sequence. As NVTEX_CONTEXT_PARALLEL_ALL_GATHER, which it is if there is a window to the left: what that leaves comes at
/// once. No window to the right alone.
pub const NVTEX_CONTEXT_PARALLEL_RING: NVTEXContextParallelKind = 3;

/// Scores of a router, of the logits of a token.
pub type NVTEXMoeScore = i32;
/// The greatest logits are chosen, and weights are the softmax over those.
pub const NVTEX_MOE_SCORE_SOFTMAX: NVTEXMoeScore = 0;
/// Weights are the softmax over the logits of all experts; those of a token need not add up to 1.
pub const NVTEX_MOE_SCORE_SOFTMAX_OF_ALL: NVTEXMoeScore = 1;
/// Weights are sigmoids, divided by the sum of those chosen if these are several.
pub const NVTEX_MOE_SCORE_SIGMOID: NVTEXMoeScore = 2;
/// As NVTEX_MOE_SCORE_SIGMOID, with `sqrt(log(1 + exp(x)))`.
pub const NVTEX_MOE_SCORE_SQRTSOFTPLUS: NVTEXMoeScore = 3;

/// Place of a step among the microbatches that share their weights.
pub type NVTEXMicrobatch = i32;
/// Weights are cast in each step; gradients are written or added as they were bound.
pub const NVTEX_MICROBATCH_NONE: NVTEXMicrobatch = 0;
/// Weights are cast and kept; gradients are overwritten.
pub const NVTEX_MICROBATCH_FIRST: NVTEXMicrobatch = 1;
/// The kept weights are used; gradients are added.
pub const NVTEX_MICROBATCH_LATER: NVTEXMicrobatch = 2;

/// What a handle of a context points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXContext_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a cache of keys and values points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXKVCache_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a module points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXModule_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a recipe points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXRecipe_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a tape points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXTape_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a recipe says of one role.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXRoleOptions {
    /// Rounds scales down to powers of two (current scaling, FP8 blocks).
    pub power_2_scales: bool,
    /// The least maximum that counts (current scaling, FP8 blocks).
    pub amax_epsilon: f32,
    /// 1: blocks along rows; 2: square ones (FP8 blocks; MXFP8 and NVFP4 weights).
    pub block_dim: i32,
}

/// The choice for one operand.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXSlotChoice {
    pub scaling: NVTEXSlotScaling,
    /// Float8E4M3 or Float8E5M2; Float4E2M1 of NVFP4.
    pub dtype: NVTEDType,
    pub options: NVTEXRoleOptions,
}

/// Chooses for an operand of the layer `layer` (a module's name, followed by a dot and the part if it
/// has parts) by writing to `choice`, which at first says what the kind of the recipe says; of
/// `NVTEX_RECIPE_CUSTOM` high precision. So a layer stays in high precision where all its roles do. It
/// returns 0, or anything else for failure. An unknown number is an error. The rules of
/// `NVTEXContextConfig` for its functions hold.
pub type NVTEXChoose = Option<unsafe extern "C" fn(user: *mut c_void, layer: *const c_char, role: NVTEXRole, choice: *mut NVTEXSlotChoice) -> i32>;

/// A recipe. `nvtex_recipe_config_init` sets the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXRecipeConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub kind: NVTEXRecipeKind,
    /// FP8 types. Default: hybrid; E4M3 in block recipes.
    pub format: NVTEXFormat,
    /// Delayed scaling multiplies scales by `2^-margin`. Default 0.
    pub margin: f32,
    /// Delayed scaling: maxima that are kept. Default 1024.
    pub amax_history_len: usize,
    pub amax_algo: NVTEXHistoryAlgo,
    /// Delayed scaling: histories and scales change in every n-th update, with n this number. The maxima
    /// of the updates between count as those of one step. Default 1.
    pub update_interval: u32,
    /// Delayed scaling: maxima are reduced over the group of `nvtex_context_begin`. Default true.
    pub reduce_amax: bool,
    pub input: NVTEXRoleOptions,
    pub weight: NVTEXRoleOptions,
    pub grad_output: NVTEXRoleOptions,
    /// Sums the products of each pass more precisely. Defaults: false, true, true; for FP8 blocks,
    /// which need it, always true.
    pub split_accumulator_fprop: bool,
    pub split_accumulator_dgrad: bool,
    pub split_accumulator_wgrad: bool,
    /// Default: quantized.
    pub backward: NVTEXBackward,
    /// The function that chooses for each layer and role, and its first argument. Null (default): all are
    /// as the kind says, which `NVTEX_RECIPE_CUSTOM` has nothing to say about.
    pub choose: NVTEXChoose,
    pub user: *mut c_void,
    /// Attention reads queries, keys and values in E4M3, with one scale for a tensor from its own
    /// maximum. Its result is in high precision, and so are the gradients, which are those of what the
    /// forward pass has read. This is for delayed and current scaling, without a cache of keys and
    /// values. Default: false.
    pub fp8_dpa: bool,
    /// NVFP4: inputs and gradients go through a random Hadamard transform of each 16 rows before they are
    /// cast for the product of the weight's gradient. Default: true.
    pub nvfp4_hadamard: bool,
    /// NVFP4: gradients are rounded stochastically, by the `rng_state` of the step, which is needed then.
    /// Default: true.
    pub nvfp4_stochastic_rounding: bool,
}

/// Handle of a recipe.
pub type NVTEXRecipe = *mut NVTEXRecipe_st;

/// Allocates memory of the device, or returns null if there is none left. The rules of
/// `NVTEXContextConfig` for its functions hold.
pub type NVTEXAllocate = Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize, alignment: usize, lifetime: NVTEXLifetime, stream: cudaStream_t) -> *mut c_void>;

/// Takes memory back. Work on the stream may still use it, so hand it out again to that stream alone,
/// or wait for the stream. The rules of `NVTEXContextConfig` for its functions hold, except that a C++
/// exception is only reported to stderr, and the memory counts as released.
pub type NVTEXRelease = Option<unsafe extern "C" fn(user: *mut c_void, ptr: *mut c_void, bytes: usize, lifetime: NVTEXLifetime, stream: cudaStream_t)>;

/// Replaces each of `count` floats on the device by the largest of the group's ranks, on the stream.
/// It returns 0, or anything else for failure. The rules of `NVTEXContextConfig` for its functions
/// hold.
pub type NVTEXAllReduceMax = Option<unsafe extern "C" fn(user: *mut c_void, group: *mut c_void, data: *mut f32, count: usize, stream: cudaStream_t) -> i32>;

/// What a context gets from the program. All fields may be null or 0.
///
/// The functions must not call functions of the same context, its modules, tapes and caches, not even those
/// that destroy: such a call is an error. A C++ exception that leaves one of them becomes an error of the call
/// that called it. They must end by returning or by an exception: `longjmp` out of them, and ending the thread
/// in them, is undefined behaviour.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXContextConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Argument of `allocate` and `release`, which are both set or both null (null: memory of
    /// `nvtex_malloc`, which is kept and used again).
    pub allocator: *mut c_void,
    pub allocate: NVTEXAllocate,
    pub release: NVTEXRelease,
    /// Passed to `all_reduce_max` (null: nothing is reduced).
    pub communicator: *mut c_void,
    pub all_reduce_max: NVTEXAllReduceMax,
    /// Multiprocessors that normalizations may keep busy; sums depend on it. 0: all of the device's, and
    /// 132 on the CPU backend.
    pub multiprocessor_count: i32,
    /// Without `allocate`: bytes that the context may keep unused when it asks the device for more.
    /// What is beyond goes back to the device first, and the device waits for its work then. Memory
    /// that a captured graph uses stays. 0: four times the most that passes have used at once, at
    /// least 4 MiB. SIZE_MAX: everything is kept.
    pub max_unused_bytes: usize,
}

/// Handle of a context.
pub type NVTEXContext = *mut NVTEXContext_st;

/// Device memory of a context, in bytes. Blocks are counted as they are handed out, so sizes are rounded up.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXMemoryUse {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// In use now: scratch memory of calls, memory of tapes, and what lives as long as modules and the context.
    pub scratch: usize,
    pub tape: usize,
    pub persistent: usize,
    /// Kept for later calls; 0 with an allocator of the program.
    pub unused: usize,
    /// The most of each that was in use since the context was created, and the most of all three at once.
    pub most_scratch: usize,
    pub most_tape: usize,
    pub most_persistent: usize,
    pub most_at_once: usize,
}

/// Config of a norm, as a module or as the first part of one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXNormConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    /// Default: LayerNorm.
    pub kind: NVTE_Norm_Type,
    /// Elements of a row.
    pub hidden_size: usize,
    /// Default: 1e-5.
    pub epsilon: f32,
    /// The weight is stored as its distance from 1.
    pub zero_centered_gamma: bool,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: NVTEDType,
    /// Of a norm that is a module: the ranks that share weights share its rows, so that the gradients of its parameters
    /// are summed over them. Default: false.
    pub sequence_parallel: bool,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// Handle of a module.
pub type NVTEXModule = *mut NVTEXModule_st;

/// What else there is to say about ranks. Set all of it to 0, then `struct_size`, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXParallelOptions {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Of linear layers.
    pub mode: NVTEXParallelMode,
    /// Where a scale comes from all values of a tensor of which each rank has a part (current scaling, NVFP4), each rank
    /// scales its own part: less to wait for, but values that depend on the number of ranks. Default: false.
    pub local_scales: bool,
}

/// How a module is spread over the ranks of its context's grid (`nvtex_context_set_grid`).
///
/// Sizes in configs are those of the whole module. Parameters are parts of it, as `nvtex_module_parameter` says, with
/// the initial values that they have in the whole; all ranks give the same seeds. Inputs and outputs are parts where this
/// is said below, and gradients are complete: the library has summed what comes from the parts of other ranks.
/// All ranks make the same calls in the same order, and bind the same gradients.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXParallelConfig {
    /// Ranks that share each weight: 1 (default): the module is not divided, and the same on all ranks; 0: those of
    /// NVTEX_GRID_TP; or the number of these. They share outputs of the products that come first in a module (rows of
    /// the weight; in the MLP those of the function and of its gate each; heads) and the inputs of those that come last
    /// (columns of the weight), after which one sum over the ranks follows. Inputs and outputs of modules are whole, those
    /// of attention without projections have the own heads.
    pub tensor_parallel_size: usize,
    /// The same ranks share the rows between products, too: inputs and outputs, norms, dropout and residuals have an
    /// equal share of the first dimension, in the order of the ranks. Default: false.
    pub sequence_parallel: bool,
    /// Ranks that share each sequence. Default: 1.
    pub context_parallel_size: usize,
    /// Null (default): none. It is read when the module is created.
    pub options: *const NVTEXParallelOptions,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// `y = x W^T + b`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub in_features: usize,
    pub out_features: usize,
    /// Default: true.
    pub bias: bool,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: NVTEDType,
    /// Standard deviation of the initial weight. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight.
    pub seed: u64,
    /// How ranks share the module.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y = norm(x) W^T + b`. The norm's `hidden_size`, `name` and `dtype` are ignored.
///
/// A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLayerNormLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub norm: NVTEXNormConfig,
    pub linear: NVTEXLinearConfig,
    /// `linear.name`.
    pub name: *const c_char,
    /// `linear.in_features`. Default: 0.
    pub in_features: usize,
    /// `linear.out_features`. Default: 0.
    pub out_features: usize,
    /// `linear.bias`. Default: true.
    pub bias: bool,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    pub dtype: NVTEDType,
    /// Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight: `linear.seed`. Default: 0.
    pub seed: u64,
    /// `norm.kind`. Default: LayerNorm.
    pub norm_type: NVTE_Norm_Type,
    /// `norm.epsilon`. Default: 1e-5.
    pub norm_epsilon: f32,
    /// How ranks share the module: `linear.parallel`.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y_e = x_e W_e^T + b_e`
///
/// A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXGroupedLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Parts, each with a weight of its own.
    pub num_gemms: usize,
    /// Config of each part, with one name for all. Initial weights differ.
    pub linear: NVTEXLinearConfig,
    /// `linear.name`.
    pub name: *const c_char,
    /// `linear.in_features`. Default: 0.
    pub in_features: usize,
    /// `linear.out_features`. Default: 0.
    pub out_features: usize,
    /// `linear.bias`. Default: true.
    pub bias: bool,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    pub dtype: NVTEDType,
    /// Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight: `linear.seed`. Default: 0.
    pub seed: u64,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y = f(norm(x) W1^T + b1) W2^T + b2`. The norm's `hidden_size`, `name` and `dtype` are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLayerNormMLPConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub norm: NVTEXNormConfig,
    pub hidden_size: usize,
    /// Elements after the activation. With a gated activation W1 has twice as many rows, first those
    /// of the function f, then those of the gate.
    pub ffn_hidden_size: usize,
    /// Default: GELU.
    pub activation: NVTE_Activation_Type,
    /// Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub clamp_limit: f32,
    pub clamp_alpha: f32,
    pub clamp_offset: f32,
    /// Whether both linear layers have a bias. Default: true.
    pub bias: bool,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: NVTEDType,
    /// Standard deviations of the initial weights. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Seed of the initial weights.
    pub seed: u64,
    /// Tapes hold the input, but neither the norm's result nor the input and the result of the
    /// activation. The backward pass computes these again, to the same bits, from weights that tapes
    /// then hold for both passes. Default: false.
    pub checkpoint: bool,
    /// How ranks share the module.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `softmax(scale q k^T) v`, as `nvte_fused_attn_fwd_v2` has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXAttentionConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub num_attention_heads: usize,
    /// Heads of keys and values. 0: as many as of queries.
    pub num_gqa_groups: usize,
    pub head_dim_qk: usize,
    /// Elements of a head of values; 0 stands for `head_dim_qk`.
    pub head_dim_v: usize,
    /// Dropout of the probabilities, in passes with a tape. Default: 0.
    pub attention_dropout: f32,
    /// NVTE_SBHD (default), NVTE_BSHD, or NVTE_THD (packed tokens, only with masks that have padding).
    pub qkv_format: NVTE_QKV_Format,
    /// Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: NVTE_Mask_Type,
    /// The numbers of keys before and after a query that it sees; -1 (default): all.
    pub window_size_left: i64,
    pub window_size_right: i64,
    /// Windows of masks that are not causal are aligned at the bottom right. Default: true.
    pub bottom_right_diagonal: bool,
    pub softmax_type: NVTE_Softmax_Type,
    /// Factor of the scores; 0 (default) stands for `1 / sqrt(head_dim_qk)`.
    pub softmax_scale: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: NVTEDType,
    /// In modules with projections: tapes hold queries, keys and values, but not the attention's
    /// result and statistics, which the backward pass computes again, to the same bits. Default:
    /// false.
    pub checkpoint_core_attention: bool,
    /// In self attention of modules with projections: normalizes each head of queries and keys, after
    /// or before the rotary embedding. Default: none.
    pub qk_norm_type: NVTEXQKNorm,
    /// Default: 1e-6.
    pub qk_norm_epsilon: f32,
    /// Default: false.
    pub qk_norm_before_rope: bool,
    /// How ranks share the module.
    pub parallel: NVTEXParallelConfig,
    /// How ranks that share each sequence do their attention. Default: automatic.
    pub context_parallel_kind: NVTEXContextParallelKind,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Config of projections, attention, and a projection. The attention's `name` is ignored; if its
/// `head_dim_qk` is 0 (default), it is `hidden_size / num_attention_heads`, and `head_dim_v` is the
/// same.
///
/// A field from `num_attention_heads` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXMultiheadAttentionConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub hidden_size: usize,
    pub attention: NVTEXAttentionConfig,
    /// A norm in front of the first projection. Default: false. Its `hidden_size`, `name` and `dtype` are
    /// ignored.
    pub input_layernorm: bool,
    pub norm: NVTEXNormConfig,
    /// Keys and values come from a second input. Default: false.
    pub cross_attention: bool,
    /// Whether the projections have biases. Default: true.
    pub bias: bool,
    /// Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    pub rotary_interleaved: bool,
    /// Standard deviations of the initial weights, of the first projections and of the last. Default: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Seed of the initial weights.
    pub seed: u64,
    /// `attention.num_attention_heads`. Default: 0.
    pub num_attention_heads: usize,
    /// Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    pub num_gqa_groups: usize,
    /// `norm.kind`. Default: LayerNorm.
    pub norm_type: NVTE_Norm_Type,
    /// `norm.epsilon`. Default: 1e-5.
    pub norm_epsilon: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `attention.dtype`.
    pub dtype: NVTEDType,
    /// `attention.qkv_format`. Default: NVTE_SBHD.
    pub qkv_format: NVTE_QKV_Format,
    /// `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: NVTE_Mask_Type,
    /// Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    pub attention_dropout: f32,
    /// How ranks share the module: `attention.parallel`.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// Config of a layer of experts: `y = sum_k w_k f_k(x) + g(x)` for the experts k that a router chooses for the token x,
/// each an MLP `f(x) = act(x W1^T + b1) W2^T + b2`, and an MLP g for all tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXMoeConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub hidden_size: usize,
    /// Elements of an expert after its activation. With a gated activation W1 has twice as many rows, first those
    /// of the function, then those of the gate.
    pub ffn_hidden_size: usize,
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Float16 or BFloat16, on the CPU backend also Float32 (default), of experts, inputs and outputs.
    pub dtype: NVTEDType,
    /// Of the router: Float32 (default) or `dtype`. Its products stay in it whatever the recipe says; logits are Float32.
    pub router_dtype: NVTEDType,
    /// Default: SWIGLU.
    pub activation: NVTE_Activation_Type,
    /// Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub clamp_limit: f32,
    pub clamp_alpha: f32,
    pub clamp_offset: f32,
    /// Whether experts and the shared MLP have biases. Default: false.
    pub bias: bool,
    /// Default: NVTEX_MOE_SCORE_SOFTMAX.
    pub score: NVTEXMoeScore,
    /// Experts come in groups of neighbours, of which only the best `group_top_k` are chosen from; the score of a group is
    /// the sum of its best `top_k / group_top_k`. 0 (default): there are none.
    pub num_groups: usize,
    pub group_top_k: usize,
    /// A bias of each expert that is added to its score for the choice alone; not with a softmax. The program moves it, by
    /// what the third output says. Default: false.
    pub expert_bias: bool,
    /// Factor of the weights of experts. Default: 1.
    pub scaling_factor: f32,
    /// Factor c of the loss of balance, `c E / (k T^2) sum_e n_e sum_t s_te`: of T tokens n_e have chosen expert e, to
    /// which token t gives the score s_te, divided by those of all experts. Default: 0.
    pub balance_coefficient: f32,
    /// Factor c of the loss of the size of the logits, `c / T sum_t log(sum_e exp(x_te))^2`. Default: 0.
    pub z_coefficient: f32,
    /// Elements of the MLP for all tokens after its activation. 0 (default): there is none.
    pub shared_ffn_hidden_size: usize,
    /// Standard deviations of the initial weights: of first and last products, and of the router. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    pub router_init_std: f32,
    /// Seed of the initial weights.
    pub seed: u64,
    /// Ranks that share the experts: 1 (default): none; 0: those of NVTEX_GRID_EP; or the number of these. Each has
    /// `num_experts` divided by their number, and tokens of its own.
    pub expert_parallel_size: usize,
    /// An expert takes at most `ceil(capacity_factor * top_k * T / num_experts)` choices, computed in double, of the T
    /// tokens of all ranks that share the experts: with 1 as many as if all experts had the same number. Choices beyond are
    /// dropped. 0 (default): none is.
    pub capacity_factor: f32,
    /// Ranks that divide each expert and the shared MLP, as they divide an MLP (`NVTEXParallelConfig`): 1 (default): none;
    /// 0: those of NVTEX_GRID_TP; or the number of these. They have the same tokens, or, in a layer of a Transformer with
    /// `mlp.parallel.sequence_parallel`, parts of them; each has the router.
    pub tensor_parallel_size: usize,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 2],
}

/// A layer of a Transformer.
///
/// A field from `hidden_size` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXTransformerLayerConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    /// The self attention, as for `nvtex_multihead_attention_create`.
    pub attention: NVTEXAttentionConfig,
    /// The MLP, as for `nvtex_layernorm_mlp_create`. It also gives sizes, norms, bias, deviations and
    /// seed of the whole layer.
    pub mlp: NVTEXLayerNormMLPConfig,
    /// Dropout of what is added to the residuals, in passes with a tape. Default: 0.
    pub hidden_dropout: f32,
    /// Adds attention to a second input, without a mask unless `inter_mask_type` says so. Default: false.
    pub decoder: bool,
    pub inter_mask_type: NVTE_Mask_Type,
    /// Residuals are the norms' results. Default: false.
    pub residual_post_layernorm: bool,
    /// The layer has a norm at its end instead of the one before the self attention. Default: false.
    pub output_layernorm: bool,
    /// Attention and MLP both read the layer's input, and their sum is added to it. This excludes
    /// `decoder`, `residual_post_layernorm` and `output_layernorm`. Default: false.
    pub parallel_attention_mlp: bool,
    /// Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    pub rotary_interleaved: bool,
    /// Elements of a row: `mlp.hidden_size`. Default: 0.
    pub hidden_size: usize,
    /// Elements after the activation of the MLP: `mlp.ffn_hidden_size`. Default: 0.
    pub ffn_hidden_size: usize,
    /// `attention.num_attention_heads`. Default: 0.
    pub num_attention_heads: usize,
    /// Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    pub num_gqa_groups: usize,
    /// `mlp.activation`. Default: GELU.
    pub activation: NVTE_Activation_Type,
    /// Of all norms of rows: `mlp.norm.kind`. Default: LayerNorm.
    pub norm_type: NVTE_Norm_Type,
    /// Of all norms of rows: `mlp.norm.epsilon`. Default: 1e-5.
    pub norm_epsilon: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `mlp.dtype`.
    pub dtype: NVTEDType,
    /// `attention.qkv_format`. Default: NVTE_SBHD.
    pub qkv_format: NVTE_QKV_Format,
    /// Of the self attention: `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: NVTE_Mask_Type,
    /// Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    pub attention_dropout: f32,
    /// Whether the linear layers have biases: `mlp.bias`. Default: true.
    pub bias: bool,
    /// Standard deviations of the initial weights: `mlp.init_std`, `mlp.output_init_std`. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Seed of the initial weights: `mlp.seed`. Default: 0.
    pub seed: u64,
    /// Tapes leave out what is cheap to compute again: `mlp.checkpoint` and
    /// `attention.checkpoint_core_attention`. Default: false.
    pub checkpoint: bool,
    /// How ranks share the layer: `mlp.parallel` and `attention.parallel`.
    pub parallel: NVTEXParallelConfig,
    /// Experts in place of the MLP, as for `nvtex_moe_create`, or null (default). Of `mlp` the layer then has the norm, sizes,
    /// dtype, bias of the attention, deviations of the attention, and seed. A `hidden_size` or `ffn_hidden_size` of 0 of the
    /// experts is that of `mlp`, Float32 is its dtype, and their seeds differ from layer to layer as `mlp.seed` does. Ranks
    /// that share the weights of the attention have the experts each for itself, unless `experts.tensor_parallel_size` says
    /// that they divide them; so they do where they share rows.
    pub experts: *const NVTEXMoeConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Config of an embedding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXEmbeddingConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    /// Tokens that there are: rows of the weight.
    pub vocabulary_size: usize,
    pub hidden_size: usize,
    /// Rows of a learned table of positions. 0 (default): there is none.
    pub max_positions: usize,
    /// Factor of the rows of tokens. Default: 1.
    pub scale: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters and outputs.
    pub dtype: NVTEDType,
    /// Standard deviations of the initial tables of tokens and of positions. Defaults: 0.023.
    pub init_std: f32,
    pub position_init_std: f32,
    /// Seed of the initial tables.
    pub seed: u64,
    /// How ranks share the module: each has some rows of the weight. Null (default): it is on this rank alone. It is read
    /// when the module is created.
    pub parallel: *const NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Config of the head of a language model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLMHeadConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    /// Rows of the weight.
    pub vocabulary_size: usize,
    pub hidden_size: usize,
    /// An embedding of the same context whose weight is this module's, too; then sizes and dtype are those of the
    /// embedding, and `vocabulary_size` and `hidden_size` are 0 or the same. Null (default): the module has a
    /// weight of its own.
    pub tied_to: NVTEXModule,
    /// Float32 (default), Float16 or BFloat16, of the parameter and the hidden states.
    pub dtype: NVTEDType,
    /// Standard deviation of the initial weight. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight.
    pub seed: u64,
    /// The target of tokens that do not count. Default: -100.
    pub ignored_target: i64,
    /// The part of a target's weight that is spread over the whole vocabulary, 0 to 1. Default: 0.
    pub label_smoothing: f32,
    /// Factor of the square of the logsumexp, which is added to the loss. Default: 0.
    pub z_loss: f32,
    /// Bytes that logits may take at a time. 0 (default): 500 MB. Over several ranks each has all of its own logits in
    /// memory.
    pub workspace_limit: usize,
    /// How ranks share the module: each has some rows of the weight, and the logits of these. Null (default): it is on
    /// this rank alone. It is read when the module is created.
    pub parallel: *const NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Config of a language model: an embedding, layers that are alike, a norm and a head in a row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLanguageModelConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub vocabulary_size: usize,
    /// Rows of a learned table of positions. 0 (default): there is none, for steps with `rotary_frequencies`.
    pub max_positions: usize,
    pub num_layers: usize,
    /// Each of the layers. Its sizes, dtype, norm, seed, deviations and ranks are those of the whole model: seeds of the
    /// parts follow from it and differ, and the deviation of what is added to residuals (`output_init_std`, also of
    /// `experts`) is divided by `sqrt(2 num_layers)`. It is no decoder, and has no name. Default of `qkv_format` here:
    /// NVTE_BSHD, for tokens `[batch, length]`.
    pub layer: NVTEXTransformerLayerConfig,
    /// The head has the weight of the embedding. Default: true.
    pub tied_embeddings: bool,
    /// Bytes that logits may take at a time, as of NVTEXLMHeadConfig.
    pub workspace_limit: usize,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// Angles of rotary embeddings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXRotaryConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Default: 10000.
    pub base: f32,
    /// Position of the first row. Default: 0.
    pub offset: usize,
    /// Divides positions by this factor; 0 (default): none.
    pub interpolation_factor: f32,
    /// With a factor f and more rows than f times this length, positions are divided by `rows / length`
    /// instead. 0 (default): never.
    pub pretrained_length: usize,
    /// The two entries of a pair's angle are neighbours, instead of lying in the two halves of the
    /// row.
    pub interleaved: bool,
}

/// Consecutive indices of the dimension of a parameter that ranks share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXParameterPiece {
    /// The first index in the whole parameter, and in this rank's part of it.
    pub whole: usize,
    pub part: usize,
    pub length: usize,
    /// False: another rank of the grid that shares weights has the same elements, and counts them.
    pub counts: bool,
}

/// A parameter of a module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXParameter {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// The name. The caller may read it until the module is destroyed.
    pub name: *const c_char,
    pub shape: NVTEShape,
    /// The dtype, in high precision.
    pub dtype: NVTEDType,
    /// The value: in high precision, or in FP8 with its scales if the weight exists in FP8 alone. The
    /// caller may use it until the module is destroyed or the value is bound anew.
    pub value: NVTETensor,
    /// The value is in FP8.
    pub quantized: bool,
    /// The shape of the whole parameter, of which this rank may have a part.
    pub whole_shape: NVTEShape,
    /// The dimension that ranks share, and what this rank has of it: one piece of the first dimension if it has all. The
    /// caller may read the pieces until the module is destroyed. A sum over all elements of a model, such as that of
    /// the squares of its gradients, adds what counts over the ranks that share weights.
    pub shared_dimension: usize,
    pub num_pieces: usize,
    pub pieces: *const NVTEXParameterPiece,
}

/// Handle of a cache of keys and values.
pub type NVTEXKVCache = *mut NVTEXKVCache_st;

/// Options of a forward pass; its backward pass has the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXStep {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub microbatch: NVTEXMicrobatch,
    /// One Float32 on the device, or null. While it is 1, kept weights stay as they are, so that a
    /// graph that is captured once can be replayed for each microbatch.
    pub skip_weight_update: NVTETensor,
    /// Seed and offset of the random numbers, Int64 `[2]` on the device, needed if there is dropout. A
    /// call uses the sequence from this offset on; add 128 for each call.
    pub rng_state: NVTETensor,
    /// Where the sequences of queries, and those of keys and values, begin without padding: Int32
    /// `[b + 1]` on the device, or null. They are for masks with padding; self attention reads the
    /// first array for both.
    pub cu_seqlens_q: NVTETensor,
    pub cu_seqlens_kv: NVTETensor,
    /// Where the sequences begin in NVTE_THD, if there is padding between them: arrays like the two
    /// before.
    pub cu_seqlens_q_padded: NVTETensor,
    pub cu_seqlens_kv_padded: NVTETensor,
    /// The longest sequences, for NVTE_THD. 0 (in modules with projections): as long as all tokens.
    pub max_seqlen_q: usize,
    pub max_seqlen_kv: usize,
    /// Angles by which the first d2 elements of queries and keys of self attention are rotated:
    /// Float32 `[length or more, 1, 1, d2]` (`nvtex_rotary_frequencies`). Null: none. With NVTE_THD
    /// there are `max_seqlen_q` rows or more, or rows for all tokens if that is 0 or there is padding
    /// between sequences.
    pub rotary_frequencies: NVTETensor,
    /// A cache of the same context, or null. Self attention appends its keys and values to those of
    /// earlier tokens in the cache, and reads all of them. There is no tape then. Inputs are the new
    /// tokens of the sequences of `nvtex_kv_cache_step`: for each sequence they come first, so that
    /// their number may differ, or they are packed (NVTE_THD, without `cu_seqlens_q`). Frequencies
    /// have `max_sequence_length + length - 1` rows or more, for packed tokens `max_sequence_length`.
    pub kv_cache: NVTEXKVCache,
    /// Rows of each part of a grouped linear layer, on the host; they may be 0. They are read before the call
    /// returns.
    pub m_splits: *const usize,
    pub num_splits: usize,
}

/// Handle of a tape.
pub type NVTEXTape = *mut NVTEXTape_st;

/// Sizes of a cache of keys and values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXKVCacheConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Most sequences at a time.
    pub max_batch_size: usize,
    /// Most tokens of a sequence.
    pub max_sequence_length: usize,
    /// Tokens of a page, a divisor of `max_sequence_length`. 0 (default): each sequence has one
    /// contiguous piece of memory for all its tokens.
    pub page_size: usize,
    /// Pages of all sequences together. 0 (default): enough for all of `max_sequence_length`.
    pub num_pages: usize,
}


































































/// What the ranks of a data-parallel group divide among each other.
pub type NVTEXSharding = i32;
/// Nothing: each rank has the sum of all gradients, and updates all parameters.
pub const NVTEX_SHARDING_NONE: NVTEXSharding = 0;
/// The update, and what the optimizer keeps: each rank has the sum of its part of the gradients, and masters and
/// state of this part; the values that others have updated are gathered.
pub const NVTEX_SHARDING_OPTIMIZER: NVTEXSharding = 2;
/// The parameters and their gradients, too: each rank keeps its part, and has all parameters of a layer only while
/// the layer runs. They are gathered for its forward pass and again for its backward pass, behind which the
/// gradients of all ranks are summed.
pub const NVTEX_SHARDING_FULL: NVTEXSharding = 3;

/// How the gradients of all ranks become one.
pub type NVTEXGradients = i32;
/// Their mean, for losses that are means over the batch of a rank.
pub const NVTEX_GRADIENTS_MEAN: NVTEXGradients = 0;
pub const NVTEX_GRADIENTS_SUM: NVTEXGradients = 1;

/// How a parameter is updated.
pub type NVTEXUpdateRule = i32;
/// AdamW: Adam with a weight decay that acts on the parameter.
pub const NVTEX_UPDATE_ADAMW: NVTEXUpdateRule = 0;
/// Gradient descent with momentum; the weight decay is part of the gradient.
pub const NVTEX_UPDATE_SGD: NVTEXUpdateRule = 1;
/// Muon for matrices; as the rule of a whole optimizer, AdamW for other parameters.
pub const NVTEX_UPDATE_MUON: NVTEXUpdateRule = 2;
/// None: the parameter stays, and gets no gradient.
pub const NVTEX_UPDATE_NONE: NVTEXUpdateRule = 3;

/// In what an optimizer keeps parameters of 16 bits beside their values. Those in FP8 alone always have Float32
/// masters.
pub type NVTEXMasters = i32;
/// Float32 masters.
pub const NVTEX_MASTERS_FLOAT32: NVTEXMasters = 0;
/// The low 16 bits of Float32 masters, for BFloat16 parameters under AdamW; the value is the high half, rounded.
/// Others have Float32 masters.
pub const NVTEX_MASTERS_REMAINDER: NVTEXMasters = 1;
/// None: values are updated and rounded in each step.
pub const NVTEX_MASTERS_NONE: NVTEXMasters = 2;

/// How the learning rate follows from the number s of steps before this one, with W steps of warm-up and T in all:
/// `learning_rate * (s + 1) / (W + 1)` while s < W, then by `p = min(1, (s - W) / (T - W))`.
pub type NVTEXSchedule = i32;
/// `learning_rate`
pub const NVTEX_SCHEDULE_CONSTANT: NVTEXSchedule = 0;
/// `learning_rate * (1 - (1 - last) * p)`, where `last` is `last_rate_factor`.
pub const NVTEX_SCHEDULE_LINEAR: NVTEXSchedule = 1;
/// `learning_rate * (last + (1 - last) * (1 + cos(pi * p)) / 2)`
pub const NVTEX_SCHEDULE_COSINE: NVTEXSchedule = 2;

/// What a handle of a data-parallel engine points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXDataParallel_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of an optimizer points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXOptimizer_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a token loader points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXTokenLoader_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// What a handle of a trainer points to. Only the library knows what it is.
#[repr(C)]
#[derive(Debug)]
pub struct NVTEXTrainer_st {
    _bytes: [u8; 0],
    _nowhere: crate::Opaque,
}

/// How ranks train together. All of them say the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXDataParallelConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Default: NVTEX_SHARDING_NONE.
    pub sharding: NVTEXSharding,
    /// Default: NVTEX_GRADIENTS_MEAN.
    pub gradients: NVTEXGradients,
    /// The dtype of gradients on their way, Float32 (default) or BFloat16. They are added in Float32 by ranks, and
    /// kept in Float32. A rank without others, whose parameters all have this dtype, keeps them in it, unless something is
    /// divided or added to them.
    pub wire_dtype: NVTEDType,
    /// Bytes of gradients that are reduced by one call, or one parameter if that is larger. Default: 64 MiB.
    pub bucket_bytes: usize,
    /// Backward passes add to the gradients: call `nvtex_optimizer_zero_grad` before the first one of a step.
    /// Otherwise they overwrite them, unless `NVTEXMicrobatch` says something else.
    pub accumulate: bool,
}

/// Handle of a data-parallel engine.
pub type NVTEXDataParallel = *mut NVTEXDataParallel_st;

/// What holds for one parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXUpdateOptions {
    pub rule: NVTEXUpdateRule,
    pub weight_decay: f32,
    /// What the learning rate is multiplied by for this parameter.
    pub learning_rate_factor: f32,
}

/// Chooses the options of a parameter, which come with what the config says: `name` is the name of its module, a
/// point, and its name in the module. It returns 0, or anything else for failure. The rules of `NVTEXContextConfig`
/// for its functions hold.
pub type NVTEXChooseUpdate = Option<unsafe extern "C" fn(user: *mut c_void, name: *const c_char, shape: *const NVTEShape, options: *mut NVTEXUpdateOptions) -> i32>;

/// What an optimizer does.
///
/// A step, in this order:
/// 1. The norm over all gradients, if there is something to clip, a dynamic loss scale, or `check_gradients`. If it
///    is not finite the step changes nothing, and counts as skipped.
/// 2. The numbers of the step, on the device: its number (skipped ones do not count), the learning rate, the loss
///    scale of the next step, and one factor for all gradients: `1 / (loss_scale * accumulation_steps)`, and if there
///    is something to clip `min(1, max_norm / (norm + 1e-6))`, where the norm is that after the first factor.
/// 3. The updates, which read gradients times this factor. Gradients stay as they are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXOptimizerConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub rule: NVTEXUpdateRule,
    pub learning_rate: f32,
    /// Of parameters of two or more dimensions; those of one (biases, gains of norms) have none.
    pub weight_decay: f32,
    /// Called for each parameter by `nvtex_optimizer_create`, or null.
    pub choose: NVTEXChooseUpdate,
    pub user: *mut c_void,
    /// Of AdamW, with the formula of `nvte_multi_tensor_adam_cuda`.
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    /// Float32 (default), BFloat16, or Float8E4M3: the first moment and the square root of the second, in blocks of 128
    /// elements with a Float32 scale each, rounded stochastically by the number of the step, so that the means of both
    /// stay what they are in Float32. They take 2.06 bytes for each element instead of 8. The CPU rounds to the same
    /// bits.
    pub moment_dtype: NVTEDType,
    /// Of gradient descent and Muon: `b = momentum * b + g`, then `g + momentum * b` if `nesterov`, else b.
    pub momentum: f32,
    pub nesterov: bool,
    /// Newton-Schulz iterations of Muon, which bring the update u of `[m, n]` to `0.2 * sqrt(max(m, n))` times a
    /// matrix near to the nearest orthogonal one; `p -= rate * (u + weight_decay * p)`.
    pub newton_schulz_steps: usize,
    pub masters: NVTEXMasters,
    /// Masters begin with the modules' initial values before these were rounded (`nvtex_module_initial_value`), not
    /// with the values that parameters have.
    pub initial_masters: bool,
    pub schedule: NVTEXSchedule,
    pub warmup_steps: i32,
    /// With a schedule that is not constant more than `warmup_steps`.
    pub total_steps: i32,
    /// The last learning rate, as a part of the first; 0 to 1.
    pub last_rate_factor: f32,
    /// The largest norm that all gradients together may have. 0: they are not clipped.
    pub max_norm: f32,
    /// The norm is computed, and gradients that are not finite are skipped, also if nothing else needs it.
    pub check_gradients: bool,
    /// Micro-batches of a step: gradients are divided by their number.
    pub accumulation_steps: i32,
    /// Backward passes add to gradients that the optimizer has made; call `nvtex_optimizer_zero_grad` before the
    /// first one of a step. Otherwise they overwrite them, unless `NVTEXMicrobatch` says something else.
    pub accumulate: bool,
    /// What the program multiplies the loss by at the beginning (`nvtex_optimizer_loss_scale`).
    pub loss_scale: f32,
    /// Good steps in a row after which the loss scale grows. 0: it stays as it is.
    pub growth_interval: i32,
    /// What the loss scale is multiplied by after these, and after a skipped step.
    pub growth_factor: f32,
    pub backoff_factor: f32,
    /// Bounds of the loss scale.
    pub least_loss_scale: f32,
    pub most_loss_scale: f32,
    /// The engine that has made the gradients of all `modules`, or null: the gradients are those of this rank. A step
    /// follows a call of `nvtex_data_parallel_reduce`, and is a call of all ranks together.
    pub data_parallel: NVTEXDataParallel,
    /// Gradients that the optimizer makes have the dtype of their parameter (those of weights in FP8 alone are Float32),
    /// so that products write them without a cast and a step reads half of the bytes. Each is rounded once in a pass; with
    /// `accumulate` also at every addition. A gradient of Float16 needs a loss scale.
    pub low_precision_gradients: bool,
}

/// Handle of an optimizer.
pub type NVTEXOptimizer = *mut NVTEXOptimizer_st;

/// The numbers of an optimizer after a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXOptimizerNumbers {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Steps that have changed the parameters.
    pub step: i64,
    /// Steps that have changed nothing, because gradients were not finite.
    pub skipped: i64,
    /// The newest step was one of these.
    pub was_skipped: bool,
    /// The learning rate of the newest step.
    pub learning_rate: f32,
    /// The norm of its gradients without loss scale, before clipping; 0 if it is not computed.
    pub norm: f32,
    /// What its gradients were multiplied by.
    pub gradient_scale: f32,
    /// The loss scale of the next step.
    pub loss_scale: f32,
}

/// A parameter as an optimizer knows it. Buffers are valid until the optimizer is destroyed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXOptimizerParameter {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Name of the module, a point, and the name in it.
    pub name: *const c_char,
    pub options: NVTEXUpdateOptions,
    /// The gradient, the master, and the moments of AdamW or the momentum. Those that do not exist have a null
    /// pointer. If ranks divide the parameter (`nvtex_data_parallel_part`), all but the gradient are rows of the
    /// elements of this rank.
    pub gradient: NVTEBasicTensor,
    pub master: NVTEBasicTensor,
    pub state: [NVTEBasicTensor; 2],
    /// The scales of moments in Float8E4M3, one for each 128 elements of the row of all: `scale * code` is the first
    /// moment, and the square root of the second. Null pointers for other moments.
    pub state_scales: [NVTEBasicTensor; 2],
}

/// What a trainer trains, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXTrainerConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// A module whose first output is a loss that needs no gradient, as `nvtex_language_model_create` and
    /// `nvtex_lm_head_create` make it.
    pub model: NVTEXModule,
    /// Null (default): products are in high precision.
    pub recipe: NVTEXRecipe,
    /// Null (default): AdamW with its defaults. A step has one batch and makes the engine itself: `accumulate` is false,
    /// `accumulation_steps` 1 and `data_parallel` null.
    pub optimizer: *const NVTEXOptimizerConfig,
    /// How ranks of the context's grid train together; null (default): with the defaults. `accumulate` is false.
    pub data_parallel: *const NVTEXDataParallelConfig,
    /// On the CUDA backend the third step is captured in a graph, and replayed from then on. This needs a stream that is
    /// not the default one, and a model that does not wait for the device: no experts over several ranks. Default: true.
    pub graph: bool,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// Handle of a trainer.
pub type NVTEXTrainer = *mut NVTEXTrainer_st;

/// Which tokens a loader gives out, and in which order.
///
/// Each file is divided into windows of `sequence` tokens, one behind the other from its first token on; a window is
/// given out with the token that follows it. Row r of batch number n of a rank is the window at the place
/// `n * batch * world + rank * batch + r` of an epoch, and windows that do not fill a batch for every rank are left
/// out. An epoch has the windows in the order of the files, or by a permutation that follows from seed and epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXTokenLoaderConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Files of nothing but tokens, little-endian.
    pub paths: *const *const c_char,
    pub num_paths: usize,
    /// Bytes of a token: 1, 2 (default) or 4.
    pub token_bytes: usize,
    /// Rows of a batch, of this rank; with `grid` of all ranks together.
    pub batch: usize,
    /// Tokens of a window.
    pub sequence: usize,
    /// Default: true.
    pub shuffle: bool,
    pub seed: u64,
    /// The number of this rank, and of all. With `grid` they stay as they are.
    pub rank: usize,
    pub world: usize,
    /// Tokens must be less than this number. 0 (default): any.
    pub vocabulary: usize,
    /// A grid, or null (default). Its groups NVTEX_GRID_DP divide each batch, and its groups NVTEX_GRID_CP each row:
    /// what goes to the device is the part of this rank, as `nvtex_context_parallel_split` makes it. The loader reads
    /// the grid when it is created.
    pub grid: NVTEXGrid,
}

/// Handle of a token loader.
pub type NVTEXTokenLoader = *mut NVTEXTokenLoader_st;

/// Where a loader is. It may be kept, and given to a loader of the same files and the same config, but for the rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXTokenPosition {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Batches that each rank has been given so far.
    pub batches: u64,
    /// What the loader must be like: windows, seed, tokens of a window, and rows of all ranks together.
    pub windows: u64,
    pub seed: u64,
    pub sequence: u64,
    pub rows: u64,
}

/// What a checkpoint holds. Everything may be null or 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXCheckpointConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Modules of one context, with the state of delayed scaling of that context. They must have names that the
    /// program has given them: made up ones depend on the order in which modules were created.
    pub modules: *const NVTEXModule,
    pub num_modules: usize,
    /// An optimizer over these modules, or null: its masters take the place of the values of 16 bits, and moments,
    /// number of steps, learning rate and loss scale are in the checkpoint, too.
    pub optimizer: NVTEXOptimizer,
    /// A loader, or null: its position.
    pub loader: NVTEXTokenLoader,
    /// Further tensors on the device with their names, such as the seed and offset of random numbers: integers or
    /// numbers in high precision.
    pub names: *const *const c_char,
    pub tensors: *const NVTETensor,
    pub num_tensors: usize,
    /// The communicator of all ranks of a grid, or null: of one rank alone. With it saving and loading are calls of all ranks
    /// together, in the same order and with the same config.
    pub communicator: NVTEXCommunicator,
}

/// Rows of a stored tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXSourceRows {
    /// The name of the tensor in the file.
    pub name: *const c_char,
    pub first_row: usize,
    /// 0: all rows from the first one on.
    pub num_rows: usize,
}

/// A parameter, and the rows that it is made of, one behind the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXPretrainedParameter {
    pub module: NVTEXModule,
    /// The number of the parameter in its module.
    pub index: usize,
    pub rows: *const NVTEXSourceRows,
    pub num_rows: usize,
}

/// What a `config.json` as Hugging Face writes it says of a model of the Llama or Qwen family.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLlamaSizes {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    pub vocabulary_size: usize,
    pub hidden_size: usize,
    pub ffn_hidden_size: usize,
    pub num_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The longest sequence that the model was made for; 0 if the file does not say it.
    pub max_positions: usize,
    /// Keys that a query sees, the one of its own token among them. 0: all.
    pub sliding_window: usize,
    /// Of all norms.
    pub norm_epsilon: f32,
    /// `base` and `interpolation_factor` (1: none) of `NVTEXRotaryConfig`.
    pub rotary_base: f32,
    pub rotary_factor: f32,
    /// The projections to queries, keys and values have biases.
    pub bias: bool,
    /// Heads of queries and keys have norms of their own, NVTEX_QK_NORM_RMS with `qk_norm_before_rope`.
    pub qk_norm: bool,
    /// The head has the weight of the embedding.
    pub tied_embeddings: bool,
    /// Of the stored weights: Float32, Float16 or BFloat16.
    pub dtype: NVTEDType,
}

/// The modules of a model of the Llama or Qwen family.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEXLlamaConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// The beginning of all names but that of the head. Null: `model.`.
    pub prefix: *const c_char,
    /// Layers made by `nvtex_transformer_layer_create` with RMSNorm, SWIGLU, and heads like these.
    pub layers: *const NVTEXModule,
    pub num_layers: usize,
    /// 0: as the first layer has it, and likewise the next field.
    pub num_attention_heads: usize,
    /// Heads of keys and values. 0: as many as of queries.
    pub num_key_value_heads: usize,
    /// The modules around the layers, or null: their first parameter whose name ends with `weight`.
    pub embedding: NVTEXModule,
    pub norm: NVTEXModule,
    pub head: NVTEXModule,
}










































unsafe extern "C-unwind" {
    /// Creates a tensor of a scaling mode, without buffers. Destroy it with `nvte_destroy_tensor`.
    ///
    /// Errors: an unknown mode (the result is then null).
    pub fn nvte_create_tensor(scaling_mode: NVTEScalingMode) -> NVTETensor;
    /// Creates `N` tensors, all or none, and stores their handles in `tensors`.
    pub fn nvte_create_tensors(scaling_mode: NVTEScalingMode, tensors: *mut NVTETensor, N: usize);
    /// Destroys a tensor. Null is ignored. The buffers belong to the caller and stay.
    pub fn nvte_destroy_tensor(tensor: NVTETensor);
    /// Destroys `N` tensors in order; nulls are ignored. It stops at the first wrong handle.
    pub fn nvte_destroy_tensors(tensors: *mut NVTETensor, N: usize);
    /// Returns the address of the row-wise data, or null for a null handle.
    pub fn nvte_tensor_data(tensor: NVTETensor) -> *mut c_void;
    /// Returns the address of the column-wise data, or null for a null handle.
    pub fn nvte_tensor_columnwise_data(tensor: NVTETensor) -> *mut c_void;
    /// Makes a shape of `ndim` dimensions (at most 15), of zeros if `data` is null.
    pub fn nvte_make_shape(data: *const usize, ndim: usize) -> NVTEShape;
    /// Returns the logical shape: that of the row-wise data, otherwise the one that the column-wise data
    /// stand for.
    pub fn nvte_tensor_shape(tensor: NVTETensor) -> NVTEShape;
    /// Returns the shape of the column-wise data as stored (transposed in most scaling modes).
    pub fn nvte_tensor_columnwise_shape(tensor: NVTETensor) -> NVTEShape;
    /// Returns the number of dimensions of the logical shape.
    pub fn nvte_tensor_ndims(tensor: NVTETensor) -> usize;
    /// Returns dimension `dim` of the logical shape.
    pub fn nvte_tensor_size(tensor: NVTETensor, dim: usize) -> usize;
    /// Returns the bytes of the data of the logical shape, or 0 for a null handle.
    pub fn nvte_tensor_size_bytes(tensor: NVTETensor) -> usize;
    /// Returns the number of elements of the logical shape.
    pub fn nvte_tensor_numel(tensor: NVTETensor) -> usize;
    /// Returns the bytes of one element (4 for a null handle). Errors: Float4E2M1, which has half a byte.
    pub fn nvte_tensor_element_size(tensor: NVTETensor) -> usize;
    /// Returns the bits of one element (32 for a null handle).
    pub fn nvte_tensor_element_size_bits(tensor: NVTETensor) -> usize;
    /// Returns the element type of the data (Float32 for a null handle).
    pub fn nvte_tensor_type(tensor: NVTETensor) -> NVTEDType;
    /// Returns the address of `amax`, or null for a null handle. Errors: `amax` is not Float32.
    pub fn nvte_tensor_amax(tensor: NVTETensor) -> *mut f32;
    /// Returns the address of `scale`, or null for a null handle. Errors: `scale` is not Float32.
    pub fn nvte_tensor_scale(tensor: NVTETensor) -> *mut f32;
    /// Returns the address of the row-wise `scale_inv`, whatever its type, or null for a null handle.
    pub fn nvte_tensor_scale_inv(tensor: NVTETensor) -> *mut f32;
    /// Returns the shape of the row-wise `scale_inv`, or `(0)` for a null handle.
    pub fn nvte_tensor_scale_inv_shape(tensor: NVTETensor) -> NVTEShape;
    /// Sets the row-wise data and `amax` to zero bytes, on the stream. A null handle is ignored.
    pub fn nvte_zero_tensor(tensor: NVTETensor, stream: cudaStream_t);
    /// Sets a buffer of the tensor that `tensor` points to. Deprecated: `nvte_set_tensor_param_v2`.
    pub fn nvte_set_tensor_param(tensor: *mut NVTETensor, param_name: NVTETensorParam, param: *const NVTEBasicTensor);
    /// Returns a buffer of a tensor; an unset one for a null handle. Deprecated:
    /// `nvte_get_tensor_param_v2`.
    pub fn nvte_get_tensor_param(tensor: NVTETensor, param_name: NVTETensorParam) -> NVTEBasicTensor;
    /// Sets a parameter of a tensor from `size_in_bytes` bytes at `buf`: an `NVTEBasicTensor`, a `uint8_t`
    /// flag or an `int`, as the parameter says.
    ///
    /// Errors: an unknown parameter; too few bytes; an unknown dtype; more than 15 dimensions; a product of
    /// dimensions past the address space.
    pub fn nvte_set_tensor_param_v2(tensor: NVTETensor, param: NVTETensorParam, buf: *const c_void, size_in_bytes: usize);
    /// Copies a parameter of a tensor to `buf`, and its size to `size_written` (null: nowhere). With a null
    /// `buf` only the size is written. A null handle gives the values of an empty tensor. A call that fails
    /// writes nothing.
    pub fn nvte_get_tensor_param_v2(tensor: NVTETensor, param: NVTETensorParam, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Returns the scaling mode of a tensor; delayed tensor scaling for a null handle.
    pub fn nvte_tensor_scaling_mode(tensor: NVTETensor) -> NVTEScalingMode;
    /// Creates the 10 tensors of a pack, in delayed tensor scaling. `size` is left alone. Attention expects
    /// it to be 0 at first, so begin with `NVTETensorPack pack = {0}`.
    pub fn nvte_tensor_pack_create(pack: *mut NVTETensorPack);
    /// Destroys the 10 tensors of a pack, whatever its `size`.
    pub fn nvte_tensor_pack_destroy(pack: *mut NVTETensorPack);
    /// Creates a quantization config with defaults. Destroy it with `nvte_destroy_quantization_config`.
    pub fn nvte_create_quantization_config() -> NVTEQuantizationConfig;
    /// Copies an attribute of a config to `buf`, and its size to `size_written` (null: nowhere). With a
    /// null `buf` only the size is written, and then `config` may be null. A call that fails writes
    /// nothing.
    pub fn nvte_get_quantization_config_attribute(config: NVTEQuantizationConfig, attr: NVTEQuantizationConfigAttribute, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Sets an attribute of a config from `size_in_bytes` bytes at `buf`. Tensors that are stored this way
    /// must live until the operators that use the config have been called.
    pub fn nvte_set_quantization_config_attribute(config: NVTEQuantizationConfig, attr: NVTEQuantizationConfigAttribute, buf: *const c_void, size_in_bytes: usize);
    /// Destroys a quantization config. Null is ignored.
    pub fn nvte_destroy_quantization_config(config: NVTEQuantizationConfig);
    /// Returns 1 if FP8 products take operands in any layout on the current device, or 0 if each operand
    /// must be contiguous along the contracted dimension (Hopper and the CPU backend).
    pub fn nvte_is_non_tn_fp8_gemm_supported() -> i32;
    /// Sets `size_in_bytes` bytes to the low 8 bits of `value`, on the stream.
    pub fn nvte_memset(ptr: *mut c_void, value: i32, size_in_bytes: usize, stream: cudaStream_t);
    /// Computes the offsets of parts from their sizes: `output[0] = 0`,
    /// `output[i + 1] = stride * (split_sizes[0] + ... + split_sizes[i])`.
    ///
    /// Both are arrays on the device, with `num_splits` and `num_splits + 1` entries. Arithmetic wraps in
    /// 64 bits.
    ///
    /// Errors: null arrays; no splits; a `stride` that is not positive.
    pub fn nvte_splits_to_offsets(split_sizes: *const i64, output: *mut i64, num_splits: usize, stride: i64, stream: cudaStream_t);
    /// Computes the offsets of matrices from their dimensions: `output[0] = 0`,
    /// `output[i + 1] = first_dims[0] * last_dims[0] + ... + first_dims[i] * last_dims[i]`.
    ///
    /// Shapes: `[n]`, `[n]`, `[n + 1]`, n at least 1. Dtypes: Int32 or Int64 each; Int32 outputs wrap.
    pub fn nvte_splits_to_offsets_2d(first_dims: NVTETensor, last_dims: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes several arrays of offsets from the sizes of parts:
    /// `outputs[j][i] = strides[j] * (split_sizes[0] + ... + split_sizes[i])`, preceded by a 0 where
    /// `include_leading_zero[j]` is not 0. `strides` and `include_leading_zero` are host arrays.
    ///
    /// Shapes: `[n]` to `[n]` or `[n + 1]`. Dtypes: Int32 or Int64 each; Int32 outputs wrap.
    pub fn nvte_splits_to_offsets_multi(split_sizes: NVTETensor, outputs: *mut NVTETensor, strides: *const i64, include_leading_zero: *const i32, num_outputs: usize, stream: cudaStream_t);
    /// Creates a grouped tensor of `num_tensors` members. Destroy it with `nvte_destroy_grouped_tensor`.
    ///
    /// Errors: no members; a `logical_shape` that has not exactly 2 dimensions.
    pub fn nvte_create_grouped_tensor(scaling_mode: NVTEScalingMode, num_tensors: usize, logical_shape: NVTEShape) -> NVTEGroupedTensor;
    /// Destroys a grouped tensor. Null is ignored.
    pub fn nvte_destroy_grouped_tensor(tensor: NVTEGroupedTensor);
    /// Sets a parameter of a grouped tensor; dimensions and offsets must be Int64.
    pub fn nvte_set_grouped_tensor_param(tensor: NVTEGroupedTensor, param: NVTEGroupedTensorParam, buf: *const c_void, size_in_bytes: usize);
    /// Copies a parameter of a grouped tensor, as `nvte_get_tensor_param_v2` does.
    pub fn nvte_get_grouped_tensor_param(tensor: NVTEGroupedTensor, param: NVTEGroupedTensorParam, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Returns the number of members; 0 for a null handle.
    pub fn nvte_grouped_tensor_num_tensors(tensor: NVTEGroupedTensor) -> usize;
    /// Returns the element type of the data; Float32 for a null handle.
    pub fn nvte_grouped_tensor_type(tensor: NVTEGroupedTensor) -> NVTEDType;
    /// Returns the scaling mode; delayed tensor scaling for a null handle.
    pub fn nvte_grouped_tensor_scaling_mode(tensor: NVTEGroupedTensor) -> NVTEScalingMode;
    /// Returns the logical shape; `(0)` for a null handle.
    pub fn nvte_get_grouped_tensor_logical_shape(tensor: NVTEGroupedTensor) -> NVTEShape;
    /// Copies `num_bytes` bytes from the host to the device. The bytes travel as kernel parameters, so the
    /// host buffer may be pageable and may be reused on return, and a captured graph replays the values.
    ///
    /// Errors: null pointers; a device address that is not aligned to 4 bytes. With no bytes nothing
    /// happens.
    pub fn nvte_copy_host_to_device_via_kernel(host_ptr: *const c_void, device_ptr: *mut c_void, num_bytes: usize, stream: cudaStream_t);
    /// Copies `count` 64-bit values from the host to the row-wise data of a tensor. Deprecated:
    /// `nvte_copy_host_to_device_via_kernel`.
    ///
    /// Errors: null pointers; a tensor that is too small; a negative count.
    pub fn nvte_convert_pointers_to_tensor(host_ptrs: *const u64, output: NVTETensor, count: i64, stream: cudaStream_t);
    /// Returns the number of streams, and of events, in the pool of a device: 4.
    pub fn nvte_get_num_compute_streams() -> i32;
    /// Returns stream `idx` of the current device's pool. It is non-blocking, has high priority and is
    /// never destroyed. On the CPU backend it stands for nothing.
    pub fn nvte_get_compute_stream(idx: i32) -> cudaStream_t;
    /// Returns event `idx` of the current device's pool. It has no timing and is never destroyed. On the
    /// CPU backend it stands for nothing.
    pub fn nvte_get_compute_stream_event(idx: i32) -> cudaEvent_t;
    /// Casts a tensor in the scaling mode of the output, rounding to nearest even and saturating.
    ///
    /// What it computes, with `fp8_max` the largest finite value of the output's dtype (448 for Float8E4M3,
    /// 57344 for Float8E5M2) and `max|x|` the largest magnitude, for which NaN do not count:
    /// - Per tensor: `y = cast(x * scale)` to FP8, `y = cast(x)` to other dtypes.
    /// - FP8 blocks (1D: of 128 elements; 2D: of 128 x 128): `y = cast(x * s)` with `s = fp8_max / max|x|`
    ///   of the block, 1 if `max|x|` is 0 or Inf.
    /// - MXFP8 (blocks of 32 elements): `y = cast(x / 2^e)`, with `2^e` the least power of two that is not
    ///   below `max|x| / fp8_max` of the block.
    /// - NVFP4 (blocks of 16 elements): `y = e2m1(x / (scale / S))`, where the block's scale is
    ///   `e4m3(max|x| * S / 6)` and `S = 2688 / amax`. The amax is an input: `amax` for row-wise data,
    ///   `columnwise_amax` for column-wise data; either serves both directions if the other is absent, and
    ///   without both S is 1.
    ///
    /// Shapes: the input `[..., n]` counts as a matrix of R rows and C columns. Row-wise output has the
    /// input's shape, in blocks along the rows. Column-wise output is the transpose `[n, ...]` (in MXFP8 it
    /// has the input's shape), in blocks along the columns; beside row-wise output its data may be declared
    /// in any shape of as many elements. The output has either of them or both.
    ///
    /// Dtypes: Float32, Float16 or BFloat16 to Float8E4M3 or Float8E5M2; per tensor also to Float32,
    /// Float16 and BFloat16; in NVFP4 to Float4E2M1, of which a packed line has an even number of elements.
    ///
    /// Scales, where quotients are rounded up:
    /// - Per tensor, to FP8: `scale` is read (absent: 1); `scale_inv` and `columnwise_scale_inv` become
    ///   `1 / scale`.
    /// - FP8 blocks: `1 / s` in Float32. 1D: `scale_inv` `[C/128, R]`, `columnwise_scale_inv` `[R/128, C]`.
    ///   2D: `[R/128, C/128]` and `[C/128, R/128]`. The second dimension may be larger; what lies beyond is
    ///   not written.
    /// - MXFP8: the codes of `2^e` in Float8E8M0 or Byte; `scale_inv` `[R, C/32]`, `columnwise_scale_inv`
    ///   `[R/32, C]`, rounded up to multiples of 128 along the undivided dimension and of 4 along the
    ///   other. The padding becomes 0.
    /// - NVFP4: the scales in Float8E4M3 or Byte; `scale_inv` `[R, C/16]`, `columnwise_scale_inv`
    ///   `[C, R/16]`, rounded up to multiples of 128 and 4. The padding is not written.
    /// - With `with_gemm_swizzled_scales`, the scales of MXFP8 and NVFP4 are in the 128 x 4 tiles of
    ///   block-scaled products (`nvte_swizzle_scaling_factors`). Scales of other modes are never in tiles:
    ///   here and in products the flag then has no influence.
    ///
    /// Amax: per tensor and in MXFP8, the output's `amax`, if it has one, is raised to the largest `|x|`.
    /// In NVFP4 an output with `row_scaled_nvfp4` has an amax for each row (and column), which the call
    /// sets.
    ///
    /// Overlaps: no output may overlap anything, except that the row-wise one of per-tensor scaling may be
    /// the input if their elements have the same size.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes, shapes or scaling modes; FP8 data without scales; outputs that overlap; null
    /// or misaligned pointers.
    ///
    /// Source: Micikevicius et al., FP8 Formats for Deep Learning (2022); OCP Microscaling Formats (2023).
    pub fn nvte_quantize(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts as `nvte_quantize` does, unless the Float32 `noop` (null: none) is exactly 1 on the device:
    /// then it writes nothing.
    pub fn nvte_quantize_noop(input: NVTETensor, output: NVTETensor, noop: NVTETensor, stream: cudaStream_t);
    /// Casts as `nvte_quantize` does, with the options of a config (null: defaults).
    ///
    /// Options of the config that count:
    /// - All modes: the noop tensor, as in `nvte_quantize_noop`.
    /// - FP8 blocks: `force_pow2_scales` rounds s down to a power of two; `amax_epsilon` is the least
    ///   `max|x|`.
    /// - MXFP8: `mxfp8_2d_quantization` takes blocks of 32 x 32 in both directions and repeats their codes.
    /// - NVFP4: `nvfp4_2d_quantization` takes blocks of 16 x 16 in both directions. `stochastic_rounding`
    ///   rounds by Philox 4x32-10 with the seed and offset of `rng_state` (Int64 [2]; absent: zeros).
    ///   `use_fast_math` rounds factors to BFloat16, of BFloat16 inputs whose rows and columns are
    ///   multiples of 32. With `nvfp4_4over6_mode` each block takes 4 or 6 as the value of its largest
    ///   element, whichever has the least absolute error (mode 1) or the least squares (mode 2).
    ///
    /// Errors: also stochastic rounding to other types, or with 4over6.
    pub fn nvte_quantize_v2(input: NVTETensor, output: NVTETensor, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts the rows of a BFloat16 matrix to NVFP4, row-wise, to one tensor after the other.
    ///
    /// What it computes: `nvte_quantize_v2` for each tensor with its own `amax` (absent: a global scale of
    /// 1).
    ///
    /// Shapes: input `[r, n]`, n a multiple of 16. Output i has the next `split_sections[i]` rows; a tensor
    /// without rows is skipped, and may be null. Data of the outputs follow each other without gaps.
    /// `scale_inv` is `[rows or more, n/16 or more]`; with `with_gemm_swizzled_scales` it is in tiles of
    /// 128 x 4, so its first dimension is the rows rounded up to a multiple of 128 or more, its second a
    /// multiple of 4.
    ///
    /// Config (null: defaults): the noop tensor, and stochastic rounding with its RNG state.
    ///
    /// Errors: other dtypes, shapes or scaling modes; splits that do not add up to r; more than 64 tensors;
    /// column-wise data; 2D blocks or 4over6.
    pub fn nvte_group_nvfp4_quantize_with_amax(input: NVTETensor, outputs: *mut NVTETensor, split_sections: *const usize, num_tensors: usize, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts `inputs[i]` to `outputs[i]` as `nvte_quantize_v2` does, for each i below `num_tensors`, with
    /// one config for all.
    ///
    /// Errors: those of `nvte_quantize_v2`, with `tensor i` in the message. If any tensor is wrong, nothing
    /// is written at all.
    pub fn nvte_multi_tensor_quantize(inputs: *const NVTETensor, outputs: *mut NVTETensor, quant_config: NVTEQuantizationConfig, num_tensors: usize, stream: cudaStream_t);
    /// Casts as `nvte_quantize` does, and sums the input over its rows in the same pass.
    ///
    /// What it computes: also `dbias[c] = sum over r of input[r][c]`, summed in Float32 in a fixed order.
    ///
    /// Shapes: input and output as for `nvte_quantize`, dbias `[C]`.
    ///
    /// Dtypes: dbias that of the input.
    ///
    /// Workspace: while its data pointer is null, the call only sets its shape and dtype (Float32) and
    /// returns. Otherwise it must have the bytes for these, aligned to 4; their contents do not matter.
    ///
    /// Notes: of empty tensors dbias becomes 0, and nothing else is written.
    ///
    /// Errors: as `nvte_quantize`; dbias of another shape or dtype; a workspace that is too small.
    pub fn nvte_quantize_dbias(input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts every member of a group as `nvte_quantize_v2` casts a tensor.
    ///
    /// Shapes: the output says where members are (see `nvte_create_grouped_tensor`): all of one shape, or
    /// differing in the first dimension, the last, or both. Their dimensions are read on the device and may
    /// be anything, 0 too. Elements that belong to no member are neither read nor written. The input has as
    /// many members, as many columns, and at least as many rows.
    ///
    /// Scales: those of the members follow each other, each matrix as `nvte_quantize` describes it (of FP8
    /// blocks with the second dimension rounded up to a multiple of 4). Per tensor: `scale` has one Float32
    /// per member and is read; neither `scale_inv` nor `amax` is written.
    ///
    /// Config: as for `nvte_quantize_v2`.
    ///
    /// Errors: as `nvte_quantize_v2`; another number of members; buffers that are too small.
    pub fn nvte_group_quantize(input: NVTEGroupedTensor, output: NVTEGroupedTensor, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts every member of a group as `nvte_group_quantize` does, and sums each over its rows as
    /// `nvte_quantize_dbias` does.
    ///
    /// Shapes: dbias `[num_tensors, C]`, with zeros for a member without rows. All members have C columns.
    ///
    /// Config: as for `nvte_quantize_v2`, except that the noop tensor is ignored.
    pub fn nvte_group_quantize_dbias(input: NVTEGroupedTensor, output: NVTEGroupedTensor, dbias: NVTEGroupedTensor, workspace: NVTETensor, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts a tensor back from FP8 or NVFP4: `y = cast(x * scale_inv)`.
    ///
    /// Shapes: the output has the logical shape of the input. An input that has only column-wise data is
    /// transposed on the way (in MXFP8, where it is not stored transposed, it is not).
    ///
    /// Dtypes: Float8E4M3, Float8E5M2 or Float4E2M1 to Float32, Float16 or BFloat16.
    ///
    /// Scales: `scale_inv` is read, or `columnwise_scale_inv` for column-wise data, stored as
    /// `nvte_quantize` does in the input's scaling mode. NVFP4 has row-wise data only, C a multiple of 16,
    /// and `amax` (one float, or with `row_scaled_nvfp4` one for each row):
    /// `y = cast(x * (scale * amax * (1 / 2688)))`.
    ///
    /// Errors: other dtypes, shapes or scaling modes; null or misaligned pointers.
    pub fn nvte_dequantize(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts every member of a grouped tensor back, as `nvte_dequantize` does; an input that has both
    /// directions is read row-wise.
    ///
    /// Shapes: those of `nvte_dequantize`, member by member, with any number of rows and columns. Elements
    /// that belong to no member are not written.
    ///
    /// Scales: those of the members follow each other, each stored as that of a lone tensor, in FP8 blocks
    /// with second dimensions rounded up to multiples of 4; per tensor one float for each member.
    ///
    /// Errors: as `nvte_dequantize`; tensors of different logical shapes or numbers of members.
    pub fn nvte_group_dequantize(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Casts row-wise MXFP8 data to column-wise MXFP8 data, group by group.
    ///
    /// What it computes: `nvte_dequantize` and then `nvte_quantize` of each group of rows, without rounding
    /// in between; with the config's `use_fast_math` (null: no) rounded to BFloat16 in between.
    ///
    /// Groups: group g has the rows from element `tensor_offsets[g]` to `tensor_offsets[g + 1]`, which are
    /// read on the device and are multiples of 128 rows. Rows from the last offset on are not touched.
    ///
    /// Shapes: input `[m, n]`, multiples of 128, its `scale_inv` `[m, n/32 or more]`; columnwise_data of
    /// output `[m, n]`; dequantized (null: none) m n elements.
    ///
    /// Dtypes: Float8E4M3 or Float8E5M2 to Float8E4M3; offsets Int64; dequantized BFloat16.
    ///
    /// Scales: `scale_inv` of output takes the codes of input, `columnwise_scale_inv` the new ones, m n /
    /// 32 each. Both are in the 128 x 4 tiles of block-scaled products, row-wise ones as of one matrix,
    /// column-wise ones group by group. The output gets `with_gemm_swizzled_scales`.
    ///
    /// Errors: other dtypes, shapes or scaling modes; an input with swizzled scales; null pointers; data
    /// that are not aligned to 16 bytes.
    pub fn nvte_group_requantize(input: NVTETensor, output: NVTETensor, tensor_offsets: NVTETensor, dequantized: NVTETensor, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
    /// `v = f'(act_input) * input` instead of the input, with the f of `nvte_gelu`.
    ///
    /// act_input has the shape and dtype of the input. v is Float32; for a cast in blocks it is rounded
    /// to the input's dtype, but dbias is the sum of v before that.
    pub fn nvte_quantize_dbias_dgelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradients of an activation for the members of a group, and sums each over its rows:
    /// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
    /// config, with the f of `nvte_gelu`.
    ///
    /// v is that of `nvte_quantize_dbias_dgelu`.
    pub fn nvte_group_quantize_dbias_dgelu(input: NVTEGroupedTensor, act_input: NVTEGroupedTensor, output: NVTEGroupedTensor, dbias: NVTEGroupedTensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
    /// `v = f'(act_input) * input` instead of the input, with the f of `nvte_silu`.
    ///
    /// Otherwise as `nvte_quantize_dbias_dgelu`.
    pub fn nvte_quantize_dbias_dsilu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradients of an activation for the members of a group, and sums each over its rows:
    /// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
    /// config, with the f of `nvte_silu`.
    ///
    /// Otherwise as `nvte_group_quantize_dbias_dgelu`.
    pub fn nvte_group_quantize_dbias_dsilu(input: NVTEGroupedTensor, act_input: NVTEGroupedTensor, output: NVTEGroupedTensor, dbias: NVTEGroupedTensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
    /// `v = f'(act_input) * input` instead of the input, with the f of `nvte_relu`.
    ///
    /// Otherwise as `nvte_quantize_dbias_dgelu`.
    pub fn nvte_quantize_dbias_drelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradients of an activation for the members of a group, and sums each over its rows:
    /// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
    /// config, with the f of `nvte_relu`.
    ///
    /// Otherwise as `nvte_group_quantize_dbias_dgelu`.
    pub fn nvte_group_quantize_dbias_drelu(input: NVTEGroupedTensor, act_input: NVTEGroupedTensor, output: NVTEGroupedTensor, dbias: NVTEGroupedTensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
    /// `v = f'(act_input) * input` instead of the input, with the f of `nvte_qgelu`.
    ///
    /// Otherwise as `nvte_quantize_dbias_dgelu`.
    pub fn nvte_quantize_dbias_dqgelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradients of an activation for the members of a group, and sums each over its rows:
    /// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
    /// config, with the f of `nvte_qgelu`.
    ///
    /// Otherwise as `nvte_group_quantize_dbias_dgelu`.
    pub fn nvte_group_quantize_dbias_dqgelu(input: NVTEGroupedTensor, act_input: NVTEGroupedTensor, output: NVTEGroupedTensor, dbias: NVTEGroupedTensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradient of an activation, and sums it over its rows: `nvte_quantize_dbias` of
    /// `v = f'(act_input) * input` instead of the input, with the f of `nvte_srelu`.
    ///
    /// Otherwise as `nvte_quantize_dbias_dgelu`.
    pub fn nvte_quantize_dbias_dsrelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts the gradients of an activation for the members of a group, and sums each over its rows:
    /// `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the input, without a
    /// config, with the f of `nvte_srelu`.
    ///
    /// Otherwise as `nvte_group_quantize_dbias_dgelu`.
    pub fn nvte_group_quantize_dbias_dsrelu(input: NVTEGroupedTensor, act_input: NVTEGroupedTensor, output: NVTEGroupedTensor, dbias: NVTEGroupedTensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Transposes as `nvte_transpose` does, unless the Float32 `noop` (null: none) is exactly 1 on the
    /// device: then it writes nothing.
    pub fn nvte_transpose_with_noop(input: NVTETensor, noop: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts as `nvte_cast_transpose` does, unless the Float32 `noop` (null: none) is exactly 1 on the
    /// device: then it writes nothing.
    pub fn nvte_cast_transpose_with_noop(input: NVTETensor, noop: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation: `output = f(input)`,
    /// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
    ///
    /// What it computes: f in float32, then a cast in the scaling mode of the output as `nvte_quantize`
    /// casts, with the same rules for shapes, scales and `amax`. For FP8 blocks and MXFP8 `f` is
    /// rounded to the input's dtype first. NaN counts as 0 in relu and srelu.
    ///
    /// Dtypes: Float32, Float16 or BFloat16 to these (per tensor) and to Float8E4M3 or Float8E5M2.
    ///
    /// Overlaps: the row-wise output of per-tensor scaling may be the input if their elements have the
    /// same size.
    ///
    /// Errors: as `nvte_quantize`.
    pub fn nvte_gelu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of an activation: `output = f'(input) * grad`,
    /// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
    ///
    /// It is computed in float32 and cast as `nvte_gelu` casts. The derivatives of relu and srelu are 0
    /// at 0.
    ///
    /// Shapes, dtypes: grad as input.
    ///
    /// Errors: as `nvte_gelu`; grad and input that differ in shape or dtype.
    pub fn nvte_dgelu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation to the members of a grouped tensor: `output = f(input)`,
    /// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
    ///
    /// Each member is treated as by `nvte_gelu`, with the layouts and rules of `nvte_group_quantize`.
    ///
    /// Errors: as `nvte_group_quantize`.
    pub fn nvte_group_gelu(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Computes the gradient of an activation for the members of a grouped tensor:
    /// `output = f'(input) * grad`, `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`.
    ///
    /// Each member is treated as by `nvte_dgelu`. All three are grouped tensors, the output too,
    /// although its type is that of a tensor.
    ///
    /// Errors: as `nvte_group_quantize`; grad and input of different dtypes.
    pub fn nvte_group_dgelu(grad: NVTEGroupedTensor, input: NVTEGroupedTensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`,
    /// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
    ///
    /// Shapes: input `[..., 2 n]`, each row the halves (a | g); output `[..., n]`.
    ///
    /// It is computed in float32 and cast as `nvte_gelu` casts. The output may not be the input.
    ///
    /// Errors: as `nvte_gelu`; an odd last dimension.
    pub fn nvte_geglu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
    /// `f(x) = x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2`, `G(x) = x`.
    ///
    /// Shapes: grad `[..., n]`; input `[..., 2 n]`, each row the halves (a | g); output as input.
    ///
    /// It is computed in float32 and cast as `nvte_gelu` casts. The output may not be an input. Clamped
    /// values have the derivative 0.
    ///
    /// Errors: as `nvte_gelu`; an odd last dimension; grad of another dtype than input.
    pub fn nvte_dgeglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation: `output = f(input)`, `f(x) = x / (1 + exp(-x))`.
    ///
    /// Otherwise as `nvte_gelu`.
    pub fn nvte_silu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
    ///
    /// Otherwise as `nvte_dgelu`.
    pub fn nvte_dsilu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation to the members of a grouped tensor: `output = f(input)`,
    /// `f(x) = x / (1 + exp(-x))`.
    ///
    /// Otherwise as `nvte_group_gelu`.
    pub fn nvte_group_silu(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Computes the gradient of an activation for the members of a grouped tensor:
    /// `output = f'(input) * grad`, `f(x) = x / (1 + exp(-x))`.
    ///
    /// Otherwise as `nvte_group_dgelu`.
    pub fn nvte_group_dsilu(grad: NVTEGroupedTensor, input: NVTEGroupedTensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_swiglu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_dswiglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation and multiplies each row by its scale:
    /// `output = f(a) * G(g) * act_scales`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
    ///
    /// Shapes: output `[..., n]` with R rows; input `[..., 2 n]`, each row the halves (a | g), or with
    /// `glu_interleave_size = i > 0` blocks of i elements of a and as many of g in turn; act_scales R
    /// elements.
    ///
    /// Dtypes: each tensor Float32, Float16 or BFloat16. It is computed in float32 and rounded once.
    /// Scaling modes and scales are ignored.
    ///
    /// Errors: other dtypes; shapes that do not fit; a `glu_interleave_size` that is negative, no
    /// multiple of 32 or no divisor of n; null or misaligned pointers.
    pub fn nvte_scaled_swiglu(input: NVTETensor, act_scales: NVTETensor, output: NVTETensor, glu_interleave_size: i64, stream: cudaStream_t);
    /// Computes the gradients of a gated activation with a scale for each row:
    /// `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
    /// `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row, `f(x) = x / (1 + exp(-x))`,
    /// `G(x) = x`.
    ///
    /// Shapes, dtypes, errors: as `nvte_scaled_swiglu`, with grad `[..., n]`, grad_input as input and
    /// interleaved likewise, and grad_act_scales R elements or null for none. Sums are in float32, in a
    /// fixed order.
    pub fn nvte_scaled_dswiglu(grad: NVTETensor, input: NVTETensor, act_scales: NVTETensor, grad_input: NVTETensor, grad_act_scales: NVTETensor, glu_interleave_size: i64, stream: cudaStream_t);
    /// Applies a gated activation to the members of a grouped tensor, and multiplies each row by its
    /// factor: `output = f(a) * G(g) * prob`, `f(x) = x / (1 + exp(-x))`, `G(x) = x`.
    ///
    /// Shapes: grouped input `[N, 2 n]`, each row the halves (a | g); grouped output `[N, n]` with as
    /// many members of one last dimension; prob N elements or more of the input's dtype, the i-th for
    /// row i of the whole.
    ///
    /// The result is cast as `nvte_group_gelu` casts.
    ///
    /// Errors: as `nvte_group_gelu`; members that differ in their last dimension.
    pub fn nvte_group_scaled_swiglu(input: NVTEGroupedTensor, prob: NVTETensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Applies an activation: `output = f(input)`, `f(x) = max(x, 0)`.
    ///
    /// Otherwise as `nvte_gelu`.
    pub fn nvte_relu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = max(x, 0)`.
    ///
    /// Otherwise as `nvte_dgelu`.
    pub fn nvte_drelu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation to the members of a grouped tensor: `output = f(input)`,
    /// `f(x) = max(x, 0)`.
    ///
    /// Otherwise as `nvte_group_gelu`.
    pub fn nvte_group_relu(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Computes the gradient of an activation for the members of a grouped tensor:
    /// `output = f'(input) * grad`, `f(x) = max(x, 0)`.
    ///
    /// Otherwise as `nvte_group_dgelu`.
    pub fn nvte_group_drelu(grad: NVTEGroupedTensor, input: NVTEGroupedTensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = max(x, 0)`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_reglu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_dreglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation: `output = f(input)`, `f(x) = x / (1 + exp(-1.702 x))`.
    ///
    /// Otherwise as `nvte_gelu`.
    pub fn nvte_qgelu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of an activation: `output = f'(input) * grad`,
    /// `f(x) = x / (1 + exp(-1.702 x))`.
    ///
    /// Otherwise as `nvte_dgelu`.
    pub fn nvte_dqgelu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation to the members of a grouped tensor: `output = f(input)`,
    /// `f(x) = x / (1 + exp(-1.702 x))`.
    ///
    /// Otherwise as `nvte_group_gelu`.
    pub fn nvte_group_qgelu(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Computes the gradient of an activation for the members of a grouped tensor:
    /// `output = f'(input) * grad`, `f(x) = x / (1 + exp(-1.702 x))`.
    ///
    /// Otherwise as `nvte_group_dgelu`.
    pub fn nvte_group_dqgelu(grad: NVTEGroupedTensor, input: NVTEGroupedTensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = x / (1 + exp(-1.702 x))`,
    /// `G(x) = x`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_qgeglu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = x / (1 + exp(-1.702 x))`,
    /// `G(x) = x`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_dqgeglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation: `output = f(input)`, `f(x) = max(x, 0)^2`.
    ///
    /// Otherwise as `nvte_gelu`.
    pub fn nvte_srelu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of an activation: `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
    ///
    /// Otherwise as `nvte_dgelu`.
    pub fn nvte_dsrelu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation to the members of a grouped tensor: `output = f(input)`,
    /// `f(x) = max(x, 0)^2`.
    ///
    /// Otherwise as `nvte_group_gelu`.
    pub fn nvte_group_srelu(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Computes the gradient of an activation for the members of a grouped tensor:
    /// `output = f'(input) * grad`, `f(x) = max(x, 0)^2`.
    ///
    /// Otherwise as `nvte_group_dgelu`.
    pub fn nvte_group_dsrelu(grad: NVTEGroupedTensor, input: NVTEGroupedTensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = max(x, 0)^2`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_sreglu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = max(x, 0)^2`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_dsreglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies an activation and multiplies each row by its scale: `output = f(input) * act_scales`,
    /// `f(x) = max(x, 0)^2`.
    ///
    /// Shapes: the output as the input; act_scales one for each row.
    ///
    /// Dtypes, errors: as `nvte_scaled_swiglu`.
    pub fn nvte_scaled_srelu(input: NVTETensor, act_scales: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradients of an activation with a scale for each row:
    /// `grad_input = grad * act_scales * f'(input)`, and `grad_act_scales` = the sum of
    /// `grad * f(input)` over the row, `f(x) = max(x, 0)^2`.
    ///
    /// Shapes: grad and grad_input as the input.
    ///
    /// Dtypes, errors: as `nvte_scaled_dswiglu`.
    pub fn nvte_scaled_dsrelu(grad: NVTETensor, input: NVTETensor, act_scales: NVTETensor, grad_input: NVTETensor, grad_act_scales: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_glu(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`, `f(x) = 1 / (1 + exp(-x))`, `G(x) = x`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_dglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`,
    /// `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_situglu(input: NVTETensor, output: NVTETensor, beta1: f32, beta2: f32, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
    /// `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_dsituglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, beta1: f32, beta2: f32, stream: cudaStream_t);
    /// Applies a gated activation and multiplies each row by its scale:
    /// `output = f(a) * G(g) * act_scales`, `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`,
    /// `G(x) = beta2 tanh(x / beta2)`.
    ///
    /// Otherwise as `nvte_scaled_swiglu`.
    pub fn nvte_scaled_situglu(input: NVTETensor, act_scales: NVTETensor, output: NVTETensor, beta1: f32, beta2: f32, glu_interleave_size: i64, stream: cudaStream_t);
    /// Computes the gradients of a gated activation with a scale for each row:
    /// `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
    /// `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row,
    /// `f(x) = beta1 tanh(x / beta1) / (1 + exp(-x))`, `G(x) = beta2 tanh(x / beta2)`.
    ///
    /// Otherwise as `nvte_scaled_dswiglu`.
    pub fn nvte_scaled_dsituglu(grad: NVTETensor, input: NVTETensor, act_scales: NVTETensor, grad_input: NVTETensor, grad_act_scales: NVTETensor, beta1: f32, beta2: f32, glu_interleave_size: i64, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`,
    /// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + 1`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_clamped_swiglu(input: NVTETensor, output: NVTETensor, limit: f32, alpha: f32, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
    /// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + 1`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_clamped_dswiglu(grad: NVTETensor, input: NVTETensor, output: NVTETensor, limit: f32, alpha: f32, stream: cudaStream_t);
    /// Applies a gated activation: `output = f(a) * G(g)`,
    /// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
    ///
    /// Otherwise as `nvte_geglu`.
    pub fn nvte_clamped_swiglu_v2(input: NVTETensor, output: NVTETensor, limit: f32, alpha: f32, glu_linear_offset: f32, stream: cudaStream_t);
    /// Computes the gradient of a gated activation:
    /// `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`,
    /// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
    ///
    /// Otherwise as `nvte_dgeglu`.
    pub fn nvte_clamped_dswiglu_v2(grad: NVTETensor, input: NVTETensor, output: NVTETensor, limit: f32, alpha: f32, glu_linear_offset: f32, stream: cudaStream_t);
    /// Applies a gated activation and multiplies each row by its scale:
    /// `output = f(a) * G(g) * act_scales`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
    ///
    /// Otherwise as `nvte_scaled_swiglu`.
    pub fn nvte_scaled_clamped_swiglu(input: NVTETensor, act_scales: NVTETensor, output: NVTETensor, limit: f32, alpha: f32, glu_linear_offset: f32, glu_interleave_size: i64, stream: cudaStream_t);
    /// Computes the gradients of a gated activation with a scale for each row:
    /// `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, and
    /// `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row,
    /// `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
    ///
    /// Otherwise as `nvte_scaled_dswiglu`.
    pub fn nvte_scaled_clamped_dswiglu(grad: NVTETensor, input: NVTETensor, act_scales: NVTETensor, grad_input: NVTETensor, grad_act_scales: NVTETensor, limit: f32, alpha: f32, glu_linear_offset: f32, glu_interleave_size: i64, stream: cudaStream_t);
    /// Applies a gated activation to the members of a grouped tensor, and multiplies each row by its
    /// factor: `output = f(a) * G(g) * prob`, `f(x) = min(x, limit) / (1 + exp(-alpha min(x, limit)))`,
    /// `G(x) = min(max(x, -limit), limit) + glu_linear_offset`.
    ///
    /// Otherwise as `nvte_group_scaled_swiglu`.
    pub fn nvte_group_scaled_clamped_swiglu(input: NVTEGroupedTensor, prob: NVTETensor, output: NVTEGroupedTensor, limit: f32, alpha: f32, glu_linear_offset: f32, stream: cudaStream_t);
    /// Transposes a matrix: `output[j][i] = input[i][j]`, bit by bit.
    ///
    /// Shapes: `[m, n]` to `[n, m]`, row-wise data of both.
    ///
    /// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both.
    ///
    /// Notes: nothing is written to empty matrices.
    ///
    /// Errors: other dtypes or shapes; an output that overlaps the input; null or misaligned pointers.
    pub fn nvte_transpose(input: NVTETensor, transposed_output: NVTETensor, stream: cudaStream_t);
    /// Casts a tensor and its transpose in one pass over the input: `nvte_quantize` to an output that has
    /// both directions.
    ///
    /// Errors: as `nvte_quantize`; a direction missing; a `columnwise_scale_inv` at another address than
    /// `scale_inv`.
    pub fn nvte_cast_transpose(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts `input_list[i]` and its transpose to `output_list[i]` as `nvte_cast_transpose` does, for each
    /// i below `num_tensors`. The two `scale_inv` of an output may be apart.
    ///
    /// Errors: as `nvte_cast_transpose`, with `tensor i` in the message. If any tensor is wrong, nothing is
    /// written at all.
    pub fn nvte_multi_cast_transpose(num_tensors: usize, input_list: *const NVTETensor, output_list: *mut NVTETensor, stream: cudaStream_t);
    /// Casts a tensor and its transpose per tensor, and sums the input over its rows: `nvte_quantize_dbias`
    /// to an output that has both directions.
    ///
    /// Errors: as `nvte_quantize_dbias` and `nvte_cast_transpose`.
    pub fn nvte_cast_transpose_dbias(input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Transposes FP8 data and sums their columns.
    ///
    /// What it computes: `transposed_output[j][i] = input[i][j]`, bit by bit, and
    /// `dbias[j] = cast(sum over i of float(input[i][j]) * s)` with `s = transposed_output.scale_inv`, 1 if
    /// that is absent. Sums are float32, in an order that only the shape decides.
    ///
    /// Workspace: if it has no pointer, the call gives it the shape and the dtype that are needed, and does
    /// nothing else.
    ///
    /// Shapes: `[m, n]` to `[n, m]`, row-wise data of both; dbias `[n]`.
    ///
    /// Dtypes: Float8E4M3 or Float8E5M2 for both; dbias Float32, Float16 or BFloat16.
    ///
    /// Notes: the dbias of an empty matrix is 0.
    ///
    /// Errors: other dtypes or shapes; an input without `scale_inv`; a workspace that is too small; null or
    /// misaligned pointers.
    pub fn nvte_fp8_transpose_dbias(input: NVTETensor, transposed_output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Swaps the first two dimensions of a tensor: `output[j][i][...] = input[i][j][...]`, bit by bit.
    ///
    /// Shapes: `[m, n, ...]` to `[n, m, ...]`, row-wise data of both.
    ///
    /// Dtypes: any, the same for both.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes or shapes; Float4E2M1 whose rows are not whole bytes; an output that overlaps
    /// the input; null or misaligned pointers.
    pub fn nvte_swap_first_dims(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Transposes a matrix of Float4E2M1 elements: element (k, m) of the output is element (m, k) of the
    /// input. The matrix is given as bytes of two elements, the first in the low bits.
    ///
    /// Shapes: `[m, k / 2]` to `[k, m / 2]` bytes, m even. Dtypes: Byte.
    ///
    /// Notes: the output must not be the input. Nothing is written to empty matrices.
    ///
    /// Errors: other dtypes or shapes; null pointers.
    pub fn nvte_nvfp4_data_transpose(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the block scales of the transpose of an NVFP4 matrix that has one scale for each 16 x 16
    /// elements: `output[r][c] = input[16 c][r / 16]` if `r / 16 < K_tiles`, otherwise 0, for all r and
    /// `c < M_tiles`.
    ///
    /// Shapes: input `[R, C]` with `R > 16 (M_tiles - 1)` and `C >= K_tiles`; output `[any, M_tiles]` or
    /// wider, of which further columns are not written. Dtypes: Byte.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes or shapes; null pointers.
    pub fn nvte_nvfp4_scale_transpose(input: NVTETensor, output: NVTETensor, M_tiles: usize, K_tiles: usize, stream: cudaStream_t);
    /// Casts and transposes the gradient of an activation, and sums it over its rows:
    /// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
    /// `nvte_gelu`.
    ///
    /// v is that of `nvte_quantize_dbias_dgelu`.
    pub fn nvte_cast_transpose_dbias_dgelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
    /// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
    /// `nvte_gelu`.
    ///
    /// Shapes: input `[..., n]`, act_input and the output `[..., 2 n]`.
    ///
    /// Dtypes: Float32, Float16, BFloat16, the same for both inputs; output as for `nvte_quantize`.
    ///
    /// Errors: as `nvte_cast_transpose`; inputs that do not fit each other.
    pub fn nvte_dgeglu_cast_transpose(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of an activation, and sums it over its rows:
    /// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
    /// `nvte_silu`.
    ///
    /// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
    pub fn nvte_cast_transpose_dbias_dsilu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
    /// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
    /// `nvte_silu`.
    ///
    /// Otherwise as `nvte_dgeglu_cast_transpose`.
    pub fn nvte_dswiglu_cast_transpose(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of an activation, and sums it over its rows:
    /// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
    /// `nvte_relu`.
    ///
    /// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
    pub fn nvte_cast_transpose_dbias_drelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
    /// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
    /// `nvte_relu`.
    ///
    /// Otherwise as `nvte_dgeglu_cast_transpose`.
    pub fn nvte_dreglu_cast_transpose(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of an activation, and sums it over its rows:
    /// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
    /// `nvte_qgelu`.
    ///
    /// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
    pub fn nvte_cast_transpose_dbias_dqgelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
    /// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
    /// `nvte_qgelu`.
    ///
    /// Otherwise as `nvte_dgeglu_cast_transpose`.
    pub fn nvte_dqgeglu_cast_transpose(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of an activation, and sums it over its rows:
    /// `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input, with the f of
    /// `nvte_srelu`.
    ///
    /// Otherwise as `nvte_cast_transpose_dbias_dgelu`.
    pub fn nvte_cast_transpose_dbias_dsrelu(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, dbias: NVTETensor, workspace: NVTETensor, stream: cudaStream_t);
    /// Casts and transposes the gradient of a gated activation: with act_input = (a | g) in halves,
    /// `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32, with the f of
    /// `nvte_srelu`.
    ///
    /// Otherwise as `nvte_dgeglu_cast_transpose`.
    pub fn nvte_dsreglu_cast_transpose(input: NVTETensor, act_input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the largest magnitude of a tensor: `output.amax = max|input|`, NaN ignored, 0 for an empty
    /// input. It is set, not raised.
    ///
    /// Dtypes: Float32, Float16 or BFloat16; `amax` is one Float32. If `output.amax` has no address,
    /// `columnwise_amax` is written. The output needs no data.
    ///
    /// Errors: other dtypes; no `amax`; null or misaligned pointers.
    pub fn nvte_compute_amax(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Computes the largest magnitude of a tensor as `nvte_compute_amax` does; of the config (null:
    /// defaults) the noop tensor is used.
    pub fn nvte_compute_amax_with_config(input: NVTETensor, output: NVTETensor, config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Computes the scale of per-tensor current scaling:
    /// `output.scale = fp8_max / max(output.amax, epsilon)`.
    ///
    /// The scale is 1 if that amax is 0, Inf or NaN; an infinite quotient becomes the largest float. The
    /// config (required) gives `epsilon`, rounding down to a power of two, and the noop tensor. `scale_inv`
    /// is not written, because the cast does that.
    ///
    /// Errors: data that are not FP8; an `amax` or `scale` that is not one Float32.
    pub fn nvte_compute_scale_from_amax(output: NVTETensor, config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Computes the largest magnitude of each member of a group: `output.amax[t] = max|x|` over member t of
    /// the input, NaN ignored, 0 for an empty member. It is set, not raised.
    ///
    /// Members: those of the output, any number. `first_dims`, `last_dims` and `tensor_offsets` are read on
    /// the device. Gaps between members do not count, and the input may be larger.
    ///
    /// Dtypes: input Float32, Float16 or BFloat16; `amax` Float32, one for each member. If `output.amax`
    /// has no address, `columnwise_amax` is written. The output needs no data.
    ///
    /// Config (null: defaults): the noop tensor.
    ///
    /// Errors: other dtypes; different numbers of members; varying shapes without `tensor_offsets`; an
    /// input that is smaller than the output's logical shape; null or misaligned pointers.
    pub fn nvte_group_compute_amax_with_config(input: NVTEGroupedTensor, output: NVTEGroupedTensor, config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Computes the scales of the members of a grouped tensor, each as `nvte_compute_scale_from_amax` does,
    /// and `scale_inv = 1 / scale`.
    ///
    /// `amax` (without an address: `columnwise_amax`), `scale`, and one or both of `scale_inv` and
    /// `columnwise_scale_inv` have one Float32 for each member. The config may be null.
    ///
    /// Errors: data that are not FP8; fields that are missing or have another size.
    pub fn nvte_group_compute_scale_from_amax(output: NVTEGroupedTensor, config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Computes the largest magnitudes in the 128 x 128 blocks of a matrix `[h, w]`, of which only a part
    /// is given.
    ///
    /// What it computes: `amax[i * amax_stride_h + j * amax_stride_w] = max|x|` over the elements of `inp`
    /// in block (i, j), NaN ignored, 0 for a block without any. Every block is set.
    ///
    /// Shapes: `inp` may have any shape; its elements are those of the row-major matrix from `start_offset`
    /// on, possibly none. `amax` reaches as far as the strides do, and they keep blocks apart. `block_len`
    /// is 128.
    ///
    /// Dtypes: `inp` Float32, Float16 or BFloat16; `amax` Float32.
    ///
    /// Errors: other dtypes or block lengths; elements past the matrix; an `amax` that is too small or
    /// overlaps `inp`; null or misaligned pointers.
    pub fn nvte_fp8_block_scaling_compute_partial_amax(inp: NVTETensor, amax: NVTETensor, h: usize, w: usize, amax_stride_h: usize, amax_stride_w: usize, start_offset: usize, block_len: usize, stream: cudaStream_t);
    /// Casts a part of a matrix `[h, w]` with a scale for each 128 x 128 block: `out = cast(inp * scale)`.
    ///
    /// Shapes: `scale`, Float32, is what data are multiplied by, laid out as the maxima of
    /// `nvte_fp8_block_scaling_compute_partial_amax`, whose other arguments these are. `out` has as many
    /// elements as `inp`, those from `start_offset` on; nothing else of the matrix is written.
    ///
    /// Dtypes: `inp` Float32, Float16 or BFloat16; `out` is written as `out_dtype`, Float8E4M3 or
    /// Float8E5M2.
    ///
    /// Errors: as `nvte_fp8_block_scaling_compute_partial_amax`.
    pub fn nvte_fp8_block_scaling_partial_cast(inp: NVTETensor, out: NVTETensor, scale: NVTETensor, h: usize, w: usize, scale_stride_h: usize, scale_stride_w: usize, start_offset: usize, block_len: usize, out_dtype: NVTEDType, stream: cudaStream_t);
    /// Computes the largest magnitudes in the MXFP8 blocks of a matrix `[rows, cols]`, of which only a part
    /// is given.
    ///
    /// What it computes: `amax_rowwise[i][j]` is `max|x|` over row i and columns 32 j to 32 j + 31,
    /// `amax_colwise[i][j]` over column j and rows 32 i to 32 i + 31. Only elements of `input` count, NaN
    /// are ignored, and a block without any has 0. Rows and columns need not be multiples of 32.
    ///
    /// Shapes: `input` may have any shape; its elements are those of the row-major matrix from
    /// `start_offset` on, possibly none. `amax_rowwise` is `[rows, cols/32]`, `amax_colwise`
    /// `[rows/32, cols]`, or more, in multiples of 128 along the undivided dimension and of 4 along the
    /// other. Entries up to the next such multiple of a row become 0; rows beyond are not written. Either
    /// may be null.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, all the same.
    ///
    /// Errors: other dtypes or shapes; elements past the matrix; null or misaligned pointers.
    pub fn nvte_mxfp8_scaling_compute_partial_amax(input: NVTETensor, amax_rowwise: NVTETensor, amax_colwise: NVTETensor, rows: i32, cols: i32, start_offset: usize, stream: cudaStream_t);
    /// Casts a part of a matrix `[rows, cols]` to MXFP8 in one or both directions: `y = cast(x / 2^e)`,
    /// with the code `e` of the block along the row, or along the column.
    ///
    /// Shapes: each output has as many elements as `input`, those from `start_offset` on, not transposed.
    /// The codes `scale_inv_rowwise` and `scale_inv_colwise` are laid out as the maxima of
    /// `nvte_mxfp8_scaling_compute_partial_amax`. An output and its codes may both be null.
    ///
    /// Dtypes: `input` Float32, Float16 or BFloat16; outputs Float8E4M3, Float8E5M2 or Byte (then
    /// Float8E4M3); codes Float8E8M0 or Byte.
    ///
    /// Errors: as `nvte_mxfp8_scaling_compute_partial_amax`; no output.
    pub fn nvte_mxfp8_scaling_partial_cast(input: NVTETensor, output_rowwise: NVTETensor, output_colwise: NVTETensor, scale_inv_rowwise: NVTETensor, scale_inv_colwise: NVTETensor, rows: i32, cols: i32, start_offset: usize, stream: cudaStream_t);
    /// Computes the factor of a product of two NVFP4 tensors:
    /// `alpha_out = ((alpha_in * amaxA) * amaxB) * (1 / (36 * maxA * maxB))`, with the `NVFP4E4M3Max` of
    /// each tensor as max.
    ///
    /// An amax is the tensor's `amax`, or its `columnwise_amax` without `use_rowwise_amax`; the first
    /// element counts.
    ///
    /// Dtypes: Float32. Errors: other dtypes; a missing amax or `alpha_out`.
    pub fn nvte_nvfp4_compute_per_tensor_scale(inpA: NVTETensor, use_rowwise_amax_A: bool, inpB: NVTETensor, use_rowwise_amax_B: bool, alpha_in: f32, alpha_out: NVTETensor, stream: cudaStream_t);
    /// Computes the global scales of NVFP4 tensors:
    /// `global_scale[i] = min(2688 / max(a, FLT_MIN), FLT_MAX)` with `a = global_amax[i]`, or 1 unless
    /// `a > 0`.
    ///
    /// Dtypes: Float32. Errors: other dtypes; a `global_scale` with fewer elements.
    pub fn nvte_nvfp4_compute_global_scale(global_amax: NVTETensor, global_scale: NVTETensor, stream: cudaStream_t);
    /// Computes the scales of NVFP4 blocks, not yet rounded to Float8E4M3:
    /// `scale[i] = min(block_amax[i] * (G * (1 / 6)), FLT_MAX)`, where G is the global scale of
    /// `global_amax` (`nvte_nvfp4_compute_global_scale`).
    ///
    /// Dtypes: Float32. Errors: other dtypes; a `global_amax` of more than one element; a `scale` with
    /// fewer elements than `block_amax`.
    pub fn nvte_nvfp4_compute_per_block_scale(block_amax: NVTETensor, scale: NVTETensor, global_amax: NVTETensor, stream: cudaStream_t);
    /// Rounds the scales of square blocks to Float8E4M3 codes, and repeats them for each row of a block:
    /// `output[r][c] = e4m3(input[r / block_len][c])`, 0 for rows of no block.
    ///
    /// Shapes: input `[tile_rows, tile_cols]`, output `[rows_padded, tile_cols]`, or more elements. If a
    /// size is 0, nothing is written.
    ///
    /// Dtypes: Float32 to Byte. Errors: other dtypes; too few elements; a `block_len` of 0.
    pub fn nvte_nvfp4_expand_scale_to_fp8(input: NVTETensor, output: NVTETensor, tile_rows: usize, tile_cols: usize, rows_padded: usize, block_len: usize, stream: cudaStream_t);
    /// Computes the scales of NVFP4 blocks in one pass: `nvte_nvfp4_compute_per_block_scale` to
    /// `per_block_scale`, `nvte_nvfp4_expand_scale_to_fp8` of that to `target_scale`, and
    /// `target_amax = global_amax`.
    ///
    /// Shapes, dtypes, errors: as these functions have them. If a size is 0, nothing at all is written.
    pub fn nvte_nvfp4_fused_scale(block_amax: NVTETensor, global_amax: NVTETensor, per_block_scale: NVTETensor, target_scale: NVTETensor, target_amax: NVTETensor, tile_rows: usize, tile_cols: usize, rows_padded: usize, block_len: usize, stream: cudaStream_t);
    /// Computes the largest magnitudes in the 16 x 16 blocks of a matrix `[h, w]`, of which only a part is
    /// given.
    ///
    /// What it computes: `amax[i * amax_stride_h + j * amax_stride_w] = max|x|` over the elements of `inp`
    /// in block (i, j), NaN ignored, 0 for a block without any. Every block is set.
    ///
    /// Shapes: `inp` may have any shape; its elements are those of the row-major matrix from `start_offset`
    /// on, possibly none. `amax` reaches as far as the strides do, and they keep blocks apart. `block_len`
    /// is 16.
    ///
    /// Dtypes: `inp` Float32, Float16 or BFloat16; `amax` Float32.
    ///
    /// Errors: other dtypes or block lengths; elements past the matrix; null or misaligned pointers.
    pub fn nvte_nvfp4_2d_compute_partial_amax(inp: NVTETensor, amax: NVTETensor, h: usize, w: usize, amax_stride_h: usize, amax_stride_w: usize, start_offset: usize, block_len: usize, stream: cudaStream_t);
    /// Casts a part of a matrix `[h, w]` to Float4E2M1 with a scale for each 16 x 16 block.
    ///
    /// What it computes: `code = e2m1(x * q)` with `q = min(1 / (s * (1 / g)), FLT_MAX)`, where `s` is the
    /// block's scale rounded to Float8E4M3, and `g` is `global_scale`, or 1 unless that is positive. q is
    /// FLT_MAX unless `s > 0`.
    ///
    /// Shapes: `inp` and `scale` are laid out as the input and the maxima of
    /// `nvte_nvfp4_2d_compute_partial_amax`. Element i of the matrix goes to byte
    /// `i / 2 - start_offset / 2` of `out`, an even one to the low bits. The other half of the first and of
    /// the last byte is kept if it does not belong to this part.
    ///
    /// Dtypes: `inp` Float32, Float16 or BFloat16; `out` Byte; scales Float32.
    ///
    /// Errors: as `nvte_nvfp4_2d_compute_partial_amax`; too few bytes.
    pub fn nvte_nvfp4_2d_partial_cast(inp: NVTETensor, out: NVTETensor, scale: NVTETensor, global_scale: NVTETensor, h: usize, w: usize, scale_stride_h: usize, scale_stride_w: usize, start_offset: usize, block_len: usize, stream: cudaStream_t);
    /// Moves an amax history on by one step and sets the scales of delayed scaling.
    ///
    /// What it computes, for each column, with `last = history[0]`: row i takes row i + 1, the last row
    /// takes `last`, and row 0 becomes 0. `amax` is the largest of the old column ("max", NaN ignored) or
    /// `last` ("most_recent"). `scale = fp8_max * 2^-margin / amax` if `amax` is finite and positive,
    /// otherwise it is unchanged; an infinite scale becomes the largest float.
    ///
    /// Shapes: histories `[length, n]`, scales n elements. Outputs may be the inputs.
    ///
    /// Dtypes: Float32; `fp8_dtype` Float8E4M3 or Float8E5M2.
    ///
    /// Errors: other algorithms, dtypes or shapes; null pointers.
    pub fn nvte_delayed_scaling_recipe_amax_and_scale_update(amax_history: NVTETensor, scale: NVTETensor, updated_amax_history: NVTETensor, updated_scale: NVTETensor, amax_compute_algo: *const c_char, fp8_dtype: NVTEDType, margin: f32, stream: cudaStream_t);
    /// Moves the amax histories of many tensors on and sets their scales, in place, after their amax values
    /// were reduced over ranks.
    ///
    /// What it computes: as `nvte_delayed_scaling_recipe_amax_and_scale_update` for each tensor, with
    /// `last` taken from the concatenated `amax_reduction_buffer` where that is not 0 (a null handle or no
    /// address: no buffer). A column whose `last` is 0 was not used: its history stays, and with "max" its
    /// scale.
    ///
    /// Shapes: histories `[length, n_k]` with one length, scales n_k elements, the buffer the sum of all
    /// n_k.
    ///
    /// Notes: this is the C form of `nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction`.
    pub fn nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(amax_reduction_buffer: NVTETensor, amax_histories: *const NVTETensor, scales: *const NVTETensor, num_tensors: usize, amax_compute_algo: *const c_char, fp8_dtype: NVTEDType, margin: f32, stream: cudaStream_t);
    /// Moves the block scales of a tensor to the 128 x 4 tiles that block-scaled products read.
    ///
    /// What it computes: scales of data `[R, C]` in blocks of b (MXFP8: 32, NVFP4: 16) are a matrix
    /// `[m, k]`: row-wise m = R, k = C/b, column-wise m = C, k = R/b, with quotients rounded up, then m to
    /// a multiple of 128 and k to a multiple of 4. Entry (i, j) goes to byte
    /// `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4`. Padding becomes 0,
    /// whatever it was; the scale of a partial block is not padding.
    ///
    /// Shapes: `scale_inv` and `columnwise_scale_inv` `[m, k]`, the column-wise one of MXFP8 `[k, m]`, on
    /// both sides. The output must have every direction that the input has, one or both. Data are not
    /// touched and may have null pointers, but their dtype and shape must be set.
    ///
    /// Dtypes: MXFP8 Float8E8M0, NVFP4 Float8E4M3, or Byte.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other scaling modes, dtypes or shapes; `with_gemm_swizzled_scales` set in the input or not
    /// in the output; null pointers; an output that overlaps the input.
    pub fn nvte_swizzle_scaling_factors(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Moves block scales from the tiles back to their order: the inverse of
    /// `nvte_swizzle_scaling_factors`. Padding is copied. The output decides which directions move, and
    /// must not have `with_gemm_swizzled_scales`.
    pub fn nvte_unswizzle_scaling_factors(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Moves the block scales of `num_tensors` pairs of tensors as `nvte_swizzle_scaling_factors` does,
    /// many in one kernel. Scaling modes and directions may differ from pair to pair.
    pub fn nvte_multi_tensor_swizzle_scaling_factors(inputs: *const NVTETensor, outputs: *mut NVTETensor, num_tensors: usize, stream: cudaStream_t);
    /// Moves block scales as `nvte_multi_tensor_swizzle_scaling_factors` does, even if they do not fit
    /// their data.
    ///
    /// The scales of the input may be any `[m, k]` (column-wise MXFP8: `[k, m]`) of whole tiles, those of
    /// the output may have any shape with as many elements. Entries beyond those that the data would have
    /// become 0.
    pub fn nvte_multi_tensor_swizzle_scaling_factors_unchecked(inputs: *const NVTETensor, outputs: *mut NVTETensor, num_tensors: usize, stream: cudaStream_t);
    /// Moves the block scales of `num_tensors` pairs of tensors back as `nvte_unswizzle_scaling_factors`
    /// does.
    pub fn nvte_multi_tensor_unswizzle_scaling_factors(inputs: *const NVTETensor, outputs: *mut NVTETensor, num_tensors: usize, stream: cudaStream_t);
    /// Moves the block scales of the members of a grouped MXFP8 tensor as `nvte_swizzle_scaling_factors`
    /// does, in the directions that the input has. Shapes of members are read on the device.
    ///
    /// Layout: the scale matrices of the members, each padded as that of a lone tensor, follow each other
    /// on both sides. If all members have one shape `[R, C]`, the input may leave out the padding between
    /// them: n R rows of k row-wise scales, rounded up to a multiple of 128 rows, or n R/32 rows of m
    /// column-wise scales, rounded up to a multiple of 4 rows. The number of its elements tells which it
    /// is; where both layouts have the same number, it is taken as padded.
    ///
    /// Dtypes: Float8E8M0 or Byte.
    ///
    /// Errors: other scaling modes; `with_gemm_swizzled_scales` set in the input or not in the output;
    /// different logical shapes; members of one shape with scales of another size; varying shapes without
    /// `tensor_offsets`; null pointers; the input's buffer as output.
    pub fn nvte_swizzle_grouped_scaling_factors(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Moves the block scales of the members of a grouped tensor back: the inverse of
    /// `nvte_swizzle_grouped_scaling_factors`, with padding on both sides, in the directions that the
    /// output has.
    pub fn nvte_unswizzle_grouped_scaling_factors(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Turns the scales of FP8 blocks into swizzled MXFP8 scales of the same data, row-wise.
    ///
    /// What it computes: the code of a scale is `bits >> 23 & 0xFF`, which is exact for powers of two, as
    /// `force_pow2_scales` gives them; other scales lose sign and mantissa. Each code fills the four of its
    /// 128 columns. 1D: padding rows become 0. 2D: a block fills its tile, padding included.
    ///
    /// Shapes: data `[R, C]`, one buffer for both tensors; input scales Float32 `[C/128, R]` (1D) or
    /// `[R/128, C/128]` (2D), where quotients are rounded up and the second dimension may be larger; output
    /// scales Float8E8M0 (or Byte) of a lone MXFP8 tensor.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other scaling modes, dtypes or shapes; an output without `with_gemm_swizzled_scales`;
    /// different data pointers; null or misaligned pointers.
    pub fn nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(input: NVTETensor, output: NVTETensor, stream: cudaStream_t);
    /// Finds the k greatest elements of each row, and where they are.
    ///
    /// What it computes: of the first `lengths_in[b]` elements of row b (of all elements without lengths)
    /// the k greatest, in the order of their indices; of equal ones those with the lowest indices. Bits are
    /// compared: NaN without a sign is greatest, NaN with a sign least, and 0 is greater than -0. A row of
    /// at most k elements comes whole, followed by keys of -1 and indices of -1.
    ///
    /// Workspace: if it has no pointer, its shape and dtype become what the second call needs; nothing else
    /// is looked at then.
    ///
    /// Shapes: `keys_in` `[batch_size, seq_len]`; `lengths_in` `[batch_size]` or without a pointer;
    /// `keys_out` and `indices_out` `[batch_size, k]`. Larger tensors will do.
    ///
    /// Dtypes: `keys_in` Float32, Float16 or BFloat16; `keys_out` is written as the same; lengths Int32;
    /// indices are written as Int32. Outputs may declare other dtypes if they have enough bytes.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes; tensors of too few bytes; outputs that overlap anything; null or misaligned
    /// pointers.
    pub fn nvte_topk(stream: cudaStream_t, keys_in: NVTETensor, lengths_in: NVTETensor, keys_out: NVTETensor, indices_out: NVTETensor, workspace: NVTETensor, batch_size: i32, seq_len: i32, k: i32);
    /// Returns which of queries, keys and values a layout interleaves.
    ///
    /// Errors: no layout from 0 to 25 (the result is then 0).
    pub fn nvte_get_qkv_layout_group(qkv_layout: NVTE_QKV_Layout) -> NVTE_QKV_Layout_Group;
    /// Returns the order of dimensions of a layout.
    ///
    /// Errors: no layout from 0 to 25 (the result is then 0).
    pub fn nvte_get_qkv_format(qkv_layout: NVTE_QKV_Layout) -> NVTE_QKV_Format;
    /// Returns the order of dimensions of the queries of a layout.
    ///
    /// Errors: no layout from 0 to 25 (the result is then 0).
    pub fn nvte_get_q_format(qkv_layout: NVTE_QKV_Layout) -> NVTE_QKV_Format;
    /// Returns the order of dimensions of the keys and values of a layout.
    ///
    /// Errors: no layout from 0 to 25 (the result is then 0).
    pub fn nvte_get_kv_format(qkv_layout: NVTE_QKV_Layout) -> NVTE_QKV_Format;
    /// Creates a config of attention with defaults. Destroy it with `nvte_destroy_fused_attn_config`.
    ///
    /// Defaults: training, no mask, no bias, no window, alignment at the bottom right, the usual softmax,
    /// no dropout, `attn_scale` 1, BFloat16, no layout, sizes of 0. Formats that are not set are those of
    /// the layout.
    pub fn nvte_create_fused_attn_config() -> NVTEFusedAttnConfig;
    /// Destroys a config of attention. Null is an error.
    pub fn nvte_destroy_fused_attn_config(config: NVTEFusedAttnConfig);
    /// Copies an attribute of a config to `buf`, and its size to `size_written` (null: nowhere). With a
    /// null `buf` only the size is written.
    ///
    /// Types and errors: as `nvte_set_fused_attn_config_attribute`, except that `buf` may be null.
    pub fn nvte_get_fused_attn_config_attribute(config: NVTEFusedAttnConfig, attr: NVTEFusedAttnConfigAttribute, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Sets an attribute of a config from the bytes at `buf`. Values are checked when they are used.
    ///
    /// Types: flags are one byte; enumerations, formats and layouts have their own types; dropout and scale
    /// are `float`, window sizes `int64_t`, other sizes `size_t`.
    ///
    /// Errors: no config, no such attribute; a null `buf`; `size_in_bytes` below the size of the type.
    pub fn nvte_set_fused_attn_config_attribute(config: NVTEFusedAttnConfig, attr: NVTEFusedAttnConfigAttribute, buf: *const c_void, size_in_bytes: usize);
    /// Creates parameters of a forward pass of attention with defaults. Destroy them with
    /// `nvte_destroy_fused_attn_fwd_params`.
    ///
    /// Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
    pub fn nvte_create_fused_attn_fwd_params() -> NVTEFusedAttnFwdParams;
    /// Destroys parameters of a forward pass of attention. Null is an error.
    pub fn nvte_destroy_fused_attn_fwd_params(params: NVTEFusedAttnFwdParams);
    /// Copies an attribute of parameters, as `nvte_get_fused_attn_config_attribute` does for a config.
    pub fn nvte_get_fused_attn_fwd_params_attribute(params: NVTEFusedAttnFwdParams, attr: NVTEFusedAttnFwdParamsAttribute, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Sets an attribute of parameters, as `nvte_set_fused_attn_config_attribute` does for a config. `buf`
    /// holds the `NVTETensor` of a tensor or of the workspace, the address of the pack, or the
    /// `cudaStream_t`.
    pub fn nvte_set_fused_attn_fwd_params_attribute(params: NVTEFusedAttnFwdParams, attr: NVTEFusedAttnFwdParamsAttribute, buf: *const c_void, size_in_bytes: usize);
    /// Creates parameters of a backward pass of attention with defaults. Destroy them with
    /// `nvte_destroy_fused_attn_bwd_params`.
    ///
    /// Defaults: no tensors; options as those of `nvte_create_fused_attn_config`.
    pub fn nvte_create_fused_attn_bwd_params() -> NVTEFusedAttnBwdParams;
    /// Destroys parameters of a backward pass of attention. Null is an error.
    pub fn nvte_destroy_fused_attn_bwd_params(params: NVTEFusedAttnBwdParams);
    /// Copies an attribute of parameters, as `nvte_get_fused_attn_config_attribute` does for a config.
    pub fn nvte_get_fused_attn_bwd_params_attribute(params: NVTEFusedAttnBwdParams, attr: NVTEFusedAttnBwdParamsAttribute, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Sets an attribute of parameters, as `nvte_set_fused_attn_config_attribute` does for a config. `buf`
    /// holds the `NVTETensor` of a tensor or of the workspace, the address of the pack, or the
    /// `cudaStream_t`.
    pub fn nvte_set_fused_attn_bwd_params_attribute(params: NVTEFusedAttnBwdParams, attr: NVTEFusedAttnBwdParamsAttribute, buf: *const c_void, size_in_bytes: usize);
    /// Copies the first (`half_idx` 0) or second (1) half of every packed sequence.
    ///
    /// Shapes: tensor `[t, h, d]` or `[2, t, h, d]`; half the same with t / 2 tokens; cu_seqlens Int32
    /// `[b + 1]`, the first tokens of the sequences, all even.
    ///
    /// Dtypes: any, the same for both tensors.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_cp_thd_read_half_tensor(tensor: NVTETensorReference, cu_seqlens: NVTETensorReference, half: NVTETensor, half_idx: i32, stream: cudaStream_t);
    /// Merges the log-sum-exp of a step into that of the second half of every sequence, in place:
    /// `lse = log(exp(lse) + exp(lse_per_step))`.
    ///
    /// Shapes (Float32): with `lse_packed` `[h, t]` and `[h, t / 2 or more]`, otherwise `[b, h, s]` and
    /// `[b, h, s / 2]`.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_cp_thd_second_half_lse_correction(lse: NVTETensor, lse_per_step: NVTETensorReference, cu_seqlens: NVTETensorReference, lse_packed: i32, stream: cudaStream_t);
    /// Copies the log-sum-exp of the second half of every sequence; entries of half_lse that stand for no
    /// token stay as they are.
    ///
    /// Shapes (Float32): as `nvte_cp_thd_second_half_lse_correction`, with `second_half_lse_seqlen` as the
    /// last dimension of half_lse.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_cp_thd_read_second_half_lse(lse: NVTETensorReference, cu_seqlens: NVTETensorReference, half_lse: NVTETensor, lse_packed: i32, second_half_lse_seqlen: i32, stream: cudaStream_t);
    /// Merges the output of a step into an output, in place:
    /// `out = out exp(old_lse - lse) + out_per_step exp(lse_per_step - lse)`, in float32. Elements that are
    /// zero stay zero.
    ///
    /// Shapes: out `[t, h, d]`; out_per_step the same, or with `only_second_half` `[t / 2, h, d]`;
    /// log-sum-exps Float32, with `lse_packed` `[h, t]`, otherwise `[b, h, s]`.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, the same for both outputs.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_cp_thd_out_correction(out: NVTETensor, out_per_step: NVTETensorReference, old_lse: NVTETensorReference, lse: NVTETensorReference, lse_per_step: NVTETensorReference, cu_seqlens: NVTETensorReference, only_second_half: i32, lse_packed: i32, stream: cudaStream_t);
    /// Merges the gradient of a step into a gradient, in place, separately for the first and the second
    /// half of every sequence.
    ///
    /// What happens to a half: "add", "copy", "none" or "zero". Allowed are (add, none), (copy, none),
    /// (copy, zero), (add, copy), and each of them the other way round.
    ///
    /// Shapes: grad `[t, h, d]` or `[2, t, h, d]`; grad_per_step the same for (add, copy), otherwise with t
    /// / 2 tokens.
    ///
    /// Dtypes: Float32, Float16 or BFloat16; with "zero" also Byte.
    ///
    /// Errors: other pairs, shapes or dtypes; null or misaligned pointers.
    pub fn nvte_cp_thd_grad_correction(grad: NVTETensor, grad_per_step: NVTETensorReference, cu_seqlens: NVTETensorReference, first_half: *const c_char, second_half: *const c_char, stream: cudaStream_t);
    /// Lists the tokens that a rank has in context parallelism: each sequence is cut into `2 world_size`
    /// chunks, and rank k has chunk k and the k-th from the end.
    ///
    /// Shapes: output Int32 `[total_tokens / world_size]`.
    ///
    /// Errors: a `total_tokens` that is not a multiple of 2 world_size; a rank outside of the world; other
    /// shapes or dtypes.
    pub fn nvte_cp_thd_get_partitioned_indices(cu_seqlens: NVTETensorReference, output: NVTETensor, total_tokens: i32, world_size: i32, rank: i32, stream: cudaStream_t);
    /// Orders tokens by the rank to which `nvte_cp_thd_get_partitioned_indices` assigns them.
    ///
    /// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
    ///
    /// Errors: a `total_tokens` that is not a multiple of 2 world_size; other shapes or dtypes.
    pub fn nvte_thd_sequence_order_to_cp_rank_order(inp: NVTETensorReference, cu_seqlens: NVTETensorReference, out: NVTETensor, world_size: i32, total_tokens: i32, stream: cudaStream_t);
    /// Orders the tokens of all ranks by sequence again: the inverse of
    /// `nvte_thd_sequence_order_to_cp_rank_order`.
    ///
    /// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
    ///
    /// Errors: a `total_tokens` that is not a multiple of 2 world_size; other shapes or dtypes.
    pub fn nvte_thd_cp_rank_order_to_sequence_order(inp: NVTETensorReference, cu_seqlens: NVTETensorReference, out: NVTETensor, world_size: i32, total_tokens: i32, stream: cudaStream_t);
    /// Copies the tokens of packed sequences, without their padding: of sequence s, which begins at
    /// `cu_seqlens_padded[s]`, the first `cu_seqlens[s + 1] - cu_seqlens[s]`. Other rows of out stay as
    /// they are.
    ///
    /// Shapes: inp and out `[total_tokens, ...]`. Dtypes: any, the same for both.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(inp: NVTETensorReference, cu_seqlens_padded: NVTETensorReference, cu_seqlens: NVTETensorReference, out: NVTETensor, total_tokens: i32, stream: cudaStream_t);
    /// Spreads packed tokens `[t, h, d]` over `[b, max_seq_len, h, d]`; rows past the end of a sequence
    /// stay as they are.
    ///
    /// Shapes: cu_seqlens Int32 `[b + 1 or more]`.
    ///
    /// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both tensors.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_convert_thd_to_bshd(tensor: NVTETensor, cu_seqlens: NVTETensor, new_tensor: NVTETensor, b: i32, max_seq_len: i32, stream: cudaStream_t);
    /// Packs the tokens of `[b, s, h, d]` into `[t, h, d]`. The argument `t` is not used.
    ///
    /// Shapes: cu_seqlens Int32 `[b + 1 or more]`.
    ///
    /// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both tensors.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_convert_bshd_to_thd(tensor: NVTETensor, cu_seqlens: NVTETensor, new_tensor: NVTETensor, t: i32, stream: cudaStream_t);
    /// Copies the keys and values of new tokens to their places in a cache.
    ///
    /// Places: sequence i has `cu_new_lens[i + 1] - cu_new_lens[i]` new tokens, and with them
    /// `cu_cached_lens[i + 1] - cu_cached_lens[i]` in all. Its token p lies on page
    /// `page_table[i][p / page_size]`. Without pages (`is_non_paged`) it lies in slot i: then page_table
    /// holds the old slots `[b or more]` of the sequences that go on, which are first moved to the front.
    ///
    /// Shapes: caches `[pages, page_size, h, d]`, with page_size = max_seq_len / max_pages_per_seq; new
    /// tokens, by qkv_format, `[b or more, max_ctx_len, h, d]`, `[s, b, h, d]` or packed `[t, h, d]`; cumulative
    /// lengths Int32 `[b + 1 or more]`; the page table of b max_pages_per_seq elements or more.
    ///
    /// Dtypes: Float32, Float16, BFloat16, Float8E4M3 or Float8E5M2, the same for both caches and the new
    /// keys and values.
    ///
    /// Notes: nothing happens if a cache or the new keys or values have no data. Packed new tokens are all
    /// copied, whatever `max_ctx_len` says.
    ///
    /// Errors: other shapes, formats or dtypes; null or misaligned pointers.
    pub fn nvte_copy_to_kv_cache(new_k: NVTETensor, new_v: NVTETensor, k_cache: NVTETensor, v_cache: NVTETensor, page_table: NVTETensor, cu_new_lens: NVTETensor, cu_cached_lens: NVTETensor, qkv_format: NVTE_QKV_Format, b: i32, max_ctx_len: i32, max_seq_len: i32, max_pages_per_seq: i32, is_non_paged: i32, stream: cudaStream_t);
    /// Separates interleaved queries, keys and values: from `[s, b, n, 3, d]` in memory to
    /// `[3, b, s, n, d]`. The handle of the input has the shape `[s, b, n, d]`.
    ///
    /// Dtypes: Float16 or BFloat16, the same for both.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_prepare_flash_attn_fwd(qkvi: NVTETensor, qkv: NVTETensor, stream: cudaStream_t);
    /// Interleaves queries, keys and values `[b, s, n, d]` as `[s, b, n, 3, d]`.
    ///
    /// Dtypes: Float16 or BFloat16, the same for all.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    pub fn nvte_prepare_flash_attn_bwd(q: NVTETensor, k: NVTETensor, v: NVTETensor, qkv: NVTETensor, stream: cudaStream_t);
    /// Transposes tensors `[b, s, h, d]` or `[s, b, h, d]` (original_format) to `[b, h, s, d or more]`,
    /// with zeros behind each d.
    ///
    /// Dtypes: any, the same for an input and its output.
    ///
    /// Errors: another format; other shapes or dtypes; null or misaligned pointers. Nothing is written
    /// then.
    pub fn nvte_multi_tensor_transpose_to_bhsd(inputs: *mut NVTETensor, outputs: *mut NVTETensor, num_tensors: usize, original_format: NVTE_QKV_Format, stream: cudaStream_t);
    /// Copies matrices `[r, c]` to wider ones, with zeros behind each row.
    ///
    /// Dtypes: any, the same for an input and its output.
    ///
    /// Errors: other shapes or dtypes; an output that overlaps its input; null or misaligned pointers.
    /// Nothing is written then.
    pub fn nvte_multi_tensor_pad_last_dim(inputs: *mut NVTETensor, outputs: *mut NVTETensor, num_tensors: usize, stream: cudaStream_t);
    /// Fills the state of a random generator: the seed at `seed`, and an offset that grows with every call
    /// of the thread.
    ///
    /// The offset grows by 16 for `NVTE_F16_arbitrary_seqlen`, otherwise by
    /// `q_max_seqlen kv_max_seqlen / 128`, rounded up. `rng_state_dst` (Int64 `[2]`) and `seed` (Int64) are
    /// device addresses, not tensors.
    pub fn nvte_populate_rng_state_async(rng_state_dst: NVTETensor, seed: NVTETensor, q_max_seqlen: usize, kv_max_seqlen: usize, backend: NVTE_Fused_Attn_Backend, stream: cudaStream_t);
    /// Counts how many of the first `len` entries of cu_seqlens are above 0. It waits for the stream.
    ///
    /// `cu_seqlens` (Int32) is a device address, not a tensor; `workspace` is not used.
    pub fn nvte_get_runtime_num_segments(cu_seqlens: NVTETensor, workspace: NVTETensor, len: usize, stream: cudaStream_t) -> u32;
    /// Fills the state of a random generator, `{seed, offset}`.
    ///
    /// With `captured` these are the value at `seed_ptr`, and the value at `offset_ptr` plus
    /// `offset_intragraph`, read on the device; otherwise `seed_val` and `offset_val`.
    ///
    /// Errors: null or misaligned pointers that are needed.
    pub fn nvte_extract_seed_and_offset(rng_state_ptr: *mut i64, captured: i32, seed_ptr: *mut i64, seed_val: u64, offset_ptr: *mut i64, offset_val: u64, offset_intragraph: u32, stream: cudaStream_t);
    /// Returns the kind of implementation that would run an attention: `NVTE_FP8` for FP8 queries,
    /// otherwise `NVTE_F16_arbitrary_seqlen`, or `NVTE_No_Backend` if none can. A config of training asks
    /// for both passes.
    ///
    /// `message` (null: nowhere) becomes "" or the reason why none can; it is valid until the thread's next
    /// call of this function or of `nvtex_fused_attn_query`. The answer depends on the config and the
    /// device alone. With FP8 queries `do_dtype` may be the dtype of the gradient before its cast: the
    /// backward pass takes it in FP8.
    ///
    /// Errors: no config; a number that stands for no layout, format, dtype, mask, bias or softmax. A
    /// request that is well formed and cannot be run is no error.
    pub fn nvte_get_fused_attn_backend_v2(cfg: NVTEFusedAttnConfig, message: *mut *const c_char) -> NVTE_Fused_Attn_Backend;
    /// Returns what `nvte_get_fused_attn_backend_v2` returns, for a batch of one, one dtype for all
    /// tensors, and a bias `[1, h, s_q, s_kv]`.
    ///
    /// Layouts with pages get `NVTE_No_Backend`, because the arguments say nothing about pages.
    ///
    /// Errors: a kv_dtype that is not q_dtype; unknown numbers.
    pub fn nvte_get_fused_attn_backend(is_training: bool, q_dtype: NVTEDType, kv_dtype: NVTEDType, qkv_layout: NVTE_QKV_Layout, bias_type: NVTE_Bias_Type, attn_mask_type: NVTE_Mask_Type, softmax_type: NVTE_Softmax_Type, dropout: f32, num_attn_heads: usize, num_gqa_groups: usize, max_seqlen_q: usize, max_seqlen_kv: usize, head_dim_qk: usize, head_dim_v: usize, window_size_left: i64, window_size_right: i64, return_max_logit: bool, cuda_graph: bool, deterministic: bool) -> NVTE_Fused_Attn_Backend;
    /// Tells which implementation would run one pass of an attention, and why others declined.
    ///
    /// Outputs, each of which may be null:
    /// - `implementation`: its name, a static text, or null if there is none.
    /// - `rejected`: the implementations that were asked before it, as "name: reason", one a line; if there
    ///   is none, the reasons why, with what would do. It is valid until the thread's next call of this
    ///   function or of `nvte_get_fused_attn_backend_v2`.
    /// - `workspace_bytes`: what a query for the workspace would answer.
    ///
    /// The result is that of `nvte_get_fused_attn_backend_v2` for this pass alone.
    ///
    /// Errors: as `nvte_get_fused_attn_backend_v2`; an unknown pass.
    pub fn nvtex_fused_attn_query(config: NVTEFusedAttnConfig, pass: NVTEXAttentionPass, implementation: *mut *const c_char, rejected: *mut *const c_char, workspace_bytes: *mut usize) -> NVTE_Fused_Attn_Backend;
    /// Computes attention, `O = softmax(attn_scale Q K^T + bias) V`, as the parameters describe it.
    ///
    /// Two calls with the same parameters:
    /// - First the workspace has no data, and the pack at `Aux_CTX_Tensors`, whose tensors
    ///   `nvte_tensor_pack_create` has made, has the `size` 0 (in C `NVTETensorPack pack = {0}`). The
    ///   workspace and the tensors of the pack take the shapes and dtypes that they need, `size` becomes
    ///   their number, and nothing runs.
    /// - Then the workspace and the Stats and Max of the pack have memory, and the pass runs. The backward
    ///   pass takes the pack without Max.
    ///
    /// Shapes:
    /// - Q, K, V: those of `qkv_layout`, without the 2 or 3 of interleaved layouts. Query head j reads key
    ///   head `j / (h_q / h_kv)`. Paged keys and values are `[pages, page_size, h, d]`, with page tables
    ///   Int32 `[b or more, max_pages_per_seq]`. K and V of `[b, s, h, d]` or `[b, h, s, d]` may have more
    ///   sequences than Q, which are not read.
    /// - O: as Q, in `o_format`, with heads of as many elements as those of V.
    /// - Lengths: `max_seqlen_*`; with a padding mask those that `cu_seqlens_*`, Int32 `[b + 1 or more]`,
    ///   bound. The tokens of packed (THD) sequence i begin at `cu_seqlens_*_padded[i]` if that is given
    ///   (also Int32 `[b + 1 or more]`), otherwise at `cu_seqlens_*[i]`. With packed queries, b is the
    ///   number of elements of `cu_seqlens_q` less 1.
    /// - Bias: `[1 or b, 1 or h, 1 or s_q, s_kv]`.
    ///
    /// Dtypes: Q, K and V Float16, BFloat16 or Float32, and O the same; or Float8E4M3 or Float8E5M2 with a
    /// scale_inv, and then O in FP8 (with a scale) or of 16 or 32 bits, and S may have scale, scale_inv and
    /// amax of the probabilities. The bias is read in Q's dtype whatever its handle says, or with FP8 in
    /// the dtype of its handle.
    ///
    /// Options:
    /// - Masks: scores count inside of the lengths; under a causal mask for columns up to the row; in a
    ///   window from `row - window_size_left` to `row + window_size_right` (-1: unbounded). Rows are
    ///   counted from the top left, or from the bottom right of a sequence's scores if the mask or
    ///   `bottom_right_diagonal` says so.
    /// - SoftmaxOffset: Float32, for each head one more score without a value. If it is absent and the
    ///   softmax is off by one, it is 0.
    /// - Dropout happens in training only and needs `rng_state`, Int64 `{seed, offset}`.
    ///
    /// Aux_CTX_Tensors, in this order: Stats (the natural logarithm of the sum of exponentials, Float32
    /// `[b, h, s_q, 1]` or `[t_q, h, 1]`); with `return_max_logit` Max (of the same shape, the largest
    /// score); and if they are used, rng_state, bias and offset, which come to point to the inputs.
    ///
    /// Notes:
    /// - A row without a score becomes 0, its Stats and Max -Inf. So do rows past the end of a sequence;
    ///   packed tokens of no sequence are not touched. If there are no rows nothing is written.
    /// - Keys and values past the end of a sequence never reach a result. A NaN or infinity that only later
    ///   queries see reaches no earlier query on the CPU backend; on CUDA it may reach earlier queries of
    ///   the same tile of the causal or window mask.
    /// - `cuda_graph` has no influence.
    ///
    /// Errors: sizes, dtypes and options that do not fit; null or misaligned pointers (tensors whose heads
    /// are a multiple of 16 bytes are aligned to 16 bytes); what no implementation of the backend takes
    /// (`nvtex_fused_attn_query` says why).
    pub fn nvte_fused_attn_fwd_v2(params: NVTEFusedAttnFwdParams);
    /// Computes attention as `nvte_fused_attn_fwd_v2` does, with the parameters as arguments. Tensors that
    /// are not needed may be null.
    pub fn nvte_fused_attn_fwd(Q: NVTETensor, K: NVTETensor, V: NVTETensor, Bias: NVTETensor, SoftmaxOffset: NVTETensor, S: NVTETensor, O: NVTETensor, Aux_CTX_Tensors: *mut NVTETensorPack, cu_seqlens_q: NVTETensor, cu_seqlens_kv: NVTETensor, cu_seqlens_q_padded: NVTETensor, cu_seqlens_kv_padded: NVTETensor, page_table_k: NVTETensor, page_table_v: NVTETensor, rng_state: NVTETensor, max_seqlen_q: usize, max_seqlen_kv: usize, is_training: bool, return_max_logit: bool, cuda_graph: bool, attn_scale: f32, dropout: f32, qkv_layout: NVTE_QKV_Layout, o_format: NVTE_QKV_Format, qkv_scale_inv_format: NVTE_QKV_Format, bias_type: NVTE_Bias_Type, attn_mask_type: NVTE_Mask_Type, softmax_type: NVTE_Softmax_Type, window_size_left: i64, window_size_right: i64, bottom_right_diagonal: bool, workspace: NVTETensor, stream: cudaStream_t);
    /// Computes the gradients of `nvte_fused_attn_fwd_v2`, which replace what their tensors hold.
    ///
    /// Inputs: Q, K, V, O, dO, and the pack at `Aux_CTX_Tensors` without Max: Stats and, if they are used,
    /// rng_state, bias and offset, in this order. In a pack of 4 tensors or more the offset is the fourth,
    /// also if no bias is used. Dropout drops what the forward pass dropped with the same state.
    ///
    /// Outputs: dQ, dK and dV have the shapes of `dqkv_layout` and the dtype of Q, or with FP8 Q any dtype;
    /// rows past the end of a sequence are treated as those of O in the forward pass. dBias (of the bias's
    /// shape, summed where the bias is broadcast) and dSoftmaxOffset (Float32, one for each head) may be
    /// absent.
    ///
    /// Workspace: while it has no data, the call only sets its shape and dtype.
    ///
    /// Notes: with `deterministic` sums are in a fixed order, as they always are on the CPU. There are no
    /// gradients of paged keys and values. With FP8, S is as in the forward pass, and dP has scale,
    /// scale_inv and amax of the scores' gradient.
    ///
    /// Errors: as `nvte_fused_attn_fwd_v2`.
    pub fn nvte_fused_attn_bwd_v2(params: NVTEFusedAttnBwdParams);
    /// Computes the gradients of attention as `nvte_fused_attn_bwd_v2` does, with the parameters as
    /// arguments. Tensors that are not needed may be null.
    pub fn nvte_fused_attn_bwd(Q: NVTETensor, K: NVTETensor, V: NVTETensor, O: NVTETensor, dO: NVTETensor, S: NVTETensor, dP: NVTETensor, Aux_CTX_Tensors: *const NVTETensorPack, dQ: NVTETensor, dK: NVTETensor, dV: NVTETensor, dBias: NVTETensor, dSoftmaxOffset: NVTETensor, cu_seqlens_q: NVTETensor, cu_seqlens_kv: NVTETensor, cu_seqlens_q_padded: NVTETensor, cu_seqlens_kv_padded: NVTETensor, max_seqlen_q: usize, max_seqlen_kv: usize, attn_scale: f32, dropout: f32, qkv_layout: NVTE_QKV_Layout, o_format: NVTE_QKV_Format, do_format: NVTE_QKV_Format, dqkv_layout: NVTE_QKV_Layout, qkv_scale_inv_format: NVTE_QKV_Format, do_scale_inv_format: NVTE_QKV_Format, bias_type: NVTE_Bias_Type, attn_mask_type: NVTE_Mask_Type, softmax_type: NVTE_Softmax_Type, window_size_left: i64, window_size_right: i64, bottom_right_diagonal: bool, deterministic: bool, cuda_graph: bool, workspace: NVTETensor, stream: cudaStream_t);
    /// Creates a matmul config with defaults. Destroy it with `nvte_destroy_matmul_config`.
    pub fn nvte_create_matmul_config() -> NVTEMatmulConfig;
    /// Copies an attribute of a matmul config to `buf`, and its size to `size_written`, which must not be
    /// null. With a null `buf` only the size is written.
    pub fn nvte_get_matmul_config_attribute(config: NVTEMatmulConfig, attr: NVTEMatmulConfigAttribute, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Sets an attribute of a matmul config from `size_in_bytes` bytes at `buf`. Tensors that are stored
    /// this way must live until the products that use the config have been called.
    pub fn nvte_set_matmul_config_attribute(config: NVTEMatmulConfig, attr: NVTEMatmulConfigAttribute, buf: *const c_void, size_in_bytes: usize);
    /// Destroys a matmul config. Null is ignored.
    pub fn nvte_destroy_matmul_config(config: NVTEMatmulConfig);
    /// Creates a grouped matmul config with defaults. Destroy it with
    /// `nvte_destroy_grouped_matmul_config`.
    pub fn nvte_create_grouped_matmul_config() -> NVTEGroupedMatmulConfig;
    /// Copies an attribute of a grouped matmul config to `buf`, and its size to `size_written`, which must
    /// not be null. With a null `buf` only the size is written. Averages that were never set read as 0.
    pub fn nvte_get_grouped_matmul_config_attribute(config: NVTEGroupedMatmulConfig, attr: NVTEGroupedMatmulConfigAttribute, buf: *mut c_void, size_in_bytes: usize, size_written: *mut usize);
    /// Sets an attribute of a grouped matmul config from `size_in_bytes` bytes at `buf`.
    pub fn nvte_set_grouped_matmul_config_attribute(config: NVTEGroupedMatmulConfig, attr: NVTEGroupedMatmulConfigAttribute, buf: *const c_void, size_in_bytes: usize);
    /// Destroys a grouped matmul config. Null is ignored.
    pub fn nvte_destroy_grouped_matmul_config(config: NVTEGroupedMatmulConfig);
    /// Multiplies two matrices: `D = Bop Aop`, with `accumulate` added to what D holds, and with an
    /// optional epilogue.
    ///
    /// Shapes (all matrices are row-major): D is `[n, m]`. `Aop` `[k, m]` is A, or with `transa` the
    /// transpose of A `[m, k]`. `Bop` `[n, k]` is B, or with `transb` the transpose of B `[k, n]`. Read
    /// column-major, this is the BLAS product with the same flags. D may have any shape of n * m elements
    /// except `[m, n]`. Nothing is written to an empty D.
    ///
    /// Epilogue, where v is the product and GELU its tanh form. A null `bias` or `pre_gelu_out`, or one
    /// without an address, counts as absent:
    /// - Neither: `D = v`.
    /// - `bias`: `D = v + bias`.
    /// - `pre_gelu_out`: `D = gelu(v)`, `pre_gelu_out = v`.
    /// - Both: `D = gelu(v + bias)`, `pre_gelu_out = v + bias`.
    /// - `grad` and `bias`: `D = v`, and `bias` is written: `bias[j] = sum over k of Bop[j, k]`.
    /// - `grad` and `pre_gelu_out`: `D = v * dgelu(pre_gelu_out)`.
    /// - `grad` and both: the same D, and `bias` becomes the sum of D over its rows.
    ///
    /// Dtypes: Float32, Float16 and BFloat16; FP8 and Float4E2M1 operands with scales. A and B have the
    /// same dtype unless both are FP8. An FP8 D needs `scale`, and gets `scale_inv` and, if it has one,
    /// `amax`.
    ///
    /// Scaling modes of the operands:
    /// - FP8 per tensor: where `nvte_is_non_tn_fp8_gemm_supported` returns 0, an operand is read from the
    ///   data that are contiguous along k: from row-wise data for A with `transa` and for B without
    ///   `transb`, otherwise from column-wise data. Elsewhere either will do. On compute capability 9.0 either
    ///   will also do for A in Float8E4M3 without `transa`, if D has at most 32 rows, m and k are multiples of 16
    ///   from 512 on, A and B are aligned to 16 bytes, D is not FP8, no bias gradient is asked for, and
    ///   `math_sm_count` is 0.
    /// - FP8 blocks (1D by 1D, 1D by 2D, 2D by 1D), MXFP8 and NVFP4 (both operands): always from the data
    ///   just named, whose blocks lie along k. Each element counts with its scale, in the layouts of
    ///   `nvte_quantize`.
    /// - FP8 blocks: products are summed in float32 for 128 of k at a time, whatever
    ///   `use_split_accumulator` says, and the scales are never swizzled, whatever the tensor says. The
    ///   epilogues are bias, and the gradient of GELU without bias.
    /// - MXFP8: on CUDA operands are cast to BFloat16, in which values outside of that type's normal range lose
    ///   bits; or, without the workspace for that, where both lie along k, their codes are multiplied, whose sums of
    ///   32 have the accuracy of FP8 tensor cores.
    /// - NVFP4: scales may be compact or swizzled. The product has the factor
    ///   `amaxA * amaxB / (36 * maxA * maxB)`, of the amaxes of the direction that is read and the
    ///   `NVFP4E4M3Max` of the tensors. D is Float32 or BFloat16, k is a multiple of 16, and `grad` with
    ///   `bias` needs `pre_gelu_out` too. On CUDA operands are cast to BFloat16, which is exact.
    /// - MXFP8 and NVFP4 from compute capability 10.0 on: cuBLASLt multiplies the operands as they are where it
    ///   has an algorithm, if the scales of both are swizzled, A is read with `transa` and B without `transb`,
    ///   all is aligned to 16 bytes and D is not FP8. No such device has run this yet.
    ///
    /// Workspace: memory on the device, any number of bytes, or none. On CUDA some products need it:
    /// - MXFP8 should have `2 k (m + n) + 768` bytes and NVFP4 `2 k (m + n) + 1024`. With less the product is
    ///   made in parts, for which 32 MiB are enough for any size and 64 KiB the least (with `bias`,
    ///   `pre_gelu_out` and `grad` `4 m` more); or, in MXFP8 with up to 256 rows or columns of D, by the kernel
    ///   of grouped products.
    /// - FP8 that cuBLASLt does not take (see the notes): 2560, and `4 m n` more with an epilogue or an FP8
    ///   D.
    /// - Other dtypes that cuBLASLt does not combine in D, bias and pre_gelu_out: `4 m n + 512`, for sums
    ///   in float32.
    ///
    /// Notes: `math_sm_count` limits the multiprocessors that the product uses; 0 means all. FP8 operands
    /// may have any size and dtype, a single row or odd numbers too. On CUDA cuBLASLt takes k in multiples
    /// of 16, m of 16 (FP8 blocks: 8), n of 8 if B is in 1D blocks, addresses aligned to 16 bytes, and at
    /// most one Float8E5M2. A kernel of this library computes the rest on compute capability 9.0 only, more
    /// slowly where rows of an operand do not begin at multiples of 16 bytes.
    ///
    /// Errors: dimensions that do not fit; missing data or scales; other scaling modes, or modes that do
    /// not go together; with status unsupported, combinations for which the device's library has no
    /// algorithm, and a workspace without room for the casts.
    /// In a process that replaces the other library (`nvtex_set_drop_in`), FP8 blocks are also refused
    /// without `use_split_accumulator`, if both operands are Float8E5M2, with the gradient of GELU to
    /// Float32, and if k is no multiple of 16, m none of 8, or n none of 8 where B is in 1D blocks.
    pub fn nvte_cublas_gemm(A: NVTETensor, B: NVTETensor, D: NVTETensor, bias: NVTETensor, pre_gelu_out: NVTETensor, transa: bool, transb: bool, grad: bool, workspace: NVTETensor, accumulate: bool, use_split_accumulator: bool, math_sm_count: i32, stream: cudaStream_t);
    /// Multiplies two matrices as `nvte_cublas_gemm` does, with factors: `D = alpha * Bop Aop + beta * D`.
    pub fn nvte_cublas_gemm_scaled(A: NVTETensor, B: NVTETensor, D: NVTETensor, bias: NVTETensor, pre_gelu_out: NVTETensor, transa: bool, transb: bool, grad: bool, workspace: NVTETensor, alpha: f32, beta: f32, use_split_accumulator: bool, math_sm_count: i32, stream: cudaStream_t);
    /// Multiplies two matrices as `nvte_cublas_gemm` does, with a third one and a config:
    /// `D = *alpha * Bop Aop + *beta * C`.
    ///
    /// Factors: `alpha` and `beta` point to one float each, on the host; for NVFP4 operands without amax on
    /// the device.
    ///
    /// C: null, or D itself, for D; otherwise another matrix of the shape and dtype of D.
    ///
    /// Config (null: defaults): options and tensors of the epilogue. A `dbias` tensor asks for the gradient
    /// of a bias, `with_dgelu` for that of GELU. GELU and its gradient need the aux tensor.
    ///
    /// Workspace, errors: as `nvte_cublas_gemm`.
    pub fn nvte_cublas_gemm_v2(transa: i32, transb: i32, alpha: *const f32, A: NVTETensor, B: NVTETensor, beta: *const f32, C: NVTETensor, D: NVTETensor, workspace: NVTETensor, config: NVTEMatmulConfig, stream: cudaStream_t);
    /// Multiplies two matrices as `nvte_cublas_gemm` does, in step with work on other streams through
    /// counters.
    ///
    /// `counter` is an Int32 tensor on the device with `m_split * n_split` words or more, where a split of
    /// 0 counts as 1. A word is 1 while it waits. With `gemm_producer` the words become 0 once D is
    /// complete. Without it the product begins when all of them are 0, which work on another stream must
    /// bring about; on the CPU backend the calling thread waits until another thread clears them. Without a
    /// counter (null, or no address) this is an ordinary product.
    ///
    /// Waiting ends after 60 seconds, or those of the environment variable `NVTE_WAIT_SECONDS`. On the CPU
    /// backend the call then fails with status device error and leaves D untouched. On CUDA the stream goes
    /// on with the product, whose result must not be used; the next `nvtex_stream_synchronize` of any
    /// stream, or the next call of this function that waits, reports it once as a device error.
    ///
    /// Errors: as `nvte_cublas_gemm`; negative splits; a counter of another dtype or with fewer words.
    pub fn nvte_cublas_atomic_gemm(A: NVTETensor, B: NVTETensor, D: NVTETensor, bias: NVTETensor, pre_gelu_out: NVTETensor, transa: bool, transb: bool, grad: bool, workspace: NVTETensor, accumulate: bool, use_split_accumulator: bool, math_sm_count: i32, m_split: i32, n_split: i32, gemm_producer: bool, counter: NVTETensor, stream: cudaStream_t);
    /// Computes `num_gemms` products, each as `nvte_cublas_gemm` does, bit for bit; up to 4 of them run
    /// side by side.
    ///
    /// Arrays: `num_gemms` tensors each. `bias` and `pre_gelu_out`, and any tensor in them, may be null.
    /// `workspace` has `min(4, num_gemms)` tensors, of which product i takes number `i % 4`; it may be
    /// null. A `num_gemms` of 0 or less computes nothing.
    ///
    /// Notes: FP8 blocks never need `use_split_accumulator` here.
    ///
    /// Errors: those of `nvte_cublas_gemm`, found before any product begins unless the device has no
    /// algorithm for one of them; null arrays.
    pub fn nvte_multi_tensor_gemm(A: *const NVTETensor, B: *const NVTETensor, D: *mut NVTETensor, bias: *const NVTETensor, pre_gelu_out: *mut NVTETensor, num_gemms: i32, transa: bool, transb: bool, grad: bool, workspace: *mut NVTETensor, accumulate: bool, use_split_accumulator: bool, math_sm_count: i32, stream: cudaStream_t);
    /// Returns the bytes that `workspace_setup` needs for grouped products of `num_tensors` members,
    /// whatever their sizes.
    pub fn nvte_get_grouped_gemm_setup_workspace_size(num_tensors: usize) -> usize;
    /// Computes one product for each member of grouped tensors:
    /// `D[i] = alpha[i] * Bop[i] Aop[i] + beta[i] * C[i]`.
    ///
    /// Shapes: as `nvte_cublas_gemm` has them, with D[i] `[n_i, m_i]`. Sizes are read on the device from
    /// `first_dims` and `last_dims`; where one is missing, all members share that size. Members begin at
    /// `tensor_offsets`, in elements, with `num_tensors` entries or one more, or without it follow each
    /// other without gaps. Every grouped tensor has as many members. Sizes are below 2^29, may be 0 and
    /// need no alignment; where k is 0, D[i] is `beta[i] * C[i]`. Elements that belong to no member are
    /// left alone.
    ///
    /// C: null for D, or a group like D with offsets of its own; it is not read where beta is 0.
    ///
    /// Factors: `alpha` and `beta` are Float32 on the device, one for all members or one for each.
    ///
    /// Dtypes: A and B both Float16, both BFloat16, both Float32 (on the CPU backend alone), or FP8 per tensor
    /// (with a scale for each member), in blocks (not 2D by 2D, and with the config's split accumulator) or
    /// MXFP8. Scales of the members follow each other, each padded as those of a tensor alone. D is Float32,
    /// Float16 or BFloat16. Which data of A and B are read: as `nvte_cublas_gemm` says.
    ///
    /// Workspace: `workspace_setup` has `nvte_get_grouped_gemm_setup_workspace_size` bytes, aligned to 16;
    /// `workspace_cublas` has 32 MiB. On CUDA products of MXFP8 whose members have some hundred rows and columns, or
    /// a thousand where A and B are read with `transa` and without `transb`, are up to three times as fast if it has
    /// room for A and B in BFloat16 beside what else is kept there: two bytes for each element, of a list of tensors
    /// rounded up to 256 for each, 1 KiB for each member and 16 KiB.
    ///
    /// Notes: a null config means defaults; its averages are hints. On CUDA this needs compute capability
    /// 9.0 (otherwise `NVTEX_UNSUPPORTED`).
    ///
    /// Errors: different numbers of members; sizes that the host knows and that do not fit; missing data or
    /// scales; other dtypes or scaling modes; workspaces that are too small.
    pub fn nvte_grouped_gemm(A: NVTEGroupedTensor, transa: i32, B: NVTEGroupedTensor, transb: i32, C: NVTEGroupedTensor, D: NVTEGroupedTensor, alpha: NVTETensor, beta: NVTETensor, workspace_setup: NVTETensor, workspace_cublas: NVTETensor, config: NVTEGroupedMatmulConfig, stream: cudaStream_t);
    /// Computes grouped products as `nvte_grouped_gemm` does, with the members of A in a list of tensors.
    ///
    /// The tensors may have any sizes; they share one scaling mode and dtype. Those without data are empty
    /// members.
    pub fn nvte_grouped_gemm_with_discrete_inputA(A_list: *const NVTETensor, num_a_tensors: usize, transa: i32, B: NVTEGroupedTensor, transb: i32, C: NVTEGroupedTensor, D: NVTEGroupedTensor, alpha: NVTETensor, beta: NVTETensor, workspace_setup: NVTETensor, workspace_cublas: NVTETensor, config: NVTEGroupedMatmulConfig, stream: cudaStream_t);
    /// Computes grouped products as `nvte_grouped_gemm` does, with the members of D and of C in lists of
    /// tensors.
    ///
    /// The tensors of a list may have any sizes and share one dtype. C is a null list or has no tensors, or
    /// has as many as D; a null tensor in it stands for that of D.
    pub fn nvte_grouped_gemm_with_discrete_out(A: NVTEGroupedTensor, transa: i32, B: NVTEGroupedTensor, transb: i32, C_list: *const NVTETensor, num_c_tensors: usize, D_list: *mut NVTETensor, num_d_tensors: usize, alpha: NVTETensor, beta: NVTETensor, workspace_setup: NVTETensor, workspace_cublas: NVTETensor, config: NVTEGroupedMatmulConfig, stream: cudaStream_t);
    /// Adds to each row of a grouped tensor the bias of its member: `output[r][c] += bias[g(r)][c]`, in
    /// float32 with one rounding. Row r of all rows belongs to member g(r), as `first_dims` of output says.
    ///
    /// Shapes: output `[rows, cols]`, with members of `cols` columns each that follow each other (offsets
    /// are ignored); bias `[num_tensors, cols]`. Rows that belong to no member are left alone.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, the same for both.
    ///
    /// Errors: other shapes or dtypes; members that differ in columns.
    pub fn nvte_grouped_bias_add(output: NVTEGroupedTensor, bias: NVTEGroupedTensor, stream: cudaStream_t);
    /// Adds biases as `nvte_grouped_bias_add` does, each multiplied by a factor of the row:
    /// `output[r][c] += bias[g(r)][c] * scale[r]`, with one rounding. `scale` is `[rows]` in Float32.
    pub fn nvte_grouped_scaled_bias_add(output: NVTEGroupedTensor, bias: NVTEGroupedTensor, scale: NVTETensor, stream: cudaStream_t);
    /// Widens `n` integers on the device: `dst[i] = src[i]`. The arrays must not overlap.
    pub fn nvte_convert_int32_to_int64(src: *const i32, dst: *mut i64, n: usize, stream: cudaStream_t);
    /// Widens `n` integers on the device and multiplies them: `dst[i] = src[i] * multiplier`, in 64-bit
    /// arithmetic that wraps. Otherwise as `nvte_convert_int32_to_int64`.
    pub fn nvte_convert_int32_to_int64_with_multiplier(src: *const i32, dst: *mut i64, n: usize, multiplier: i64, stream: cudaStream_t);
    /// Computes where members of `last_dim` columns begin and end: `offsets[0] = 0`,
    /// `offsets[i + 1] = last_dim * (first_dims[0] + ... + first_dims[i])`.
    ///
    /// Both are arrays on the device, with `n_groups` and `n_groups + 1` entries, which must not overlap.
    /// Arithmetic wraps in 64 bits.
    pub fn nvte_compute_grouped_tensor_offsets(first_dims: *const i64, offsets: *mut i64, n_groups: usize, last_dim: i64, stream: cudaStream_t);
    /// Computes the softmax of scaled scores over the last dimension.
    ///
    /// What it computes: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale_factor * x`, in float32
    /// (the scale is not rounded to the dtype). A NaN makes its row NaN.
    ///
    /// Shapes: `[b, h, s_q, s_k]`, any sizes; the results may be the input.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, the same for both.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes or shapes; results that overlap the input and are not the input; null or
    /// misaligned pointers.
    pub fn nvte_scaled_softmax_forward(input: NVTETensor, softmax_results: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_scaled_softmax_forward` from its results y and their gradients dy:
    /// `dx = scale_factor * y * (dy - sum(dy * y))`.
    ///
    /// Shapes, dtypes: as the forward pass, the same for all; `output_grads` may be one of the inputs.
    ///
    /// Errors: as the forward pass.
    pub fn nvte_scaled_softmax_backward(incoming_grads: NVTETensor, softmax_results: NVTETensor, output_grads: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes a softmax as `nvte_scaled_softmax_forward` does, with scaled scores of -10000 where the
    /// byte of the mask is exactly 1. A row whose largest scaled score is -10000 becomes 0.
    ///
    /// Shapes: mask `[b or more, 1, s_q, s_k]`, or `[1, 1, s_q, s_k]` for the whole batch. Dtype: Byte.
    pub fn nvte_scaled_masked_softmax_forward(input: NVTETensor, mask: NVTETensor, softmax_results: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_scaled_masked_softmax_forward` as `nvte_scaled_softmax_backward`
    /// does; it needs no mask, because the results of masked scores are 0.
    pub fn nvte_scaled_masked_softmax_backward(incoming_grads: NVTETensor, softmax_results: NVTETensor, output_grads: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes a softmax as `nvte_scaled_softmax_forward` does, over the scores `j <= i` of row i. The
    /// other results are 0, and their scores are not used.
    ///
    /// Shapes: `[b * h, s, s]`.
    pub fn nvte_scaled_upper_triang_masked_softmax_forward(input: NVTETensor, softmax_results: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_scaled_upper_triang_masked_softmax_forward`. They are 0 for `j > i`,
    /// whatever the inputs hold there.
    pub fn nvte_scaled_upper_triang_masked_softmax_backward(incoming_grads: NVTETensor, softmax_results: NVTETensor, output_grads: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes a softmax as `nvte_scaled_softmax_forward` does, over the scores `j <= i + s_k - s_q` of
    /// row i. The other results are 0, and their scores are not used.
    pub fn nvte_scaled_aligned_causal_masked_softmax_forward(input: NVTETensor, softmax_results: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_scaled_aligned_causal_masked_softmax_forward`. They are 0 for
    /// `j > i + s_k - s_q`, whatever the inputs hold there.
    pub fn nvte_scaled_aligned_causal_masked_softmax_backward(incoming_grads: NVTETensor, softmax_results: NVTETensor, output_grads: NVTETensor, scale_factor: f32, stream: cudaStream_t);
    /// Drops elements at random, and writes which ones were kept: `y = keep ? cast(x / (1 - p)) : 0`.
    ///
    /// Mask: element e is bit `e % 8` (1: kept) of byte `e / 8`. It is dropped if its random byte is less
    /// than `floor(256 p)`, so p counts in steps of 1/256, while the factor `1 / (1 - p)` is not rounded.
    /// The random bytes come from Philox 4x32-10, so that the seed and offset of `rng_state` determine the
    /// mask: 16 elements use four words at the stream position `offset` of the sequence `e / 16`.
    ///
    /// Shapes: any with the same number of elements n; the output may be the input. The mask has
    /// `ceil(n / 8)` bytes of any dtype, whose bits after the last element are set to 0. `rng_state` is
    /// `[2]` on the device.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, the same for both, or from Float8E4M3 or Float8E5M2 with a
    /// `scale_inv`, which multiplies x; `rng_state` Int64 (seed, offset).
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes or sizes; p not in [0, 1); null or misaligned pointers.
    ///
    /// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
    pub fn nvte_dropout_fwd(input: NVTETensor, output: NVTETensor, mask: NVTETensor, rng_state: NVTETensor, dropout_probability: f32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_dropout_fwd` from its mask: `dx = keep ? cast(dy / (1 - p)) : 0`.
    ///
    /// Shapes, dtypes, errors: as the forward pass, without FP8; `grad_input` may be `grad_output`.
    pub fn nvte_dropout_bwd(grad_output: NVTETensor, mask: NVTETensor, grad_input: NVTETensor, dropout_probability: f32, stream: cudaStream_t);
    /// Adds a bias, drops elements at random and adds a residual, in one pass:
    /// `y = cast(residual + (keep ? (x + bias) / (1 - p) : 0))`.
    ///
    /// What it computes: mask and factor are those of `nvte_dropout_fwd`. Sums and product are rounded to
    /// Float32, the result once more.
    ///
    /// Gradients: `nvte_dropout_bwd` turns those of the result into those of x. Those of the residual are
    /// those of the result, and those of the bias the sums of those of x over the rows.
    ///
    /// Shapes: input `[..., cols]`; residual and output with as many elements (output may be either); bias
    /// `[cols]`, or null or an unset tensor for none; mask and `rng_state` as `nvte_dropout_fwd`.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, the same for input, bias, residual and output.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: as `nvte_dropout_fwd`.
    pub fn nvtex_bias_dropout_add(input: NVTETensor, bias: NVTETensor, residual: NVTETensor, output: NVTETensor, mask: NVTETensor, rng_state: NVTETensor, dropout_probability: f32, stream: cudaStream_t);
    /// Rotates pairs of elements of each head by the angles of its position (rotary embedding).
    ///
    /// What it computes: `y_j = x_j cos(a_j) - x_p sin(a_j)` and `y_p = x_p cos(a_p) + x_j sin(a_p)`, for
    /// `j < d2 / 2` with `p = j + d2 / 2`, or with `interleaved` for even j with `p = j + 1`. Elements from
    /// d2 on are copied. The angles a (radians) of position i of sequence n are row
    /// `i + start_positions[n]` of freqs (without start positions: row i).
    ///
    /// Context parallelism: with `cp_size > 1` a rank has the chunks `cp_rank` and
    /// `2 * cp_size - 1 - cp_rank` of the `2 * cp_size` equal chunks of each sequence, one after the other.
    ///
    /// Shapes: by format `NVTE_SBHD` `[s, b, h, d]`, `NVTE_BSHD` `[b, s, h, d]`, or `NVTE_THD` `[t, h, d]`,
    /// where sequence n has the tokens from `cu_seqlens[n] / cp_size` to `cu_seqlens[n + 1] / cp_size`
    /// (tokens of no sequence are not written). The strides are those of the input, in elements, and not
    /// negative (`NVTE_THD` ignores `stride_b`). The output is contiguous, and may be the input if that is
    /// contiguous, too. freqs is `[S_max, 1, 1, d2]` and has every row that is asked for; `cu_seqlens`
    /// `[b + 1 or more]`; `start_positions` `[b or more]`, or no data for none.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, the same for both; freqs Float32; cu_seqlens and
    /// start_positions Int32.
    ///
    /// Notes: nothing is written to empty tensors.
    ///
    /// Errors: other dtypes, formats or sizes; a d2 that is odd or too large; odd s with `cp_size > 1`;
    /// null or misaligned pointers.
    ///
    /// Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
    pub fn nvte_fused_rope_forward(input: NVTETensor, cu_seqlens: NVTETensor, freqs: NVTETensor, start_positions: NVTETensor, output: NVTETensor, qkv_format: NVTE_QKV_Format, interleaved: bool, cp_size: i32, cp_rank: i32, s: i32, b: i32, h: i32, d: i32, d2: i32, stride_s_or_t: i32, stride_b: i32, stride_h: i32, stride_d: i32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_fused_rope_forward`: `dx_j = dy_j cos(a_j) + dy_p sin(a_p)` and
    /// `dx_p = dy_p cos(a_p) - dy_j sin(a_j)`. The strides are those of `output_grads`; all else is as in
    /// the forward pass.
    pub fn nvte_fused_rope_backward(output_grads: NVTETensor, cu_seqlens: NVTETensor, freqs: NVTETensor, start_positions: NVTETensor, input_grads: NVTETensor, qkv_format: NVTE_QKV_Format, interleaved: bool, cp_size: i32, cp_rank: i32, s: i32, b: i32, h: i32, d: i32, d2: i32, stride_s_or_t: i32, stride_b: i32, stride_h: i32, stride_d: i32, stream: cudaStream_t);
    /// Splits groups of heads into queries, keys and values, and rotates queries and keys as
    /// `nvte_fused_rope_forward` does, each by its own freqs (without data in freqs they are copied).
    ///
    /// Shapes: `qkv_input` contiguous `[s, b, h, q + k + v]` (`NVTE_SBHD`) or `[b, s, h, q + k + v]`
    /// (`NVTE_BSHD`), with h groups of q, k and v elements (`qkv_split_arg_list_0`, `_1`, `_2`, multiples
    /// of d); `q_out` contiguous `[.., .., h * q / d, d]`, `k_out` and `v_out` likewise. `start_positions`
    /// are added with any `cp_size`.
    ///
    /// Dtypes, errors: as `nvte_fused_rope_forward`; `NVTE_THD` is not supported.
    pub fn nvte_fused_qkv_rope_forward(qkv_input: NVTETensor, q_freqs: NVTETensor, k_freqs: NVTETensor, start_positions: NVTETensor, q_out: NVTETensor, k_out: NVTETensor, v_out: NVTETensor, qkv_format: NVTE_QKV_Format, interleaved: bool, cp_size: i32, cp_rank: i32, s: i32, b: i32, h: i32, d: i32, d2: i32, qkv_split_arg_list_0: i32, qkv_split_arg_list_1: i32, qkv_split_arg_list_2: i32, stream: cudaStream_t);
    /// Computes the gradients of `nvte_fused_qkv_rope_forward` without start positions, gathered in
    /// `qkv_grad_input`, all of whose elements are written.
    pub fn nvte_fused_qkv_rope_backward(q_grad_out: NVTETensor, k_grad_out: NVTETensor, v_grad_out: NVTETensor, q_freqs: NVTETensor, k_freqs: NVTETensor, qkv_grad_input: NVTETensor, qkv_format: NVTE_QKV_Format, interleaved: bool, cp_size: i32, cp_rank: i32, s: i32, b: i32, h: i32, d: i32, d2: i32, qkv_split_arg_list_0: i32, qkv_split_arg_list_1: i32, qkv_split_arg_list_2: i32, stream: cudaStream_t);
    /// Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does, with a map of bytes.
    pub fn nvte_fused_topk_with_score_function_forward(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, use_pre_softmax: i32, num_groups: i32, group_topk: i32, scaling_factor: f32, score_function: i32, expert_bias: NVTETensor, probs: NVTETensor, routing_map: NVTETensor, intermediate_output: NVTETensor, stream: cudaStream_t);
    /// Chooses `topk` of E experts for each of T tokens by their scores, and computes the probabilities of
    /// the chosen.
    ///
    /// Scores: s of a logit x, in float32, is the sigmoid (`score_function` 0), the softmax over the E
    /// logits (1), or `sqrt(log(1 + exp(x)))` (2, sqrtsoftplus).
    ///
    /// Choice: by `s + expert_bias`. With the softmax there is no bias, and without `use_pre_softmax` the
    /// choice goes by x. There is one order for all functions: the greater comes first; of equal values (0
    /// and -0 are equal) the lower expert; NaN come after all numbers.
    ///
    /// Groups: with `group_topk > 0` only experts of the best `group_topk` of `num_groups` groups of
    /// neighbours are chosen. The score of a group is the sum of its best `topk / group_topk`.
    ///
    /// Probabilities: `probs = cast(scaling_factor * p)` for chosen experts, exactly 0 for others, where p
    /// is
    /// - softmax without `use_pre_softmax`: the softmax of the chosen logits,
    /// - softmax with `use_pre_softmax`: s,
    /// - the other functions: s if `topk` is 1, otherwise `s / (sum s + 1e-20)` over the chosen.
    ///
    /// `intermediate_output`, which the backward pass reads: s (sigmoid, softmax with `use_pre_softmax`), x
    /// (sqrtsoftplus), or p for chosen and -Inf for other experts (softmax without). A logit of -Inf has
    /// the softmax 0, unless all are -Inf.
    ///
    /// Shapes: logits, probs, `intermediate_output` `[T, E]`; `expert_bias` `[E]`, or unset for none;
    /// `routing_map` `[T, E]` bytes of 0 and 1, or `[T, ceil(E / 8)]` with expert e in bit `e % 8` of byte
    /// `e / 8`. T may be 0; neither E nor `T * E` has a limit.
    ///
    /// Dtypes: logits Float32, Float16 or BFloat16, probs the same; `expert_bias` any of these;
    /// `intermediate_output` Float32; the map one byte an element. Outputs may declare other dtypes if they
    /// have enough bytes. No output may overlap anything.
    ///
    /// Errors: other shapes or dtypes; a `topk` that is not in 1 to E; groups that do not divide E or
    /// `topk`, or exceed either; an unknown function or format; null or misaligned pointers.
    ///
    /// Source of the groups: DeepSeek-V3 Technical Report (2024).
    pub fn nvte_fused_topk_with_score_function_forward_v2(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, use_pre_softmax: i32, num_groups: i32, group_topk: i32, scaling_factor: f32, score_function: i32, expert_bias: NVTETensor, probs: NVTETensor, routing_map: NVTETensor, routing_map_format: NVTERoutingMapFormat, intermediate_output: NVTETensor, stream: cudaStream_t);
    /// Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does, and writes their numbers,
    /// best first, instead of a map.
    ///
    /// Shapes: `topk_indices` `[T, topk]`. Dtypes: Int16 (for E up to 32767), Int32 or Int64.
    pub fn nvte_fused_topk_with_score_function_forward_with_indices(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, use_pre_softmax: i32, num_groups: i32, group_topk: i32, scaling_factor: f32, score_function: i32, expert_bias: NVTETensor, probs: NVTETensor, topk_indices: NVTETensor, intermediate_output: NVTETensor, stream: cudaStream_t);
    /// Chooses experts as `nvte_fused_topk_with_score_function_forward_v2` does with the sigmoid and a
    /// bias, and writes what the next bias is made from (quantile balancing): how far each score is from
    /// being chosen.
    ///
    /// What it computes: `cutoff[t]` is the greatest `s + expert_bias` of the token that was not chosen.
    /// With `NVTE_QB_HISTOGRAM_FUSED_ATOMIC`, `nvte_qb_histogram_accumulate` of the scores s follows; with
    /// `NVTE_QB_HISTOGRAM_TWO_KERNEL` the histogram is left alone.
    ///
    /// Shapes: `expert_bias` `[E]`, cutoff `[T]`, histogram `[E, bins]`, `bin_bounds` `[2]` (lower, upper)
    /// on the device; others as in `nvte_fused_topk_with_score_function_forward_v2`. `topk` is less than E.
    ///
    /// Dtypes: bias, cutoff and bounds Float32; histogram Int32.
    ///
    /// Errors: as `nvte_fused_topk_with_score_function_forward_v2`; bounds that are not finite with lower <
    /// upper. To read them the call waits for the stream, so a graph cannot capture it.
    pub fn nvte_fused_topk_with_score_function_forward_qb_v2(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, scaling_factor: f32, expert_bias: NVTETensor, probs: NVTETensor, routing_map: NVTETensor, routing_map_format: NVTERoutingMapFormat, intermediate_output: NVTETensor, cutoff: NVTETensor, histogram: NVTETensor, bin_bounds: NVTETensor, histogram_mode: NVTEQBHistogramMode, stream: cudaStream_t);
    /// Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_v2` does, but does not read the
    /// bounds, and so does not wait.
    pub fn nvte_fused_topk_with_score_function_forward_qb_v2_unchecked(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, scaling_factor: f32, expert_bias: NVTETensor, probs: NVTETensor, routing_map: NVTETensor, routing_map_format: NVTERoutingMapFormat, intermediate_output: NVTETensor, cutoff: NVTETensor, histogram: NVTETensor, bin_bounds: NVTETensor, histogram_mode: NVTEQBHistogramMode, stream: cudaStream_t);
    /// Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_v2` does, and writes their
    /// numbers as `nvte_fused_topk_with_score_function_forward_with_indices` does.
    pub fn nvte_fused_topk_with_score_function_forward_qb_with_indices(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, scaling_factor: f32, expert_bias: NVTETensor, probs: NVTETensor, topk_indices: NVTETensor, intermediate_output: NVTETensor, cutoff: NVTETensor, histogram: NVTETensor, bin_bounds: NVTETensor, histogram_mode: NVTEQBHistogramMode, stream: cudaStream_t);
    /// Chooses experts as `nvte_fused_topk_with_score_function_forward_qb_with_indices` does, but does not
    /// read the bounds, and so does not wait.
    pub fn nvte_fused_topk_with_score_function_forward_qb_with_indices_unchecked(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, scaling_factor: f32, expert_bias: NVTETensor, probs: NVTETensor, topk_indices: NVTETensor, intermediate_output: NVTETensor, cutoff: NVTETensor, histogram: NVTETensor, bin_bounds: NVTETensor, histogram_mode: NVTEQBHistogramMode, stream: cudaStream_t);
    /// Counts in a histogram how far the scores of all experts are from the cutoffs of their tokens.
    ///
    /// What it computes: for every token t and expert e,
    /// `b = floor(((cutoff[t] - raw_scores[t, e]) - lower) * scale)` with `scale = bins / (upper - lower)`,
    /// 0 for NaN, limited to `[0, bins - 1]`; then `histogram[e, b] += 1`.
    ///
    /// Shapes: `raw_scores` `[T, E]`, cutoff `[T]`, `bin_bounds` `[2]` (lower, upper) on the device,
    /// histogram `[E, bins]` with any number of bins.
    ///
    /// Dtypes: Float32; histogram Int32.
    ///
    /// Notes: nothing is written for empty tensors. To read the bounds the call waits for the stream, so a
    /// graph cannot capture it.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers; bounds that are not finite with lower <
    /// upper.
    pub fn nvte_qb_histogram_accumulate(raw_scores: NVTETensor, cutoff: NVTETensor, bin_bounds: NVTETensor, histogram: NVTETensor, stream: cudaStream_t);
    /// Counts as `nvte_qb_histogram_accumulate` does, but does not read the bounds, and so does not wait.
    pub fn nvte_qb_histogram_accumulate_unchecked(raw_scores: NVTETensor, cutoff: NVTETensor, bin_bounds: NVTETensor, histogram: NVTETensor, stream: cudaStream_t);
    /// Computes gradients as `nvte_fused_topk_with_score_function_backward_v2` does, with a map of bytes.
    pub fn nvte_fused_topk_with_score_function_backward(routing_map: NVTETensor, intermediate_output: NVTETensor, grad_probs: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, use_pre_softmax: i32, scaling_factor: f32, score_function: i32, grad_logits: NVTETensor, stream: cudaStream_t);
    /// Computes the gradients of the logits of `nvte_fused_topk_with_score_function_forward_v2`. The bias
    /// gets none.
    ///
    /// What it computes: with `g = scaling_factor * grad_probs` and sums over the chosen experts, in
    /// float32,
    /// - sigmoid and sqrtsoftplus (score y): if `topk > 1`, `S = sum y + 1e-20`, `D = sum g y` and
    ///   `g = g / S - D / S^2`; then `g y (1 - y)` for the sigmoid, or `g f / (2 y + 1e-20)` for
    ///   sqrtsoftplus, where f is 1 for x > 20, otherwise sigmoid(x);
    /// - softmax (probability y): `y (g - sum g y)`; with `use_pre_softmax` for all experts, where g is 0
    ///   for those that were not chosen.
    ///
    /// The gradients of other experts are 0, whatever the inputs hold there. Every element is written.
    ///
    /// Shapes: as the forward pass. A byte of the map that is not 0 marks a chosen expert.
    ///
    /// Dtypes: `grad_logits` Float32, Float16 or BFloat16; `grad_probs` is read as the same;
    /// `intermediate_output` Float32.
    ///
    /// Errors: as the forward pass.
    pub fn nvte_fused_topk_with_score_function_backward_v2(routing_map: NVTETensor, routing_map_format: NVTERoutingMapFormat, intermediate_output: NVTETensor, grad_probs: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, use_pre_softmax: i32, scaling_factor: f32, score_function: i32, grad_logits: NVTETensor, stream: cudaStream_t);
    /// Computes gradients as `nvte_fused_topk_with_score_function_backward_v2` does, from the numbers of
    /// the chosen experts.
    ///
    /// Shapes, dtypes: `topk_indices` as `nvte_fused_topk_with_score_function_forward_with_indices` writes
    /// them, each expert at most once a token. Numbers that belong to no expert are ignored.
    pub fn nvte_fused_topk_with_score_function_backward_with_indices(topk_indices: NVTETensor, intermediate_output: NVTETensor, grad_probs: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, use_pre_softmax: i32, scaling_factor: f32, score_function: i32, grad_logits: NVTETensor, stream: cudaStream_t);
    /// Computes scores as `nvte_fused_score_for_moe_aux_loss_forward_v2` does, with a map of bytes.
    pub fn nvte_fused_score_for_moe_aux_loss_forward(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, score_function: i32, scores: NVTETensor, routing_map: NVTETensor, intermediate_output: NVTETensor, stream: cudaStream_t);
    /// Computes the scores of all experts for the loss of their balance, and a map of the best.
    ///
    /// What it computes: `scores = s / (sum s + 1e-20)` over the E experts for sigmoid and sqrtsoftplus,
    /// and the softmax as it is. The map marks the `topk` greatest, in the order of
    /// `nvte_fused_topk_with_score_function_forward_v2`. `intermediate_output` is written: s of the sigmoid
    /// and of the softmax, x of sqrtsoftplus.
    ///
    /// Shapes: logits, scores and `intermediate_output` `[T, E]`; the map as in
    /// `nvte_fused_topk_with_score_function_forward_v2`. T may be 0.
    ///
    /// Dtypes: logits Float32, Float16 or BFloat16. Scores are written in the dtype of the logits if they
    /// declare it, otherwise as Float32. `intermediate_output` is written as Float32. Tensors that are
    /// written as Float32 must have the bytes for that.
    ///
    /// Errors: as `nvte_fused_topk_with_score_function_forward_v2`.
    pub fn nvte_fused_score_for_moe_aux_loss_forward_v2(logits: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, score_function: i32, scores: NVTETensor, routing_map: NVTETensor, routing_map_format: NVTERoutingMapFormat, intermediate_output: NVTETensor, stream: cudaStream_t);
    /// Computes the gradients of the logits of `nvte_fused_score_for_moe_aux_loss_forward_v2`.
    ///
    /// What it computes: as `nvte_fused_topk_with_score_function_backward_v2` with all experts chosen, a
    /// factor of 1, and the normalization for any `topk`, which is not used.
    ///
    /// Shapes: `[T, E]`; T may be 0.
    ///
    /// Dtypes: `grad_logits` Float32, Float16 or BFloat16; `grad_scores` Float32 or the dtype of
    /// `grad_logits`; `intermediate_output` Float32.
    ///
    /// Errors: other shapes or dtypes; an unknown function; null or misaligned pointers.
    pub fn nvte_fused_score_for_moe_aux_loss_backward(intermediate_output: NVTETensor, grad_scores: NVTETensor, num_tokens: i32, num_experts: i32, topk: i32, score_function: i32, grad_logits: NVTETensor, stream: cudaStream_t);
    /// Computes the loss of the balance of experts.
    ///
    /// What it computes: `aux_loss = cast(C * sum_j (sum_i probs[i, j]) * tokens_per_expert[j])` with
    /// `C = num_experts * coeff / topk / total_num_tokens / total_num_tokens`, from left to right, in
    /// float32 in a fixed order. `Const_buf` becomes C and the loss before the cast.
    ///
    /// Shapes: probs `[num_rows, num_cols]`, with `num_cols` a multiple of `num_experts`;
    /// `tokens_per_expert` `[num_cols]`; `aux_loss` one element; `Const_buf` two or more. `num_rows` may be
    /// 0: then the loss is 0.
    ///
    /// Dtypes: probs Float32, Float16 or BFloat16; `aux_loss` is written as the same; `tokens_per_expert`
    /// Int16, Int32, Int64, BFloat16 or Float32; `Const_buf` Float32.
    ///
    /// Errors: other shapes or dtypes; null or misaligned pointers.
    ///
    /// Source: Fedus et al., Switch Transformers (2021).
    pub fn nvte_fused_moe_aux_loss_forward(probs: NVTETensor, tokens_per_expert: NVTETensor, total_num_tokens: i32, num_experts: i32, num_rows: i32, num_cols: i32, topk: i32, coeff: f32, aux_loss: NVTETensor, Const_buf: NVTETensor, stream: cudaStream_t);
    /// Computes the loss of `nvte_fused_moe_aux_loss_forward` with the number of tokens on the device,
    /// which is read when the work runs. `total_num_tokens` is one Int64.
    pub fn nvte_fused_moe_aux_loss_forward_graph_safe(probs: NVTETensor, tokens_per_expert: NVTETensor, total_num_tokens: NVTETensor, num_experts: i32, num_rows: i32, num_cols: i32, topk: i32, coeff: f32, aux_loss: NVTETensor, Const_buf: NVTETensor, stream: cudaStream_t);
    /// Computes the gradients of the probabilities of `nvte_fused_moe_aux_loss_forward`:
    /// `grad_probs[i, j] = cast((C * tokens_per_expert[j]) * grad_aux_loss)`, with C in `Const_buf`.
    ///
    /// Shapes: `Const_buf` one or more, `tokens_per_expert` `[num_cols]`, `grad_aux_loss` one element,
    /// `grad_probs` `[num_rows, num_cols]`. `num_rows` may be 0.
    ///
    /// Dtypes: `grad_aux_loss` Float32, Float16 or BFloat16; `grad_probs` is written as the same; others as
    /// in the forward pass.
    ///
    /// Errors: as the forward pass.
    pub fn nvte_fused_moe_aux_loss_backward(Const_buf: NVTETensor, tokens_per_expert: NVTETensor, num_rows: i32, num_cols: i32, grad_aux_loss: NVTETensor, grad_probs: NVTETensor, stream: cudaStream_t);
    /// Normalizes each row to mean 0 and variance 1, and applies a weight and a bias (LayerNorm).
    ///
    /// What it computes, in float32 with one rounding: `mu = mean(x)`,
    /// `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)` and `z = g * (rsigma * (x - mu)) + beta`, where g is
    /// `gamma`, or `gamma + 1` with `zero_centered_gamma`.
    ///
    /// Shapes: x and z `[N, H]`, gamma and beta `[H]`, mu and rsigma `[N]`. N may be 0.
    ///
    /// Dtypes: x, gamma and beta each Float32, Float16 or BFloat16, beta that of gamma; mu and rsigma
    /// Float32. z is one of these types, or Float8E4M3 or Float8E5M2 in any scaling mode, as which it is
    /// cast by the rules of `nvte_quantize` (per tensor: with row-wise data).
    ///
    /// Amax: `amax` of z, if it has one, is raised to the largest `|z|`: of the rounded values for Float32,
    /// Float16 and BFloat16, of the values before scaling for FP8.
    ///
    /// Workspace: if it has no elements, the call gives it the shape that is needed (dtype Byte) and does
    /// nothing else. Otherwise it must have that many bytes, which depend on the other shapes and on
    /// `multiprocessorCount`, the number of multiprocessors that the call may keep busy.
    ///
    /// Overlaps: row-wise z may be x if their elements have the same size. No output overlaps anything
    /// otherwise.
    ///
    /// Notes: mu and rsigma are always written.
    ///
    /// Errors: other dtypes or shapes; a negative or NaN epsilon; `multiprocessorCount` below 1; null or
    /// misaligned pointers.
    ///
    /// Source: Ba, Kiros, Hinton, Layer Normalization (2016).
    pub fn nvte_layernorm_fwd(x: NVTETensor, gamma: NVTETensor, beta: NVTETensor, epsilon: f32, z: NVTETensor, mu: NVTETensor, rsigma: NVTETensor, workspace: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Computes the gradients of `nvte_layernorm_fwd`, from its x, mu and rsigma.
    ///
    /// What it computes: with `y = rsigma * (x - mu)` and `d = g * dz`, `dx = rsigma * (d - mean(d * y) * y
    /// - mean(d))` with means over the row, and `dgamma = sum(dz * y)`, `dbeta = sum(dz)` over the rows.
    /// Sums are in float32, in an order that depends on shapes, dtypes and `multiprocessorCount` alone.
    ///
    /// Shapes: dz, x and dx `[N, H]`, gamma, dgamma and dbeta `[H]`, mu and rsigma `[N]`. N may be 0.
    ///
    /// Dtypes: x and gamma each Float32, Float16 or BFloat16; dx that of x; dz, dgamma and dbeta that of
    /// gamma; mu and rsigma Float32.
    ///
    /// Overlaps: dx may be dz or x if their dtypes are equal. No output overlaps anything otherwise.
    ///
    /// Workspace, errors: as `nvte_layernorm_fwd`.
    pub fn nvte_layernorm_bwd(dz: NVTETensor, x: NVTETensor, mu: NVTETensor, rsigma: NVTETensor, gamma: NVTETensor, dx: NVTETensor, dgamma: NVTETensor, dbeta: NVTETensor, workspace: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Divides each row by its root mean square, and applies a weight (RMSNorm).
    ///
    /// What it computes: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`, `z = g * (rsigma * x)`. All else is as
    /// in `nvte_layernorm_fwd`.
    ///
    /// Source: Zhang, Sennrich, Root Mean Square Layer Normalization (2019).
    pub fn nvte_rmsnorm_fwd(x: NVTETensor, gamma: NVTETensor, epsilon: f32, z: NVTETensor, rsigma: NVTETensor, workspace: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Computes the gradients of `nvte_rmsnorm_fwd`, from its x and rsigma.
    ///
    /// What it computes: with `y = rsigma * x` and `d = g * dz`, `dx = rsigma * (d - mean(d * y) * y)` and
    /// `dgamma = sum(dz * y)`. All else is as in `nvte_layernorm_bwd`.
    pub fn nvte_rmsnorm_bwd(dz: NVTETensor, x: NVTETensor, rsigma: NVTETensor, gamma: NVTETensor, dx: NVTETensor, dgamma: NVTETensor, workspace: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Computes the gradients of `nvte_rmsnorm_fwd`, and adds to dx another gradient that reaches x beside
    /// the normalization.
    ///
    /// `add` has the shape of dz and the dtype of gamma; it is added before dx is rounded, and dx may be
    /// add, too. All else is as in `nvte_rmsnorm_bwd`.
    ///
    /// Errors: also while `nvte_enable_zero_centered_gamma_in_weight_dtype` is on and
    /// `nvte_enable_cudnn_norm_bwd` is off.
    pub fn nvte_rmsnorm_bwd_add(dz: NVTETensor, x: NVTETensor, add: NVTETensor, rsigma: NVTETensor, gamma: NVTETensor, dx: NVTETensor, dgamma: NVTETensor, workspace: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Sets a process-wide switch that stands for cuDNN in forward functions; it is off unless
    /// `NVTE_NORM_FWD_USE_CUDNN=1`.
    ///
    /// This library needs no cuDNN and computes the same either way. While the switch is on, Float32,
    /// Float16 and BFloat16 outputs may have no amax, and `nvte_enable_zero_centered_gamma_in_weight_dtype`
    /// has an effect on forward functions.
    pub fn nvte_enable_cudnn_norm_fwd(enable: bool);
    /// Sets a process-wide switch that stands for cuDNN in backward functions; it is off unless
    /// `NVTE_NORM_BWD_USE_CUDNN=1`. While it is on, `nvte_enable_zero_centered_gamma_in_weight_dtype` has
    /// an effect on backward functions.
    pub fn nvte_enable_cudnn_norm_bwd(enable: bool);
    /// Sets a process-wide switch that rounds `gamma + 1` to the dtype of gamma, with MXFP8 outputs or
    /// where cuDNN is enabled; it is off unless `NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE=1`.
    pub fn nvte_enable_zero_centered_gamma_in_weight_dtype(enable: bool);
    /// Adds a residual and normalizes in one pass: `sum = x + residual`, rounded to the dtype of x, then
    /// `nvte_layernorm_fwd` of `sum`.
    ///
    /// The gradient is `nvtex_layernorm_bwd_add` with `sum` for x. residual and sum have the shape and
    /// dtype of x; sum may be x or residual. No workspace is needed.
    pub fn nvtex_residual_layernorm_fwd(x: NVTETensor, residual: NVTETensor, gamma: NVTETensor, beta: NVTETensor, epsilon: f32, sum: NVTETensor, z: NVTETensor, mu: NVTETensor, rsigma: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Adds a residual and normalizes in one pass: as `nvtex_residual_layernorm_fwd`, with
    /// `nvte_rmsnorm_fwd`. The gradient is `nvte_rmsnorm_bwd_add` with `sum` for x.
    pub fn nvtex_residual_rmsnorm_fwd(x: NVTETensor, residual: NVTETensor, gamma: NVTETensor, epsilon: f32, sum: NVTETensor, z: NVTETensor, rsigma: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Computes the gradients of `nvte_layernorm_fwd`, and adds to dx another gradient that reaches x
    /// beside the normalization.
    ///
    /// `add` has the shape and dtype of dz; it is added before dx is rounded, and dx may be add, too. All
    /// else is as in `nvte_layernorm_bwd`.
    pub fn nvtex_layernorm_bwd_add(dz: NVTETensor, x: NVTETensor, add: NVTETensor, mu: NVTETensor, rsigma: NVTETensor, gamma: NVTETensor, dx: NVTETensor, dgamma: NVTETensor, dbeta: NVTETensor, workspace: NVTETensor, multiprocessorCount: i32, zero_centered_gamma: bool, stream: cudaStream_t);
    /// Copies matrices bit by bit and adds rows of zeros: each output has the rows of its input, then zeros
    /// up to `padded_num_rows_list[i]` rows.
    ///
    /// Shapes: inputs `[rows_i, cols_i]`, outputs `[padded_num_rows_list[i], cols_i]`. An input may have no
    /// rows (then the output is all zeros), and the lists may be empty. The lists and the numbers are on
    /// the host.
    ///
    /// Dtypes: any but Float4E2M1, the same for all.
    ///
    /// Errors: other shapes or dtypes; fewer rows than the input has; an output that overlaps its input;
    /// null or misaligned pointers. Nothing is written if one tensor is wrong.
    pub fn nvte_multi_padding(num_tensors: usize, input_list: *const NVTETensor, output_list: *mut NVTETensor, padded_num_rows_list: *const i32, stream: cudaStream_t);
    /// Copies the first `unpadded_num_rows_list[i]` rows of matrices, which undoes `nvte_multi_padding`.
    ///
    /// Shapes: inputs `[rows_i, cols_i]`, outputs `[unpadded_num_rows_list[i], cols_i]`.
    ///
    /// Dtypes: as `nvte_multi_padding`.
    ///
    /// Errors: as `nvte_multi_padding`; more rows than the input has.
    pub fn nvte_multi_unpadding(num_tensors: usize, input_list: *const NVTETensor, output_list: *mut NVTETensor, unpadded_num_rows_list: *const i32, stream: cudaStream_t);
    /// Copies the rows of tokens to the rows of their experts, or computes the gradients of
    /// `nvte_unpermute`.
    ///
    /// Forward, without data in `input_fwd`: `sorted_row_id` lists the slots `t * topK + k` in the order of
    /// their experts. For the slot at place i, `row_id_map[k, t] = i`, or -1 from `num_out_tokens` on, and
    /// `output[i] = input[t]`, bit by bit. `prob` and `prob_grad` are not used.
    ///
    /// Gradients, with data in `input_fwd`, which is the input of `nvte_unpermute`; input holds the
    /// gradients of its output, and the map is an input:
    /// `output[row_id_map[k, t]] = cast(input[t] * prob[t, k])` and
    /// `prob_grad[t, k] = sum over c of input[t, c] * input_fwd[row_id_map[k, t], c]`, or 0 where there is
    /// no row, in float32 in a fixed order. Without `prob`, input is copied and `prob_grad` is not used.
    ///
    /// Shapes: input `[num_rows, num_cols]`, output and `input_fwd` `[num_out_tokens, num_cols]`,
    /// `sorted_row_id` `[num_rows * topK]`, `row_id_map` `[topK, num_rows]`, `prob` and `prob_grad`
    /// `[num_rows, topK]`. Larger tensors will do, and so will any number of columns and any topK. Absent
    /// tensors may be null.
    ///
    /// Dtypes: Float32, Float16 or BFloat16 for rows; Int32 for ids; Float32 for probabilities.
    ///
    /// Notes: outputs may not overlap anything. Nothing is written to empty tensors.
    ///
    /// Errors: other dtypes; tensors that are too small; null or misaligned pointers.
    pub fn nvte_permute(input: NVTETensor, output: NVTETensor, sorted_row_id: NVTETensor, row_id_map: NVTETensor, prob: NVTETensor, prob_grad: NVTETensor, input_fwd: NVTETensor, num_rows: i32, topK: i32, num_cols: i32, num_out_tokens: i32, stream: cudaStream_t);
    /// Sums the rows of the experts of each token; it is also the gradient of `nvte_permute`.
    ///
    /// What it computes: `output[t] = cast(sum over k of input[row_id_map[k, t]] * prob[t, k])` in float32,
    /// k ascending, over those k that have a row (an id of 0 or more). Without `prob` there is no factor. A
    /// token without rows becomes 0.
    ///
    /// Shapes, dtypes, errors: as `nvte_permute`, with an output of `[num_rows, num_cols]`.
    pub fn nvte_unpermute(input: NVTETensor, output: NVTETensor, row_id_map: NVTETensor, prob: NVTETensor, num_rows: i32, topK: i32, num_cols: i32, stream: cudaStream_t);
    /// Sorts pairs of a key and a value by their keys as unsigned numbers, ascending. Equal keys keep their
    /// order, and negative keys come last.
    ///
    /// Two calls: with a null `temp_storage`, `*temp_storage_bytes` (on the host) becomes the number of
    /// bytes that the second call needs. The second call is given that much memory on the device or more,
    /// with its size in `*temp_storage_bytes`.
    ///
    /// Shapes: `[num_items]`, at most 2^31 - 1. The outputs may not overlap anything.
    ///
    /// Notes: the function takes no stream. The work runs in the default stream of the device, and no graph
    /// can capture it.
    ///
    /// Errors: null or misaligned pointers; more items; outputs that overlap anything; too little memory.
    pub fn nvte_device_radix_sort_pairs(temp_storage: *mut c_void, temp_storage_bytes: *mut usize, keys_in: *mut i32, keys_out: *mut i32, values_in: *mut i32, values_out: *mut i32, num_items: usize);
    /// Computes the Euclidean norm of all tensors of a list together, and with `per_tensor` of each.
    ///
    /// What it computes: `ret = sqrt(sum x^2)` over all elements, `ret_per_tensor[t]` over those of tensor
    /// t, in Float32 or better, in a fixed order. `noop_flag` becomes 1 if the sum of squares of some part
    /// is not finite; it is not read. The norm of empty tensors, or of no tensor, is 0.
    ///
    /// Lists: x.
    ///
    /// Scratch: `output`, 320 or more entries. With `per_tensor` also `output_per_tensor`, of
    /// `num_tensors_per_list * max_chunks_per_tensor` entries, which the caller sets to 0, where
    /// `max_chunks_per_tensor >= ceil(n / chunk_size)` for the n elements of each tensor. Without
    /// `per_tensor`, `output_per_tensor`, `ret_per_tensor` and `max_chunks_per_tensor` are ignored.
    ///
    /// Dtypes: x Float32, Float16 or BFloat16, all tensors the same; scratch and results Float32; the flag
    /// Int32.
    ///
    /// Errors: other dtypes; a wrong number of lists; scratch that is too small; null or misaligned
    /// pointers; `chunk_size` below 1.
    pub fn nvte_multi_tensor_l2norm_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, output: NVTETensor, output_per_tensor: NVTETensor, ret: NVTETensor, ret_per_tensor: NVTETensor, per_tensor: i32, max_chunks_per_tensor: i32, stream: cudaStream_t);
    /// Computes the norms of `nvte_multi_tensor_l2norm_cuda` for `x * inv_scale`, where `inv_scale` is one
    /// Float32 on the device. x is not changed.
    pub fn nvte_multi_tensor_unscale_l2norm_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, output: NVTETensor, output_per_tensor: NVTETensor, ret: NVTETensor, ret_per_tensor: NVTETensor, inv_scale: NVTETensor, per_tensor: i32, max_chunks_per_tensor: i32, stream: cudaStream_t);
    /// Takes one step of Adam (`mode` 0: weight decay is part of the gradient) or AdamW (other modes: it
    /// acts on the parameter).
    ///
    /// What it computes, in Float32, in this order of operations: in mode 0 `g += weight_decay * p`;
    /// `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
    /// `u = (m * (1 / b1)) / (sqrt(v * (1 / b2)) + epsilon)`; in other modes `u += weight_decay * p`;
    /// `p = p - lr * u`. With `bias_correction` 1, `b1 = 1 - beta1^step` and `b2 = 1 - beta2^step`,
    /// computed in Float64, otherwise both are 1. The caller counts the steps, from 1. Subnormal numbers
    /// are kept.
    ///
    /// Lists: g, p, m, v, or with a fifth list Float32 masters, which are read and updated in place of p; p
    /// is then only written. Every tensor of the other lists has at least as many elements as that of list
    /// 0.
    ///
    /// Dtypes: g and p each Float32, Float16 or BFloat16; m and v both Float32 or both BFloat16.
    ///
    /// Notes: `noop_flag` is not used, `chunk_size` has no influence. Nothing is written for empty tensors
    /// or empty lists.
    ///
    /// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
    /// misaligned pointers; a step below 1 with bias correction; `chunk_size` below 1.
    ///
    /// Source: Kingma, Ba, Adam (2014); Loshchilov, Hutter, Decoupled Weight Decay Regularization (2017).
    pub fn nvte_multi_tensor_adam_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, lr: f32, beta1: f32, beta2: f32, epsilon: f32, step: i32, mode: i32, bias_correction: i32, weight_decay: f32, stream: cudaStream_t);
    /// Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with Float32 masters that are stored
    /// in two halves.
    ///
    /// The fifth list holds the low 16 bits of each master (Int16). p (BFloat16) holds its high half, plus
    /// 1 if the low half is negative, so that p is the master rounded to nearest, ties away from 0. Begin
    /// with remainders of 0.
    pub fn nvte_multi_tensor_adam_param_remainder_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, lr: f32, beta1: f32, beta2: f32, epsilon: f32, step: i32, mode: i32, bias_correction: i32, weight_decay: f32, stream: cudaStream_t);
    /// Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with FP8 parameters and Float32
    /// masters.
    ///
    /// What it computes: also `p = cast(master * scale)`, saturating (without a scale: 1),
    /// `amax = max(amax, max|master|)`, NaN ignored, and `scale_inv = 1 / scale`. The scale is not changed.
    ///
    /// Lists: g, p, m, v, master, scale, amax, scale_inv; the last three have one Float32 for each tensor,
    /// or a null pointer.
    ///
    /// Dtypes: p `fp8_dtype` (Float8E4M3 or Float8E5M2) or Byte; m and v Float32; g as in
    /// `nvte_multi_tensor_adam_cuda`.
    pub fn nvte_multi_tensor_adam_fp8_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, lr: f32, beta1: f32, beta2: f32, epsilon: f32, step: i32, mode: i32, bias_correction: i32, weight_decay: f32, fp8_dtype: NVTEDType, stream: cudaStream_t);
    /// Takes one step of Adam as `nvte_multi_tensor_adam_cuda` does, with rate, step and scale on the
    /// device, so that a captured graph may change them.
    ///
    /// `lr` and `inv_scale` (Float32) and `step` (Int32) are read when the kernels run. The gradients
    /// become `g * inv_scale`, rounded to their dtype; the step itself uses the product in Float32. If
    /// `noop_flag` (Int32) is 1, nothing is written.
    ///
    /// Lists: g, p, m, v. Dtypes: as `nvte_multi_tensor_adam_cuda`.
    ///
    /// Errors: as `nvte_multi_tensor_adam_cuda`, except that steps below 1 are no error and give a
    /// correction of 0.
    pub fn nvte_multi_tensor_adam_capturable_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, lr: NVTETensor, beta1: f32, beta2: f32, epsilon: f32, step: NVTETensor, mode: i32, bias_correction: i32, weight_decay: f32, inv_scale: NVTETensor, stream: cudaStream_t);
    /// Takes one step of Adam as `nvte_multi_tensor_adam_capturable_cuda` does, with a fifth list of
    /// Float32 masters.
    pub fn nvte_multi_tensor_adam_capturable_master_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, lr: NVTETensor, beta1: f32, beta2: f32, epsilon: f32, step: NVTETensor, mode: i32, bias_correction: i32, weight_decay: f32, inv_scale: NVTETensor, stream: cudaStream_t);
    /// Takes one step of gradient descent with momentum and weight decay.
    ///
    /// What it computes, in Float32, in this order of operations: `g = gradient * scale`; `g += wd * w`
    /// unless `wd_after_momentum`; if `momentum` is not 0,
    /// `b = first_run ? g : b * momentum + (1 - dampening) * g`, then
    /// `g = nesterov ? g + momentum * b : b`; `g += wd * w` if `wd_after_momentum`;
    /// `w = w + cast(-lr * g)`, each cast to the dtype of w. Without momentum b is not touched. If
    /// `noop_flag` (Int32) is not 0, nothing is written.
    ///
    /// Lists: gradient, w, b, or with a fourth list copies of the new w.
    ///
    /// Dtypes: gradient Float32, Float16 or BFloat16; w and b Float32, or without copies also that of the
    /// gradient; copies Float16 or BFloat16.
    ///
    /// Notes: `chunk_size` has no influence. Nothing is written for empty tensors or empty lists.
    ///
    /// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
    /// misaligned pointers; `chunk_size` below 1.
    pub fn nvte_multi_tensor_sgd_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, wd: f32, momentum: f32, dampening: f32, lr: f32, nesterov: i32, first_run: i32, wd_after_momentum: i32, scale: f32, stream: cudaStream_t);
    /// Multiplies tensors by a number: `y = cast(x * scale)`.
    ///
    /// `is_infinite` (Int32) becomes 1 if some x is not finite; it is not read, and results that overflow
    /// do not count.
    ///
    /// Lists: x, y, which may be the same tensors.
    ///
    /// Dtypes: x and y each Float32, Float16 or BFloat16.
    ///
    /// Notes: `chunk_size` has no influence. Nothing is written for empty tensors or empty lists.
    ///
    /// Errors: other dtypes, or several in one list; a wrong number of lists; too few elements; null or
    /// misaligned pointers; `chunk_size` below 1.
    pub fn nvte_multi_tensor_scale_cuda(chunk_size: i32, is_infinite: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, scale: f32, stream: cudaStream_t);
    /// Multiplies tensors by a number as `nvte_multi_tensor_scale_cuda` does, where the scale is one
    /// Float32 on the device.
    pub fn nvte_multi_tensor_scale_tensor_cuda(chunk_size: i32, is_infinite: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, scale: NVTETensor, stream: cudaStream_t);
    /// Computes the FP8 scales of many tensors from their amax.
    ///
    /// What it computes: with `a = max(amax, epsilon)`, `scale = max_fp8 / a`, or 1 if a is 0, Inf or NaN.
    /// An infinite quotient becomes the largest Float32. With `force_pow_2_scales` the mantissa is cleared.
    /// Then `scale_inv = 1 / scale`. Subnormal numbers are kept.
    ///
    /// Lists: amax (not negative), scale, scale_inv, elementwise. Dtypes: Float32.
    ///
    /// Notes: `noop_flag` is not used, `chunk_size` has no influence.
    ///
    /// Errors: other dtypes; a wrong number of lists; too few elements; null or misaligned pointers;
    /// `chunk_size` below 1.
    pub fn nvte_multi_tensor_compute_scale_and_scale_inv_cuda(chunk_size: i32, noop_flag: NVTETensor, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, max_fp8: f32, force_pow_2_scales: i32, epsilon: f32, stream: cudaStream_t);
    /// Computes the E8M0 codes of many tensors from their amax.
    ///
    /// What it computes: the code of `amax / 448` (amax times the Float32 nearest to 1/448), rounded up to
    /// a power of two: 0xff for NaN, 0xfe at most otherwise, 0 for 0.
    ///
    /// Lists: amax (not negative), scale_inv, elementwise. Dtypes: BFloat16; Byte or Float8E8M0.
    ///
    /// Errors: as `nvte_multi_tensor_compute_scale_and_scale_inv_cuda`.
    pub fn nvte_multi_tensor_compute_scale_inv_e8m0_cuda(chunk_size: i32, tensor_lists: *mut *mut NVTETensor, num_tensor_lists: usize, num_tensors_per_list: usize, stream: cudaStream_t);
    /// Computes the largest magnitudes of parts of a matrix, NaN ignored: `outputs[i].amax` is that of the
    /// next `split_sections[i]` rows, and so is `outputs[i].columnwise_amax` if it has an address.
    ///
    /// Parts: there may be any number. Rows after the last part do not count. A part without rows has a
    /// maximum of 0, and its tensor may be null. Without tensors nothing happens.
    ///
    /// Shapes: `[rows, cols]`; rows of each part and columns are multiples of 16.
    ///
    /// Dtypes: BFloat16; maxima one Float32 each.
    ///
    /// Errors: other dtypes or shapes; a part with rows and without `amax`; parts with more rows than the
    /// input; null or misaligned pointers.
    pub fn nvte_group_amax(input: NVTETensor, outputs: *mut NVTETensor, split_sections: *const usize, num_tensors: usize, stream: cudaStream_t);
    /// Computes the largest magnitude of each member of a grouped tensor, NaN ignored, 0 for an empty one:
    /// `output.amax[t]`, and also `output.columnwise_amax[t]` if it has an address.
    ///
    /// Members, dtypes, errors: as `nvte_group_hadamard_transform_amax_graph_safe`.
    pub fn nvte_group_amax_graph_safe(input: NVTEGroupedTensor, output: NVTEGroupedTensor, stream: cudaStream_t);
    /// Transposes a matrix and applies a Hadamard transform to each 16 neighbours of a row of the result.
    ///
    /// What it computes: `output[c][16 i + n] = sum over k of x[k] s[k] (-1)^popcount(k & n) / 4`, with
    /// x[k] = input[16 i + k][c] and s[k] = -1 where bit k of `random_sign_mask_t` is set, otherwise 1;
    /// sums are in Float32. `random_sign_mask` is ignored, because there is no output that is not
    /// transposed.
    ///
    /// Shapes: `[rows, cols]` to `[cols, rows]`, both multiples of 16. Dtypes: BFloat16.
    ///
    /// Notes: nothing happens if the output has no address.
    ///
    /// Errors: other dtypes or shapes; an output that overlaps the input; null or misaligned pointers.
    pub fn nvte_hadamard_transform(input: NVTETensor, output: NVTETensor, random_sign_mask: i32, random_sign_mask_t: i32, stream: cudaStream_t);
    /// Computes the largest magnitude of a matrix and that of its Hadamard transform:
    /// `output.amax = max|x|`, and `output.columnwise_amax` of the result of `nvte_hadamard_transform`,
    /// rounded to BFloat16.
    ///
    /// NaN are ignored, and no elements give 0. Both are set, not raised; one without an address is left
    /// out. The output needs no data.
    ///
    /// Shapes: `[rows, cols]`, both multiples of 16. Dtypes: BFloat16; maxima one Float32 each.
    ///
    /// Errors: other dtypes or shapes; null or misaligned pointers.
    pub fn nvte_hadamard_transform_amax(input: NVTETensor, output: NVTETensor, random_sign_mask: i32, random_sign_mask_t: i32, stream: cudaStream_t);
    /// Computes the largest magnitudes of `nvte_hadamard_transform_amax` for parts of a matrix:
    /// `outputs[i]` takes those of the next `split_sections[i]` rows.
    ///
    /// Parts: there may be any number. Rows after the last part do not count. A part without rows has
    /// maxima of 0, and its tensor may be null. Without tensors nothing happens.
    ///
    /// Shapes: rows of each part and columns are multiples of 16.
    ///
    /// Errors: as `nvte_hadamard_transform_amax`; a part with rows and without both maxima; parts with more
    /// rows than the input.
    pub fn nvte_group_hadamard_transform_amax(input: NVTETensor, outputs: *mut NVTETensor, split_sections: *const usize, num_tensors: usize, random_sign_mask: i32, random_sign_mask_t: i32, stream: cudaStream_t);
    /// Computes the largest magnitudes of `nvte_hadamard_transform_amax` for each member of a grouped
    /// tensor whose rows only the device knows: `output.amax[t]` and `output.columnwise_amax[t]` for member
    /// t, 0 for an empty one.
    ///
    /// Members are those of the output, all with its columns. `tensor_offsets` and `first_dims` are read on
    /// the device; without both the members have the same number of rows. Rows of members and columns are
    /// multiples of 16.
    ///
    /// Maxima: Float32, one for each member, required for each direction in which the output has data, and
    /// for at least one.
    ///
    /// Errors: other dtypes or shapes; different numbers of members; `last_dims`; `first_dims` without
    /// `tensor_offsets`; an input that is smaller than the logical shape; null or misaligned pointers.
    pub fn nvte_group_hadamard_transform_amax_graph_safe(input: NVTEGroupedTensor, output: NVTEGroupedTensor, random_sign_mask: i32, random_sign_mask_t: i32, stream: cudaStream_t);
    /// Casts the Hadamard transform of the columns of a matrix to NVFP4, transposed, to the row-wise fields
    /// of the output.
    ///
    /// What it computes: with x[k] = input[16 i + k][c], `y[n] = sum over k of x[k] hadamard_matrix[k][n]`,
    /// summed in Float32 in pairs and rounded to BFloat16 (with `use_fast_math`: not rounded), then cast as
    /// by `nvte_quantize_v2` with the output's `amax`. A NaN makes its block NaN.
    ///
    /// Shapes: input `[r, n]`, multiples of 16; output.data `[n, r]`, `scale_inv` `[n, r/16]`, compact;
    /// hadamard_matrix `[16, 16]`.
    ///
    /// Dtypes: BFloat16 to Float4E2M1.
    ///
    /// Config (null: defaults): the noop tensor, stochastic rounding with its RNG state, `use_fast_math`.
    ///
    /// Errors: other dtypes or shapes; swizzled scales; null or misaligned pointers.
    pub fn nvte_hadamard_transform_cast_fusion_columnwise(input: NVTETensor, output: NVTETensor, hadamard_matrix: NVTETensor, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts a matrix to NVFP4: row-wise as it is, column-wise its Hadamard transform, as
    /// `nvte_hadamard_transform_cast_fusion_columnwise` computes it. The output has either direction or
    /// both.
    ///
    /// Amax: each direction has its own; an amax of 0 or NaN means a global scale of 1.
    ///
    /// Scales: compact, with r/16 and n/16 of them a line. With `with_gemm_swizzled_scales` they are in the
    /// 128 x 4 tiles of products: then lines are rounded up to a multiple of 128, the scales of a line to a
    /// multiple of 4, and buffers have that size or more.
    ///
    /// Shapes, dtypes, config, errors: as `nvte_hadamard_transform_cast_fusion_columnwise`, except that
    /// scales may be swizzled.
    pub fn nvte_quantize_with_hadamard_transform(input: NVTETensor, output: NVTETensor, hadamard_matrix: NVTETensor, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts parts of a matrix as `nvte_hadamard_transform_cast_fusion_columnwise` casts a whole one: the
    /// next `split_sections[i]` rows to `outputs[i]`, for at most 64 tensors. A tensor without rows is
    /// skipped and may be null.
    pub fn nvte_group_hadamard_transform_cast_fusion_columnwise(input: NVTETensor, outputs: *mut NVTETensor, hadamard_matrix: NVTETensor, split_sections: *const usize, num_tensors: usize, quant_config: NVTEQuantizationConfig, stream: cudaStream_t);
    /// Casts parts of a matrix as `nvte_quantize_with_hadamard_transform` casts a whole one: the next
    /// `split_sections[i]` rows to `outputs[i]`, for at most 64 tensors. A tensor without rows is skipped
    /// and may be null.
    ///
    /// A direction is written if all outputs have its data. The workspace is not used.
    ///
    /// Errors: as `nvte_quantize_with_hadamard_transform`; outputs that differ in
    /// `with_gemm_swizzled_scales`; stochastic rounding without an RNG state.
    pub fn nvte_group_hadamard_transform_cast_fusion(input: NVTETensor, outputs: *mut NVTETensor, hadamard_matrix: NVTETensor, split_sections: *const usize, num_tensors: usize, quant_config: NVTEQuantizationConfig, quant_workspace: NVTETensor, stream: cudaStream_t);
    /// Casts each member of a group as `nvte_quantize_with_hadamard_transform` casts a matrix.
    ///
    /// Members: they have multiples of 128 rows by the `tensor_offsets` of the output, which are read on
    /// the device, or are all of one shape. Rows past the last member are not touched. `amax` and
    /// `columnwise_amax` have one float for each member.
    ///
    /// Layout: row-wise data and scales are those of one matrix. The column-wise data of a member whose
    /// first element is e begin at byte e / 2, and their scales at byte e / 16, each as those of a lone
    /// matrix. Swizzled scales need multiples of 64 columns for row-wise data, of 128 for column-wise data.
    ///
    /// Notes: the workspace is not used.
    ///
    /// Errors: as `nvte_quantize_with_hadamard_transform`; members of different columns; stochastic
    /// rounding without an RNG state.
    pub fn nvte_group_hadamard_transform_cast_fusion_graph_safe(input: NVTEGroupedTensor, output: NVTEGroupedTensor, hadamard_matrix: NVTETensor, quant_config: NVTEQuantizationConfig, quant_workspace: NVTETensor, stream: cudaStream_t);
    /// Creates a context for Newton-Schulz iterations on a matrix that is distributed over `nranks` ranks, of which
    /// there may be one. Then `comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what
    /// `nvtex_communicator_as_nccl` gives, and lives as long as the context; all ranks make the same calls in the same order.
    /// Destroy it with `nvte_cusolvermp_ctx_destroy`.
    ///
    /// Errors: a rank or a number of ranks that is not that of `comm`. Returns null.
    pub fn nvte_cusolvermp_ctx_create(comm: ncclComm_t, nranks: i32, rank: i32) -> *mut NVTECusolverMpCtx;
    /// Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
    pub fn nvte_cusolvermp_ctx_destroy(ctx: *mut NVTECusolverMpCtx);
    /// Iterates `x = a x + b (x x^T) x + c (x x^T)^2 x` in place, with a, b and c of each iteration from
    /// `coefficients`: for coefficients that suit the singular values of x, these come near to 1. x is not
    /// normalised before.
    ///
    /// Shapes: x `[m, n]`, any sizes; of P ranks each has the next ceil(n / P) columns as long as there are some left, in a
    /// matrix of their own; `coefficients` (on the host) `num_coefficients` numbers, which must be
    /// `3 * num_iterations`: a, b, c, a, b, c, ...
    /// Dtypes: Float32, Float16, BFloat16. The three products of an iteration are summed in float32, and rounded to
    /// the dtype of x; products of Float32 are those of `nvte_cublas_gemm`.
    /// On one rank, in 16 bits, only half of each symmetric matrix is computed (on CUDA with compute capability 9.0, a
    /// smaller side in multiples of 16 from about 2064 on, and an x that is aligned to 16 bytes). Then in BFloat16, if one
    /// side of x is at least twice the other, the matrices of two iterations are multiplied before x is. That rounds x
    /// less often, but its matrices more often: the result of five iterations differs by 1 to 6 % of its norm from
    /// the exact one, where it is 1 to 3 % of single iterations, and less than of those if x is nearly singular.
    /// Several ranks add their Gram matrices, `[m, m]` in Float32, once in each iteration, in the order of the ranks.
    /// Memory: the context keeps that of three matrices of the smaller side of x, and of one like x, for each stream;
    /// it is allocated when a call needs more than those before. A captured graph uses it when it is replayed.
    /// Empty x, no iterations: nothing is written.
    /// Errors: other shapes, dtypes or numbers of coefficients; negative sizes; a null or misaligned x.
    pub fn nvte_newton_schulz(ctx: *mut NVTECusolverMpCtx, m: i64, n: i64, x: NVTETensor, num_iterations: i64, coefficients: *const f32, num_coefficients: i64, caller_stream: cudaStream_t);
    /// Creates a context for products whose operands are distributed over `nranks` ranks, of which there may be one.
    /// Then `comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what
    /// `nvtex_communicator_as_nccl` gives, and lives as long as the context; all ranks make the same calls in the same order.
    /// Destroy it with `nvte_comm_gemm_ctx_destroy`.
    ///
    /// Errors: a rank or a number of ranks that is not that of `comm`. Returns null.
    pub fn nvte_comm_gemm_ctx_create(comm: ncclComm_t, nranks: i32, rank: i32) -> *mut NVTECommGemmCtx;
    /// Destroys a context and its memory, which no work and no graph may use any more. Null is ignored.
    pub fn nvte_comm_gemm_ctx_destroy(ctx: *mut NVTECommGemmCtx);
    /// How much of a dimension of `global_size` the context's rank holds, where each of P ranks has ceil(global_size / P) of it
    /// as long as there is something left. 0 for negative sizes.
    pub fn nvte_comm_gemm_numroc(ctx: *mut NVTECommGemmCtx, global_size: i64) -> i64;
    /// `D = Bop Aop` as `nvte_cublas_gemm`, where B is distributed over the rows of `Bop` and gathered from all ranks
    /// first. Each rank computes its columns of D.
    ///
    /// Shapes: as `nvte_cublas_gemm` with m, n and k, which count all ranks. Of P ranks each holds m / P of A and of the
    /// columns of D, and n / P of B; m and n are multiples of P. One rank holds all of A, B and D.
    /// Dtypes, scaling modes, epilogue (`pre_act_out` is `pre_gelu_out`), errors: as `nvte_cublas_gemm`, with
    /// `use_split_accumulator`. The context keeps the workspace for each stream and allocates it when a call needs
    /// more than those before; a captured graph uses it when it is replayed. `bias` and `pre_act_out` may be null.
    /// With several ranks modes have one scale, which all ranks have alike.
    /// `comm_sm_count` (0 or more) and `algo` are hints about communication, which are not used: B is gathered, then
    /// multiplied.
    /// Errors, too: operands that do not have the sizes m, n and k; an unknown `algo`.
    pub fn nvte_all_gather_gemm(ctx: *mut NVTECommGemmCtx, m: i64, n: i64, k: i64, A: NVTETensor, B: NVTETensor, D: NVTETensor, bias: NVTETensor, pre_act_out: NVTETensor, transa: bool, transb: bool, grad: bool, accumulate: bool, comm_sm_count: i32, main_stream: cudaStream_t, algo: NVTECommGemmAlgoType);
    /// As `nvte_all_gather_gemm`, but A and B are distributed along k, the products of all ranks are added, and each
    /// rank gets its rows of D. Of P ranks each holds k / P of A and B and n / P rows of D; n and k are multiples of P. The
    /// products are rounded to the dtype of D, which is Float32, Float16 or BFloat16, and added in Float32 in the order of the
    /// ranks. With several ranks there is no other epilogue than a bias, of which that of rank 0 counts.
    pub fn nvte_gemm_reduce_scatter(ctx: *mut NVTECommGemmCtx, m: i64, n: i64, k: i64, A: NVTETensor, B: NVTETensor, D: NVTETensor, bias: NVTETensor, pre_act_out: NVTETensor, transa: bool, transb: bool, grad: bool, accumulate: bool, comm_sm_count: i32, main_stream: cudaStream_t, algo: NVTECommGemmAlgoType);
    /// As `nvte_gemm_reduce_scatter`, but each rank gets all of D. Where it accumulates, D of rank 0 counts.
    pub fn nvte_gemm_all_reduce(ctx: *mut NVTECommGemmCtx, m: i64, n: i64, k: i64, A: NVTETensor, B: NVTETensor, D: NVTETensor, bias: NVTETensor, pre_act_out: NVTETensor, transa: bool, transb: bool, grad: bool, accumulate: bool, comm_sm_count: i32, main_stream: cudaStream_t, algo: NVTECommGemmAlgoType);
    /// Begins expert parallelism on the current device in a group of `ep_size` ranks, of which there may be one. Then
    /// `ep_comm` is not looked at and may be null. Otherwise it is a communicator of NCCL or what `nvtex_communicator_as_nccl`
    /// gives, and lives until `nvte_ep_shutdown`. Expert e is on rank `e / (num_experts / ep_size)`. Where ranks are threads
    /// of a process, a group is that of the calling thread.
    ///
    /// With several ranks all functions but `nvte_ep_shutdown` and `nvte_ep_handle_mem_size` are called by all ranks in the
    /// same order. Without `drop_on_overflow` they wait on the host for the numbers of rows, so that they cannot be captured in a
    /// graph. With it sizes are fixed, and nothing waits: each pair of ranks exchanges `max_tokens_per_rank` slots, in which a
    /// token is once for all of its experts of a rank, and that rank sums their results before they go back. Under NCCL such
    /// calls can be captured. `max_tokens_per_rank`, `top_k` and all dtypes are then the same on all ranks.
    ///
    /// `max_recv_tokens_per_rank` is the most rows that a dispatch gives; 0: any number. `hidden_dim`,
    /// `max_token_dtype`, `num_comm_sms` and `num_topk` are checked and not used.
    /// Errors: numbers out of range; tokens of less than 16 bytes; `zero_copy` or `drop_on_overflow` without
    /// `max_recv_tokens_per_rank`; a device that has a group; a communicator of another size; `zero_copy`
    /// (`NVTEX_UNSUPPORTED`).
    pub fn nvte_ep_initialize(ep_comm: *mut c_void, group_config: *const NVTEEpGroupConfig);
    /// Ends the groups of all devices. It always succeeds, also without a group.
    pub fn nvte_ep_shutdown();
    /// Bytes of `handle_mem`, device memory of the caller in which a layer keeps the plan of its tokens.
    ///
    /// Errors: `top_k` below 1; no group on the current device; returns 0.
    pub fn nvte_ep_handle_mem_size(layer_cfg: *const NVTEEpLayerConfig) -> usize;
    /// Plans where the tokens of `topk_idx` go, in `handle_mem`.
    ///
    /// An expert gets a row for each token that has chosen it, in the order of ranks and then of tokens, and unless it has
    /// none rows of padding up to a multiple of `dispatch_output_per_expert_alignment`. The experts' rows follow each other.
    /// Shapes: `topk_idx` `[T, top_k]` in Int32 or Int64, where numbers that are no expert stand for none;
    /// `recv_tokens_per_expert` `[num_experts / ep_size]` becomes the rows of each expert of this rank with padding, and
    /// `total_recv_tokens_per_rank` `[1]` their sum: Int32 or Int64, both the same, each may be null or have no
    /// address. `handle_mem`: `nvte_ep_handle_mem_size` bytes, aligned to 8.
    /// Rows beyond `max_recv_tokens_per_rank` do not exist, and `recv_tokens_per_expert` does not count them; the sum
    /// does, so that it says how many were dropped: those of the experts with the highest numbers, of the last ranks and
    /// tokens. Unless `drop_on_overflow` is set they are an error: with several ranks on all of them, with one rank with
    /// `NVTE_CHECK=device`, before anything is written.
    /// Errors: other shapes or dtypes; more tokens than the group's config says; too little memory; outputs that
    /// overlap anything.
    pub fn nvte_ep_prepare(handle_mem: NVTETensor, topk_idx: NVTETensor, recv_tokens_per_expert: NVTETensor, total_recv_tokens_per_rank: NVTETensor, layer_cfg: *const NVTEEpLayerConfig, stream: cudaStream_t);
    /// Copies tokens to the rows of their experts, by the plan in `handle_mem`: `recv_tokens[row] = tokens[t]` and
    /// `recv_topk_weights[row] = topk_weights[t, k]`. All other rows become 0.
    ///
    /// Shapes: tokens `[T, H]`, `recv_tokens` `[R, H]`, of which rows from R on are left out (with several ranks and without
    /// `drop_on_overflow` R is at least the number of rows of the plan that exist); `topk_weights`
    /// `[T, top_k]`, `recv_topk_weights` `[R]`. `topk_idx` is not read and may be null. Without `topk_weights` (null
    /// or no address) there are no weights.
    /// Dtypes: Float32, Float16 or BFloat16; or MXFP8, row-wise, whose rows of scales, not swizzled, are copied as
    /// well; weights are Float32. Windows must be all zero.
    /// Errors: other shapes, dtypes or scaling modes; more tokens than the group's config says; outputs that overlap
    /// anything; windows (`NVTEX_UNSUPPORTED`). With `NVTE_CHECK=device` other sizes than those of the plan.
    pub fn nvte_ep_dispatch(handle_mem: NVTETensor, topk_idx: NVTETensor, tokens: NVTETensor, tokens_win: NVTECommWindow, topk_weights: NVTETensor, topk_weights_win: NVTECommWindow, recv_tokens: NVTETensor, recv_tokens_win: NVTECommWindow, recv_topk_weights: NVTETensor, recv_topk_weights_win: NVTECommWindow, stream: cudaStream_t);
    /// `nvte_ep_prepare` and `nvte_ep_dispatch`, one after the other. Nothing is written if one of them refuses its
    /// arguments.
    pub fn nvte_ep_prepare_and_dispatch(handle_mem: NVTETensor, topk_idx: NVTETensor, tokens: NVTETensor, tokens_win: NVTECommWindow, topk_weights: NVTETensor, topk_weights_win: NVTECommWindow, recv_tokens: NVTETensor, recv_tokens_win: NVTECommWindow, recv_topk_weights: NVTETensor, recv_topk_weights_win: NVTECommWindow, recv_tokens_per_expert: NVTETensor, total_recv_tokens_per_rank: NVTETensor, layer_cfg: *const NVTEEpLayerConfig, stream: cudaStream_t);
    /// `result[t] = cast(sum of expert_out[row] over the rows of token t)` in float32, in the order of its experts;
    /// 0 without rows. Rows that do not exist, also beyond R, do not count. With several ranks and `drop_on_overflow` the sum
    /// over a token's experts of one rank is cast to the dtype, then the sum of these over the ranks, in the order in which
    /// the token has chosen them first.
    ///
    /// Shapes: `expert_out` `[R, H]`, result `[T, H]`. Dtypes: Float32, Float16 or BFloat16, the same for both.
    /// Errors: as `nvte_ep_dispatch`.
    pub fn nvte_ep_combine(handle_mem: NVTETensor, expert_out: NVTETensor, expert_out_win: NVTECommWindow, result: NVTETensor, stream: cudaStream_t);
    /// The gradients of `nvte_ep_dispatch`: `grad_tokens` as `nvte_ep_combine` of grad, and
    /// `grad_topk_weights[t, k] = g_recv_topk_weights[row]`, 0 without a row.
    ///
    /// Shapes: grad `[R, H]`, `grad_tokens` `[T, H]`; `g_recv_topk_weights` `[R]`, `grad_topk_weights` `[T, top_k]`
    /// in Float32.
    /// Errors: as `nvte_ep_dispatch`.
    pub fn nvte_ep_dispatch_bwd(handle_mem: NVTETensor, grad: NVTETensor, grad_win: NVTECommWindow, g_recv_topk_weights: NVTETensor, g_recv_topk_weights_win: NVTECommWindow, grad_tokens: NVTETensor, grad_topk_weights: NVTETensor, stream: cudaStream_t);
    /// The gradient of `nvte_ep_combine`: `grad_expert_out[row] = grad[t]`, and 0 in all other rows. It is
    /// `nvte_ep_dispatch` without weights.
    pub fn nvte_ep_combine_bwd(handle_mem: NVTETensor, grad: NVTETensor, grad_win: NVTECommWindow, grad_expert_out: NVTETensor, grad_expert_out_win: NVTECommWindow, stream: cudaStream_t);
    /// Sets the defaults, which are in the descriptions of the fields, in the first `struct_size` bytes of options.
    pub fn nvtex_cross_entropy_options_init(options: *mut NVTEXCrossEntropyOptions, struct_size: usize);
    /// Computes the cross entropy of logits against one target for each token.
    ///
    /// What it computes: with `l = log sum_v exp(x_v)` of a row x of logits and V columns,
    /// `loss = l - (1 - s) x_target - s / V * sum_v x_v + z l^2`, where s is the label smoothing and z the factor of
    /// the z-loss; in float32, with the row read once. A term with the factor 0 is left out. `total` is the sum of the
    /// losses, or their mean over the targets that are not ignored, whose number is `count`.
    ///
    /// Targets: a token whose target is ignored has loss and logsumexp 0, whatever its logits are. A target that is
    /// neither ignored nor a column makes its loss NaN.
    ///
    /// Shapes: logits `[..., V]`; targets, loss and logsumexp one element for each token; `total` and `count` one
    /// element each. `logsumexp` is what the backward pass needs; it may be null or unset. `total` and `count` must be
    /// null or unset if the reduction is none.
    ///
    /// Dtypes: logits Float32, Float16 or BFloat16; targets Int32 or Int64; all others Float32, which holds numbers of
    /// targets up to 2^24 exactly.
    ///
    /// Options: null stands for the defaults.
    ///
    /// Notes: sums are in a fixed order, so that results are the same in every run.
    ///
    /// Errors: other dtypes or shapes; a vocabulary of which the logits have only a part; label smoothing outside of
    /// [0, 1], a negative z-loss; outputs that overlap anything; null or misaligned pointers.
    pub fn nvtex_cross_entropy_forward(logits: NVTETensor, targets: NVTETensor, loss: NVTETensor, logsumexp: NVTETensor, total: NVTETensor, count: NVTETensor, options: *const NVTEXCrossEntropyOptions, stream: cudaStream_t);
    /// Computes the gradients of `nvtex_cross_entropy_forward` for its logits:
    /// `dx_v = g (exp(x_v - l) (1 + 2 z l) - (v = target ? 1 - s : 0) - s / V)`.
    ///
    /// What it computes: l is the logsumexp, g the gradient of the loss: `grad_loss`, divided by `max(count, 1)` for
    /// the mean. Gradients of ignored targets are 0, those of targets that are no column are NaN. Logits and gradients
    /// may be columns of a divided vocabulary: l is then that of all columns, from `nvtex_cross_entropy_combine`, and V
    /// the size of the whole vocabulary.
    ///
    /// Shapes: `grad_logits` as the logits, which it may be; `grad_loss` one element, or one for each token if the
    /// reduction is none; null or unset for 1. `count` is read for the mean only.
    ///
    /// Dtypes: `grad_logits` as the logits, all others as the forward pass.
    ///
    /// Errors: as the forward pass.
    pub fn nvtex_cross_entropy_backward(logits: NVTETensor, targets: NVTETensor, logsumexp: NVTETensor, grad_loss: NVTETensor, count: NVTETensor, grad_logits: NVTETensor, options: *const NVTEXCrossEntropyOptions, stream: cudaStream_t);
    /// Computes the cross entropy as `nvtex_cross_entropy_forward` does, and replaces the logits by their gradients, as
    /// `nvtex_cross_entropy_backward` computes them.
    ///
    /// Shapes, dtypes, options, errors: as those functions.
    pub fn nvtex_cross_entropy_forward_backward(logits: NVTETensor, targets: NVTETensor, grad_loss: NVTETensor, loss: NVTETensor, logsumexp: NVTETensor, total: NVTETensor, count: NVTETensor, options: *const NVTEXCrossEntropyOptions, stream: cudaStream_t);
    /// Computes what a rank that has some columns of the vocabulary knows of the losses, for
    /// `nvtex_cross_entropy_combine`.
    ///
    /// What it computes: for each token the maximum m of its logits here, `sum_v exp(x_v - m)`, the logit of the
    /// target (0 if that is not among these columns, NaN if it is no column of the vocabulary), and `sum_v x_v`. These
    /// are -Inf, 0, 0 and 0 if the target is ignored.
    ///
    /// Options: `vocabulary_start` and `vocabulary_size` say which columns these are. Targets are numbers of the whole
    /// vocabulary.
    ///
    /// Shapes: partials `[4, tokens]`. Dtypes: partials Float32, others as `nvtex_cross_entropy_forward`.
    ///
    /// Errors: as `nvtex_cross_entropy_forward`; columns beyond the size of the vocabulary.
    pub fn nvtex_cross_entropy_partial(logits: NVTETensor, targets: NVTETensor, partials: NVTETensor, options: *const NVTEXCrossEntropyOptions, stream: cudaStream_t);
    /// Computes losses, as `nvtex_cross_entropy_forward` does, from the partials of all ranks, which the caller has
    /// gathered.
    ///
    /// Shapes: partials `[ranks, 4, tokens]`, the ranks in any order that is the same on all of them; others as
    /// `nvtex_cross_entropy_forward`. Dtypes: as there.
    ///
    /// Options: `vocabulary_size` must be given.
    ///
    /// Errors: as `nvtex_cross_entropy_forward`.
    pub fn nvtex_cross_entropy_combine(partials: NVTETensor, targets: NVTETensor, loss: NVTETensor, logsumexp: NVTETensor, total: NVTETensor, count: NVTETensor, options: *const NVTEXCrossEntropyOptions, stream: cudaStream_t);
    /// Computes the cross entropy of a linear layer, `logits = hidden * weight^T`, and its gradients, without ever
    /// having all logits in memory.
    ///
    /// What it computes: the losses of `nvtex_cross_entropy_forward`; if there is a `grad_hidden`,
    /// `grad_hidden = d * weight`, and if there is a `grad_weight`, `grad_weight = d^T * hidden`, added to what is
    /// there if `accumulate_grad_weight`, where d are the gradients of the logits. Without both only the losses are
    /// computed. It goes through the tokens in parts: logits of a part and their gradients are rounded to the dtype of
    /// `hidden`, and `grad_weight` is rounded to its dtype after each part, so Float32 is best for it.
    ///
    /// Shapes: hidden and `grad_hidden` `[..., h]`; weight and `grad_weight` `[V, h]`; others as
    /// `nvtex_cross_entropy_forward_backward`.
    ///
    /// Dtypes: hidden, weight and `grad_hidden` the same: Float32, Float16 or BFloat16; `grad_weight` any of these;
    /// others as `nvtex_cross_entropy_forward_backward`.
    ///
    /// Workspace: if it has no pointer, its shape and dtype become what the second call needs: about
    /// `workspace_limit` bytes or less, 500 MB if the limit is 0, but no less than 16 tokens' logits. Parts are larger
    /// and the call is faster with more.
    ///
    /// Notes: the host waits for nothing, so that the call can be captured in a CUDA graph. Without tokens
    /// `grad_weight` becomes 0 unless it is accumulated.
    ///
    /// Errors: as `nvtex_cross_entropy_forward`; a workspace that is too small.
    pub fn nvtex_linear_cross_entropy(hidden: NVTETensor, weight: NVTETensor, targets: NVTETensor, grad_loss: NVTETensor, loss: NVTETensor, logsumexp: NVTETensor, total: NVTETensor, count: NVTETensor, grad_hidden: NVTETensor, grad_weight: NVTETensor, accumulate_grad_weight: bool, options: *const NVTEXCrossEntropyOptions, workspace_limit: usize, workspace: NVTETensor, stream: cudaStream_t);
    /// Looks up the rows of tokens in a table, and adds those of their positions in another one:
    /// `output[t] = cast(scale * weight[tokens[t] - vocabulary_start] + position_weight[p])`.
    ///
    /// What it computes: product and sum are rounded to float32, the result once more. The position p is
    /// `positions[t]`, or without positions `t % sequence_length`, t being the number of the row; a length of 0 stands
    /// for the number of rows.
    ///
    /// Divided tables: the weight may be rows `vocabulary_start` and following of a vocabulary of `vocabulary_size`,
    /// which is 0 for the rows of the weight. A token whose row is not here gives a row of zeros (without the position:
    /// give the position table to one rank only), so that the sum over all ranks is the embedding.
    ///
    /// Wrong tokens: those that are not in the vocabulary, and positions that are not in the table, give zeros in place
    /// of the row, and are counted: their number is added to `wrong`, which the caller sets to 0 and reads when it
    /// likes. Without `wrong` nothing tells.
    ///
    /// Shapes: weight `[rows, h]`; `position_weight` `[positions, h]`; output `[..., h]`; tokens and positions one
    /// element for each row of the output; wrong one element. Positions, `position_weight` and wrong may be null or
    /// unset.
    ///
    /// Dtypes: weight and output each Float32, Float16 or BFloat16; `position_weight` as the weight; tokens Int32 or
    /// Int64, positions as tokens; wrong Int32.
    ///
    /// Notes: nothing is written to an empty output.
    ///
    /// Errors: other dtypes or shapes; a vocabulary that ends before the rows of the weight; outputs that overlap
    /// anything; null or misaligned pointers.
    pub fn nvtex_embedding_forward(tokens: NVTETensor, weight: NVTETensor, positions: NVTETensor, position_weight: NVTETensor, output: NVTETensor, wrong: NVTETensor, scale: f32, sequence_length: usize, vocabulary_start: usize, vocabulary_size: usize, stream: cudaStream_t);
    /// Computes the gradients of the tables of `nvtex_embedding_forward`: row k of `grad_weight` is
    /// `scale * sum grad_output[t]` over all t whose token is `vocabulary_start + k`, and row p of
    /// `grad_position_weight` the sum over all t at the position p.
    ///
    /// What it computes: sums are in float32 and in an order that the tokens determine, so that results are the same in
    /// every run; they are added to what is there if `accumulate`, else the other rows become 0. Rows of the gradient
    /// whose token or position has no row here count nowhere.
    ///
    /// Workspace: if it has no pointer, its shape and dtype become what the second call needs.
    ///
    /// Shapes: `grad_output` `[..., h]`; tokens and positions one element for each of its rows; `grad_weight`
    /// `[rows, h]`; `grad_position_weight` `[positions, h]`. Positions and either gradient may be null or unset.
    ///
    /// Dtypes: gradients each Float32, Float16 or BFloat16; tokens and positions each Int32 or Int64.
    ///
    /// Errors: other dtypes or shapes; a workspace that is too small; outputs that overlap anything; null or misaligned
    /// pointers.
    pub fn nvtex_embedding_backward(tokens: NVTETensor, positions: NVTETensor, grad_output: NVTETensor, grad_weight: NVTETensor, grad_position_weight: NVTETensor, accumulate: bool, scale: f32, sequence_length: usize, vocabulary_start: usize, workspace: NVTETensor, stream: cudaStream_t);
    /// Draws one token for each row of logits.
    ///
    /// What it computes: tokens have weights `exp((x - max x) / temperature)`, which are rounded down to multiples of
    /// 2^-31. Of the `top_k` greatest (0: of all) those are kept, in descending order, whose weights come to at least
    /// the part `top_p` of their sum (1: all, and one at least); of equal logits those of lower indices come first. One
    /// of the kept tokens is drawn with a probability that is proportional to its weight. A temperature of 0 takes the
    /// greatest logit. NaN counts as -Inf.
    ///
    /// Random numbers: Philox 4x32-10 with the seed as key and the counter `offset + 2^64 row`, so that a seed and an
    /// offset determine the tokens of each row. A caller who draws again adds 1 to the offset.
    ///
    /// Shapes: logits `[..., V]`; tokens one element for each row; `rng_state` `[2]` (seed, offset) on the device.
    ///
    /// Dtypes: logits Float32, Float16 or BFloat16; tokens Int32; `rng_state` Int64.
    ///
    /// Errors: other dtypes or shapes; a temperature below 0; `top_p` not in (0, 1]; tokens that overlap anything; null
    /// or misaligned pointers.
    ///
    /// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
    pub fn nvtex_sample_tokens(logits: NVTETensor, tokens: NVTETensor, rng_state: NVTETensor, temperature: f32, top_k: usize, top_p: f32, stream: cudaStream_t);
    /// Returns the status of the first call of this thread that has failed since `nvtex_clear_error`, or
    /// NVTEX_OK.
    ///
    /// It is the first one, so that calls that fail as a consequence do not hide the cause. (The name says
    /// "last" for the sake of programs that were built before.) Calls that succeed leave it.
    ///
    /// No function of this library may be called from a signal handler: it may allocate memory or want a
    /// lock that the interrupted thread holds. Messages alone take no lock.
    pub fn nvtex_last_status() -> NVTEXStatus;
    /// Returns the message of the call that `nvtex_last_status` is about: function, argument, what was
    /// expected, what was got. It is empty if no call has failed.
    ///
    /// It is valid until `nvtex_clear_error`. In destructors of a thread that is ending, a fixed text may
    /// stand for it.
    pub fn nvtex_last_error() -> *const c_char;
    /// Forgets the status and the message of this thread.
    pub fn nvtex_clear_error();
    /// Returns the number of calls of this thread that have ever failed; `nvtex_clear_error` does not
    /// change it. With `nvtex_take_error` it tells whether one's own calls failed, whatever failed before.
    pub fn nvtex_error_count() -> u64;
    /// Returns the message of this thread's newest failing call if more than `count` have failed, otherwise
    /// null.
    ///
    /// If the call that `nvtex_last_status` is about came after the first `count` failures, its status is
    /// cleared. So `n = nvtex_error_count()`, calls, and `nvtex_take_error(n)` report failures of these
    /// calls, and leave an earlier error in its place. The message is valid until the thread's next failing
    /// call.
    pub fn nvtex_take_error(count: u64) -> *const c_char;
    /// Sets what failing calls do, for the whole process, and returns the previous mode. Until the first
    /// call `NVTE_ON_ERROR=return|abort|throw` decides; its default is `return`.
    pub fn nvtex_set_error_mode(mode: NVTEXErrorMode) -> NVTEXErrorMode;
    /// Sends the lines that the library writes to `callback` instead of stderr, for the whole process; null sends them
    /// to stderr again.
    ///
    /// The callback gets lines up to `level`, which takes the place of `NVTE_VERBOSE` meanwhile: the level of the line,
    /// an NVTEXLogLevel; the line without its end, valid until the callback returns; and `user`. It is called from any
    /// thread, several at once, in the middle of operators, and does not throw. It may call this library; lines that
    /// this causes go to stderr. After a change another thread may still call the former callback once.
    pub fn nvtex_set_log(callback: Option<unsafe extern "C" fn(level: i32, text: *const c_char, user: *mut c_void)>, level: NVTEXLogLevel, user: *mut c_void);
    /// Says that the process uses this library in place of the one whose ABI it speaks, and returns what
    /// was set before. `libtransformer_engine.so` sets it when it is loaded.
    ///
    /// With it:
    /// - Failing calls throw unless `NVTE_ON_ERROR` or `nvtex_set_error_mode` says otherwise.
    /// - The CPU backend runs only with `NVTE_BACKEND=cpu`.
    /// - Calls that this library could run, but whose refusal programs written for the other one rely on,
    ///   are refused (`nvte_cublas_gemm`).
    /// - Backward passes of attention under a causal mask or in FP8, of up to 1024 keys and without a bias,
    ///   add in a fixed order, as with `deterministic`.
    ///
    /// Set it before the first operator runs, because the backend is chosen there.
    pub fn nvtex_set_drop_in(drop_in: bool) -> bool;
    /// Returns the version of this library, such as "0.1.0".
    pub fn nvtex_version() -> *const c_char;
    /// Returns the version of this library as the number that `NVTE_MAKE_VERSION` makes of it. A program compares it
    /// with `NVTE_VERSION`, the version of the headers that it was compiled with.
    pub fn nvtex_version_number() -> i32;
    /// Returns the domain of the calling thread's operators and memory: "cuda", "cpu", or that of a plugin. It is that
    /// of the process, which is chosen at the first call, unless the thread's policy names another
    /// (`nvtex_policy_push`). It returns null, with an error, if `NVTE_BACKEND` asks for one that cannot run.
    pub fn nvtex_backend_name() -> *const c_char;
    /// Sets the number of threads on which operators of the CPU backend run, for all calls that begin
    /// afterwards; 0 leaves it to `NVTE_NUM_THREADS`, whose default is the number of processors that the
    /// process may use. With 1, operators run on the thread that calls. Results do not depend on it.
    ///
    /// Errors: more than 1024.
    pub fn nvtex_set_num_threads(num_threads: usize);
    /// Returns the number of threads on which operators of the CPU backend run: what was asked for, or less
    /// if the system refuses to create so many. It creates them if they do not exist yet.
    pub fn nvtex_num_threads() -> usize;
    /// Allocates memory of the backend's current device, aligned to 256 bytes. It returns null for 0 bytes,
    /// and null with an error if there is not enough memory.
    pub fn nvtex_malloc(bytes: usize) -> *mut c_void;
    /// Frees memory of `nvtex_malloc`, which has come from the domain that `nvtex_backend_name` names now. Null is
    /// ignored.
    pub fn nvtex_free(ptr: *mut c_void);
    /// Copies bytes from the host to the device, on the stream. The host bytes may be reused on return.
    pub fn nvtex_memcpy_to_device(dst: *mut c_void, src: *const c_void, bytes: usize, stream: cudaStream_t);
    /// Copies bytes from the device to the host, on the stream. Synchronize the stream before you read
    /// them.
    pub fn nvtex_memcpy_to_host(dst: *mut c_void, src: *const c_void, bytes: usize, stream: cudaStream_t);
    /// Copies bytes on the device, on the stream.
    pub fn nvtex_memcpy_on_device(dst: *mut c_void, src: *const c_void, bytes: usize, stream: cudaStream_t);
    /// Creates a tensor with memory of its own on the device, which is not initialized: a tensor as `nvte_create_tensor`
    /// makes it, with one scale for all elements, whose data is memory of `nvtex_malloc`. Destroy it with
    /// `nvtex_array_destroy`. It returns null only with an error.
    pub fn nvtex_array_create(dtype: NVTEDType, shape: *const usize, ndim: usize) -> NVTETensor;
    /// Destroys a tensor of `nvtex_array_create` and its memory, whose data has not been changed since. Null is ignored.
    pub fn nvtex_array_destroy(array: NVTETensor);
    /// Copies bytes of the host to all elements of a tensor, on the stream. The host bytes may be reused on return.
    ///
    /// Errors: a number of bytes that is not the tensor's.
    pub fn nvtex_array_set(array: NVTETensor, host: *const c_void, bytes: usize, stream: cudaStream_t);
    /// Copies all elements of a tensor to the host, behind the work on the stream, and waits for them.
    ///
    /// Errors: a number of bytes that is not the tensor's.
    pub fn nvtex_array_get(array: NVTETensor, host: *mut c_void, bytes: usize, stream: cudaStream_t);
    /// Creates a stream on the current device. On the CPU backend it stands for nothing, because calls
    /// return when their work is done. Null is returned only with an error.
    pub fn nvtex_stream_create() -> cudaStream_t;
    /// Destroys a stream of `nvtex_stream_create`. Null is ignored.
    pub fn nvtex_stream_destroy(stream: cudaStream_t);
    /// Waits until the work on the stream is done. Errors: some of the work failed.
    pub fn nvtex_stream_synchronize(stream: cudaStream_t);
    /// Begins to record a graph: the work that calls put on the stream, which does not run yet. `nvtex_graph_end` ends it.
    ///
    /// Run the same calls once before, because first calls allocate memory and choose implementations. What a recorded
    /// call reads and writes must exist at each replay, and numbers that the host passes stay as they were. This is the
    /// capture of CUDA in its relaxed mode; libraries that capture the stream by themselves see no difference.
    ///
    /// Errors: the default stream; a stream that is being recorded; a backend without graphs, which the CPU backend is.
    pub fn nvtex_graph_begin(stream: cudaStream_t);
    /// Ends the recording of a stream and returns the graph, or null if a call in between was not legal in it.
    pub fn nvtex_graph_end(stream: cudaStream_t) -> NVTEXGraph;
    /// Runs the recorded work on a stream, behind what is there. Replays of one graph do not overlap.
    pub fn nvtex_graph_replay(graph: NVTEXGraph, stream: cudaStream_t);
    /// Destroys a graph. Null is ignored.
    pub fn nvtex_graph_destroy(graph: NVTEXGraph);
    /// Creates `size` ranks for threads of this process: thread r uses `communicators[r]`, and destroys it.
    ///
    /// Memory of calls is that of the creating thread's domain (`nvtex_backend_name`). On a device it is staged through
    /// the host, so that several ranks may have one GPU; such a call waits for its stream.
    ///
    /// Errors: a size that is not 1 to 128.
    pub fn nvtex_communicator_create_local(size: i32, config: *const NVTEXCommunicatorConfig, communicators: *mut NVTEXCommunicator);
    /// Creates rank `rank` of `size` processes (or threads) of this host and this user, which meet by `key`: letters,
    /// digits, points, hyphens and underscores that no other run uses at the time. Collective: waits for all of them.
    ///
    /// The name of the shared memory exists only until all have come; what a run leaves that has been killed before is
    /// taken over by the next one with the key. Memory of calls is as in `nvtex_communicator_create_local`.
    ///
    /// Errors: ranks that do not come in time or have another `size` or config; a rank or a key that is taken; too little
    /// shared memory (`/dev/shm`). Returns null.
    pub fn nvtex_communicator_create_shared(key: *const c_char, rank: i32, size: i32, config: *const NVTEXCommunicatorConfig) -> NVTEXCommunicator;
    /// Creates rank `rank` of `size` of the program's own ranks, such as those of MPI. Collective: the ranks compare their
    /// configs. The functions and `user` stay valid until the communicator and what is split from it are destroyed.
    ///
    /// Time limits and ended ranks are the matter of the program's functions: the library only reports what they return.
    ///
    /// Errors: no `all_gather`. Returns null.
    pub fn nvtex_communicator_create_callbacks(collectives: *const NVTEXCollectives, rank: i32, size: i32, config: *const NVTEXCommunicatorConfig) -> NVTEXCommunicator;
    /// Writes the 128 bytes by which ranks on several hosts meet under NCCL: one rank makes them, and the program brings
    /// them to the others.
    ///
    /// Errors: NCCL (`libnccl.so.2`, 2.19 or later) that cannot be loaded; `NVTE_NCCL_LIBRARY` names its file.
    pub fn nvtex_communicator_nccl_unique_id(id: *mut u8);
    /// Creates rank `rank` of `size` under NCCL, each with a GPU of its own: the current device of the thread.
    /// Collective. `id` are the 128 bytes of `nvtex_communicator_nccl_unique_id`, the same on all ranks.
    ///
    /// Ranks hear of each other's end over TCP connections to rank 0, on a port that the system chooses: all survivors of a rank that is
    /// killed have an error that names it, within a second, and within 4 seconds if its host is gone. Where rank 0 cannot be reached it
    /// is noticed by the time limit or by NCCL.
    ///
    /// Calls are queued on their stream. Returns null after an error.
    pub fn nvtex_communicator_create_nccl(id: *const u8, rank: i32, size: i32, config: *const NVTEXCommunicatorConfig) -> NVTEXCommunicator;
    /// The same for processes of one host, which meet by `key` as in `nvtex_communicator_create_shared`: no other library
    /// is needed to start them. A watchdog sees ranks that are killed, and ends the work of NCCL that waits for them.
    pub fn nvtex_communicator_create_nccl_shared(key: *const c_char, rank: i32, size: i32, config: *const NVTEXCommunicatorConfig) -> NVTEXCommunicator;
    /// Uses a communicator of NCCL that the program has, such as that of a framework. It is not destroyed, and must live as
    /// long as the one returned. The program orders its own collectives on it against those of this library, alike on all
    /// ranks.
    pub fn nvtex_communicator_create_from_nccl(comm: ncclComm_t, config: *const NVTEXCommunicatorConfig) -> NVTEXCommunicator;
    /// Creates the communicator of all ranks that a launcher has started on this host: `nvtex-run`, `torchrun` (RANK,
    /// WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or `mpirun` of Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE,
    /// PMIX_NAMESPACE). Without their variables the process is the only rank. `NVTEX_RENDEZVOUS` takes the place of the
    /// names by which they meet.
    ///
    /// On CUDA each rank has chosen its device before.
    ///
    /// Errors: ranks on several hosts; those of `nvtex_communicator_create_shared` and
    /// `nvtex_communicator_create_nccl_shared`. Returns null.
    pub fn nvtex_communicator_from_environment(config: *const NVTEXCommunicatorConfig) -> NVTEXCommunicator;
    /// Makes communicators of the ranks that have the same `color`, ordered by `key`, and by rank where keys are equal.
    /// Collective. A rank with a negative color belongs to none, and gets null.
    ///
    /// `name` is for messages; null: the name of this one with the color. A failure of this communicator is one of those
    /// split from it, not the other way round. They may be destroyed in any order.
    pub fn nvtex_communicator_split(communicator: NVTEXCommunicator, color: i32, key: i32, name: *const c_char) -> NVTEXCommunicator;
    /// Returns the rank of a communicator's handle; 0 after an error.
    pub fn nvtex_communicator_rank(communicator: NVTEXCommunicator) -> i32;
    /// Returns the number of ranks; 0 after an error.
    pub fn nvtex_communicator_size(communicator: NVTEXCommunicator) -> i32;
    /// Returns the name of a communicator, valid until the handle is destroyed; null after an error.
    pub fn nvtex_communicator_name(communicator: NVTEXCommunicator) -> *const c_char;
    /// Returns null while a communicator is sound, otherwise the message of its first failure: a rank has ended, has not
    /// come in time, has asked for something else than the others, or has aborted. Never waits, and is no error itself.
    ///
    /// The text is valid until the thread's next call of this function.
    pub fn nvtex_communicator_status(communicator: NVTEXCommunicator) -> *const c_char;
    /// Ends a communicator for all ranks: calls that wait, and all later ones, fail with `reason`. Any thread may call it.
    pub fn nvtex_communicator_abort(communicator: NVTEXCommunicator, reason: *const c_char);
    /// Destroys a handle. Null is ignored. Ranks that still call get an error which says so. Under NCCL the caller has
    /// waited for its streams before.
    pub fn nvtex_communicator_destroy(communicator: NVTEXCommunicator);
    /// Divides the ranks of a communicator into groups. Collective: each group is a split of `world`, which may be destroyed
    /// afterwards.
    ///
    /// Errors: sizes whose product is not the size of `world`, an `ep` that does not divide dp x cp, sizes that are not those
    /// of other ranks. Returns null.
    pub fn nvtex_grid_create(world: NVTEXCommunicator, config: *const NVTEXGridConfig) -> NVTEXGrid;
    /// Makes a grid of communicators that a program or its framework has.
    ///
    /// `communicators[g]` is that of the NVTEXGridGroup g; there are NVTEX_GRID_GROUPS. Null: the rank is alone in the group, or
    /// the group is that of another entry, because the ranks that would be added are none (NVTEX_GRID_DP_CP is NVTEX_GRID_DP
    /// where sequences are not shared). They must not be destroyed before the grid and the contexts that have it.
    ///
    /// Errors: groups whose sizes do not go together. Returns null.
    pub fn nvtex_grid_create_from_communicators(communicators: *const NVTEXCommunicator) -> NVTEXGrid;
    /// Returns the communicator of a group, also of a group of one rank. The handle is the grid's: do not destroy it. It is
    /// valid until the grid is destroyed. Null after an error.
    pub fn nvtex_grid_communicator(grid: NVTEXGrid, group: NVTEXGridGroup) -> NVTEXCommunicator;
    /// Destroys a grid and the handles of its groups. Contexts that have it keep what they need. Null is ignored.
    pub fn nvtex_grid_destroy(grid: NVTEXGrid);
    /// Gathers `count` elements of each rank into `recv`, which has those of all ranks in their order.
    ///
    /// Dtypes: any of whole bytes. In place if `send` is the own part of `recv`; otherwise both lie apart.
    ///
    /// This is true of all collectives: every rank of the communicator makes the same calls in the same order, with equal
    /// counts and dtypes. `name` says what is exchanged, such as the name of a layer: it is in messages, and the ranks
    /// compare it; null: nothing. Wrong arguments of one rank are an error there, before others hear of the call. Other
    /// errors end the communicator, on all ranks; outputs then mean nothing. On threads and shared memory a call waits
    /// until it is done, and cannot be captured in a graph.
    pub fn nvtex_all_gather(communicator: NVTEXCommunicator, send: *const c_void, recv: *mut c_void, count: usize, dtype: NVTEDType, name: *const c_char, stream: cudaStream_t);
    /// Reduces part r of every rank's `send` into `recv` of rank r: `count` elements of each of as many parts as there are
    /// ranks.
    ///
    /// Dtypes: kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16. In place if `recv` is the own part of `send`. Otherwise as
    /// `nvtex_all_gather`.
    pub fn nvtex_reduce_scatter(communicator: NVTEXCommunicator, send: *const c_void, recv: *mut c_void, count: usize, dtype: NVTEDType, reduction: NVTEXReduction, name: *const c_char, stream: cudaStream_t);
    /// Reduces `count` elements of all ranks; each gets the result. In place if `send` is `recv`. Otherwise as
    /// `nvtex_reduce_scatter`.
    pub fn nvtex_all_reduce(communicator: NVTEXCommunicator, send: *const c_void, recv: *mut c_void, count: usize, dtype: NVTEDType, reduction: NVTEXReduction, name: *const c_char, stream: cudaStream_t);
    /// Sends part r of `send` to rank r, which has it as the part of this rank in its `recv`: `count` elements a part. Not
    /// in place. Otherwise as `nvtex_all_gather`.
    pub fn nvtex_all_to_all(communicator: NVTEXCommunicator, send: *const c_void, recv: *mut c_void, count: usize, dtype: NVTEDType, name: *const c_char, stream: cudaStream_t);
    /// Sends `count` elements of rank `root` to all others. Otherwise as `nvtex_all_gather`.
    pub fn nvtex_broadcast(communicator: NVTEXCommunicator, data: *mut c_void, count: usize, dtype: NVTEDType, root: i32, name: *const c_char, stream: cudaStream_t);
    /// Returns when all ranks have made this call. Under NCCL without `check` that is true of the streams, not of the
    /// hosts.
    pub fn nvtex_barrier(communicator: NVTEXCommunicator, name: *const c_char, stream: cudaStream_t);
    /// Sends and receives messages between pairs of ranks, all of them at the same time: only the ranks of a message make
    /// this call. Messages from one rank to another one arrive in the order of their calls and lists; the receiver says
    /// the same count, dtype and name as the sender.
    ///
    /// Errors: a message that differs from what is received, which ends the communicator; ranks, dtypes and pointers.
    pub fn nvtex_exchange(communicator: NVTEXCommunicator, transfers: *const NVTEXTransfer, num_transfers: usize, name: *const c_char, stream: cudaStream_t);
    /// Returns a pointer that functions of this library take where they ask for an `ncclComm_t`, so that they work with ranks
    /// of any kind: threads, processes, or those of the program's functions. NCCL itself does not know it. Null after an
    /// error.
    ///
    /// It is valid as long as the communicator.
    pub fn nvtex_communicator_as_nccl(communicator: NVTEXCommunicator) -> ncclComm_t;
    /// Sets the defaults of a kind of recipe in the first `struct_size` bytes of a config.
    ///
    /// Errors: null; a `struct_size` that has no room for the field `struct_size` itself; an unknown kind.
    pub fn nvtex_recipe_config_init(config: *mut NVTEXRecipeConfig, struct_size: usize, kind: NVTEXRecipeKind);
    /// Creates a recipe, which never changes. Destroy it with `nvtex_recipe_destroy`; contexts that use it
    /// keep it alive.
    ///
    /// Errors: fields that are unknown, out of range, or do not go together; each is named.
    pub fn nvtex_recipe_create(config: *const NVTEXRecipeConfig) -> NVTEXRecipe;
    /// Destroys a recipe. Null is ignored.
    pub fn nvtex_recipe_destroy(recipe: NVTEXRecipe);
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_context_config_init(config: *mut NVTEXContextConfig, struct_size: usize);
    /// Creates a context: all state of FP8 training that modules share.
    ///
    /// There are no globals, so each thread and device may have one. A context is for one thread at a time,
    /// and for one stream or for streams that wait for each other. Null config: defaults.
    pub fn nvtex_context_create(config: *const NVTEXContextConfig) -> NVTEXContext;
    /// Destroys a context. Modules and tapes that are left keep its memory until they are destroyed. Null
    /// is ignored.
    pub fn nvtex_context_destroy(context: NVTEXContext);
    /// Spreads the modules of a context over the ranks of a grid, once and before there are modules: what their configs say
    /// of `parallel` holds then, and updates of delayed scaling take the maxima of all ranks that have the same layers.
    ///
    /// The context keeps what it needs of the grid, whose handle may be destroyed.
    ///
    /// Errors: a context that has a grid, modules or an `all_reduce_max`.
    pub fn nvtex_context_set_grid(context: NVTEXContext, grid: NVTEXGrid);
    /// Gives unused memory of the context back to the device until `bytes_to_keep` bytes of it are left,
    /// and returns the bytes that went back (0 for a context with an allocator of the program).
    ///
    /// Memory that has not been used for longest goes first. The device waits for its work. What passes
    /// that were captured in graphs use stays, so that these graphs may be replayed as long as their
    /// modules, tapes and caches live.
    ///
    /// Do not call it while a stream of the process is being captured, because the device refuses to free
    /// memory then.
    pub fn nvtex_context_trim(context: NVTEXContext, bytes_to_keep: usize) -> usize;
    /// Tells how much device memory modules, tapes and caches of a context have: from its pool, or from the program's
    /// allocator.
    pub fn nvtex_context_memory(context: NVTEXContext, memory: *mut NVTEXMemoryUse);
    /// Opens a region: forward passes and creations until the matching `nvtex_context_end` follow the
    /// recipe. Regions nest; the innermost counts.
    ///
    /// `flags` is the sum of `NVTEX_CONTEXT_*`; the recipe may be null if there are none. `amax_group` is
    /// handed to `all_reduce_max`; null means this rank alone. Backward passes follow the recipe of their
    /// forward pass, wherever they run. Without NVTEX_CONTEXT_ENABLED products are in high precision:
    /// `nvtex_module_precision` says what a pass has used, and so does `NVTE_VERBOSE=dispatch`.
    pub fn nvtex_context_begin(context: NVTEXContext, recipe: NVTEXRecipe, flags: u32, amax_group: *mut c_void);
    /// Closes the innermost region. Errors: no region is open.
    pub fn nvtex_context_end(context: NVTEXContext);
    /// Updates the histories and scales that forward passes use, for all layers with delayed scaling, after
    /// reducing their maxima over the group. Call it once after the forward passes of a step.
    ///
    /// Layers that did not run stay as they are
    /// (`nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction`). The call may be captured in
    /// a graph (an `update_interval` counts at capture).
    pub fn nvtex_context_forward_update(context: NVTEXContext, stream: cudaStream_t);
    /// Updates the histories and scales that backward passes use, as `nvtex_context_forward_update` does,
    /// after the backward passes of a step.
    pub fn nvtex_context_backward_update(context: NVTEXContext, stream: cudaStream_t);
    /// Copies scales and history of a layer with delayed scaling to the host, and returns the length of the
    /// history. It waits for the stream.
    ///
    /// `layer` is a module's name, of `LayerNormMLP` followed by `.fc1` or `.fc2`.
    ///
    /// Shapes: `scales` `[n]`, `history` `[length, n]` with n = 3 (forward) or 2 (backward). Row 0 is the
    /// current maximum, the last row the newest of the others. Either may be null.
    ///
    /// Errors: no such layer; fewer than `length * n` floats (`history_size`).
    pub fn nvtex_context_delayed_scaling(context: NVTEXContext, layer: *const c_char, pass: NVTEXPass, scales: *mut f32, history: *mut f32, history_size: usize, stream: cudaStream_t) -> usize;
    /// Returns the bytes that `nvtex_context_save` writes.
    pub fn nvtex_context_state_size(context: NVTEXContext) -> usize;
    /// Writes the state of delayed scaling of all layers, by name, to host memory and returns its bytes. It
    /// waits for the stream. The format is the same on every machine, and has a version and a checksum.
    ///
    /// Errors: fewer than `nvtex_context_state_size` bytes.
    pub fn nvtex_context_save(context: NVTEXContext, buffer: *mut c_void, bytes: usize, stream: cudaStream_t) -> usize;
    /// Restores what `nvtex_context_save` wrote: at once for layers that have run, for others when they
    /// first run. Histories of another length keep their newest maxima.
    ///
    /// Errors: bytes that are not such a state, have another version, are damaged or cut off; scales that
    /// are not finite or not above 0; maxima that are not finite or below 0, as they are after a step that
    /// has overflowed. Nothing is changed then.
    pub fn nvtex_context_load(context: NVTEXContext, buffer: *const c_void, bytes: usize, stream: cudaStream_t);
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_norm_config_init(config: *mut NVTEXNormConfig, struct_size: usize);
    /// Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd` or `nvte_rmsnorm_fwd` with parameters.
    ///
    /// Input and output: `[..., hidden_size]`. Parameters: `weight`, and with LayerNorm `bias`.
    pub fn nvtex_norm_create(context: NVTEXContext, config: *const NVTEXNormConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_linear_config_init(config: *mut NVTEXLinearConfig, struct_size: usize);
    /// Creates a linear layer, `y = x W^T + b`.
    ///
    /// Shapes: input `[..., in_features]`, output `[..., out_features]`. Under a recipe, features must be
    /// multiples of 16 (MXFP8: 32); rows may be any number.
    ///
    /// Parameters: `weight` `[out_features, in_features]`, `bias` `[out_features]`.
    ///
    /// Over several ranks the mode says what they share. Columns: the output is `[..., out_features / ranks]`, and parameters
    /// have that many rows. Rows: the input is `[..., in_features / ranks]`, as many columns has the weight, and the bias is
    /// whole. If ranks share rows (`sequence_parallel`), the input of a layer that shares outputs, and the output of one that
    /// shares inputs, have the rows of this rank, the other one has all rows.
    ///
    /// Notes: on CUDA the FP8 product of the weight's gradient is faster if rows are a multiple of 16, and
    /// with FP8 blocks the other products if rows are a multiple of 8. Otherwise a kernel of this library
    /// computes them, and a product with a bias takes `4 * rows * out_features` bytes more of the context's
    /// memory.
    pub fn nvtex_linear_create(context: NVTEXContext, config: *const NVTEXLinearConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_layernorm_linear_config_init(config: *mut NVTEXLayerNormLinearConfig, struct_size: usize);
    /// Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the
    /// recipe allows it.
    ///
    /// As `nvtex_linear_create`; a second output, if not null, takes the norm's result, and its gradient
    /// counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `weight`, `bias`.
    pub fn nvtex_layernorm_linear_create(context: NVTEXContext, config: *const NVTEXLayerNormLinearConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_grouped_linear_config_init(config: *mut NVTEXGroupedLinearConfig, struct_size: usize);
    /// Creates linear layers for rows that are sorted by layer, such as those of experts: the first
    /// `m_splits[0]` rows (of the step) go through the first layer, and so on.
    ///
    /// Shapes: input `[..., in_features]`, output `[..., out_features]`. Each split keeps the rules for
    /// rows of `nvtex_linear_create`. A part without rows gets gradients of 0.
    ///
    /// Parameters: for each part e `weight<e>` and `bias<e>`, as those of `nvtex_linear_create`. The name
    /// of a part for `nvtex_context_delayed_scaling` is the module's followed by `.<e>`.
    ///
    /// Over several ranks each has a part of every weight, as of `nvtex_linear_create`; rows and splits are the same on all
    /// of them (no `sequence_parallel`).
    ///
    /// Errors: splits that are not `num_gemms`, or do not sum to the rows.
    pub fn nvtex_grouped_linear_create(context: NVTEXContext, config: *const NVTEXGroupedLinearConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_layernorm_mlp_config_init(config: *mut NVTEXLayerNormMLPConfig, struct_size: usize);
    /// Creates a norm followed by a linear layer, an activation and a second linear layer.
    ///
    /// Shapes: input and output `[..., hidden_size]`; a second output, if not null, takes the norm's
    /// result, and its gradient counts. Sizes: as `nvtex_linear_create`.
    ///
    /// Parameters: `layer_norm_weight`, `layer_norm_bias`, `fc1_weight`
    /// `[ffn_hidden_size (gated: twice that), hidden_size]`, `fc1_bias`, `fc2_weight`
    /// `[hidden_size, ffn_hidden_size]`, `fc2_bias`.
    pub fn nvtex_layernorm_mlp_create(context: NVTEXContext, config: *const NVTEXLayerNormMLPConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_attention_config_init(config: *mut NVTEXAttentionConfig, struct_size: usize);
    /// Creates an attention of queries, keys and values, in high precision unless a recipe has `fp8_dpa`.
    ///
    /// Shapes: inputs `[s, b, h, d]` (NVTE_SBHD), `[b, s, h, d]` (NVTE_BSHD) or `[t, h, d]` (NVTE_THD),
    /// with `num_attention_heads` heads of queries and `num_gqa_groups` of keys and values. The output has
    /// as many elements as there are rows of heads times `head_dim_v`.
    ///
    /// Parameters: with a learnable softmax `softmax_offset`, Float32 `[num_attention_heads]`.
    ///
    /// Notes: masks with padding take their lengths from the step. The tape refers to the output, too.
    pub fn nvtex_attention_create(context: NVTEXContext, config: *const NVTEXAttentionConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_multihead_attention_config_init(config: *mut NVTEXMultiheadAttentionConfig, struct_size: usize);
    /// Creates projections to queries, keys and values, rotary embeddings, attention, and a projection of
    /// its output.
    ///
    /// Shapes: input and output `[s, b, hidden_size]` (NVTE_SBHD), `[b, s, hidden_size]` (NVTE_BSHD) or
    /// `[t, hidden_size]` (NVTE_THD, where `cu_seqlens_q` of the step says which tokens belong to a
    /// sequence, and the others get the bias). Cross attention has a second input `[s_kv, b, hidden_size]`,
    /// likewise.
    ///
    /// Parameters, each as those of `nvtex_linear_create` or `nvtex_layernorm_linear_create`: `qkv.` or
    /// `layernorm_qkv.`, of cross attention `query_layer.` or `layernorm_query.` and `key_value.`; then
    /// `q_norm.` and `k_norm.` as those of `nvtex_norm_create`, `core_attention.softmax_offset` (learnable
    /// softmax) and `proj.`. Rows of the first weight are, for each group of heads, those of its queries,
    /// its key and its value.
    pub fn nvtex_multihead_attention_create(context: NVTEXContext, config: *const NVTEXMultiheadAttentionConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_transformer_layer_config_init(config: *mut NVTEXTransformerLayerConfig, struct_size: usize);
    /// Creates a layer of a Transformer: attention and an MLP, each with a norm before and a residual
    /// around it.
    ///
    /// What it computes: with D = dropout, `y = x + D(attention(norm(x)))`, for a decoder then
    /// `y = y + D(cross_attention(norm(y), memory))`, and `y + D(mlp(norm(y)))`. With parallel parts it is
    /// `x + D(attention(norm(x)) + mlp(norm'(x)))`.
    ///
    /// Inputs: as `nvtex_multihead_attention_create`; of a decoder a second one.
    ///
    /// With `experts` the MLP is a layer of experts. Its losses and the numbers of tokens that have chosen each expert are the
    /// second and third output, and the second `grad_outputs` is the gradient of the losses, as for `nvtex_moe_create`.
    ///
    /// Parameters: those of `nvtex_multihead_attention_create` behind `self_attention.` and
    /// `inter_attention.`, those of `nvtex_layernorm_mlp_create` behind `layernorm_mlp.`, and
    /// `layernorm.weight`, `layernorm.bias`. With `experts` those of its norm and of `nvtex_moe_create` stand behind
    /// `layernorm_moe.` in place of those of the MLP.
    ///
    /// Notes: without dropout residuals are added by products, and their gradients by norms.
    pub fn nvtex_transformer_layer_create(context: NVTEXContext, config: *const NVTEXTransformerLayerConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_moe_config_init(config: *mut NVTEXMoeConfig, struct_size: usize);
    /// Creates a layer of experts (a mixture of experts): a router, an MLP for each expert, and one for all tokens.
    ///
    /// What it computes: the router's products give logits, from which `nvte_fused_topk_with_score_function_forward_v2`
    /// chooses experts and their weights. Rows of tokens are copied to those of their experts, go through products of groups
    /// (`nvte_grouped_gemm`), and are summed with their weights in Float32, in the order of the choices, rounded once. Without
    /// `capacity_factor` no choice is dropped: there is memory for `top_k` rows of each token. The same bits come out in every
    /// run.
    ///
    /// With `capacity_factor` an expert takes so many choices, in the order of ranks and then of tokens. Later ones are
    /// dropped: they add 0 to the output, and 0 to the gradients of the token and of their weights, while the weights of the
    /// token's other experts stay as they are. The third output counts all choices: those of an expert beyond its capacity
    /// were dropped.
    ///
    /// Shapes: input and output `[..., hidden_size]`. A second output, Float32 `[2]`, takes the losses of balance and of the
    /// size of the logits; a third, Int64 `[num_experts]`, the number of tokens that have chosen each expert. Both may be
    /// null.
    ///
    /// Gradients: backward passes add those of both losses, whether the losses were asked for or not: each times its element of
    /// the second `grad_outputs`, Float32 `[2]`, and times 1 without it.
    ///
    /// Parameters: `router.weight` `[num_experts, hidden_size]`, `router.expert_bias` `[num_experts]` (Float32, without
    /// gradient), `experts.fc1_weight` `[num_experts, ffn_hidden_size (gated: twice that), hidden_size]`, `experts.fc1_bias`,
    /// `experts.fc2_weight` `[num_experts, hidden_size, ffn_hidden_size]`, `experts.fc2_bias`, and the same of `shared.`
    /// without the first dimension.
    ///
    /// Recipes: the products of experts follow the recipe, those of the router do not. Delayed and current scaling have one
    /// scale for the rows of all experts, and one for their weights; FP8 blocks and MXFP8 pad the rows of each expert to a
    /// multiple of 128, one scale to 16. NVFP4 and weights in FP8 alone are refused.
    ///
    /// Over several ranks (`expert_parallel_size`) each has `num_experts / ranks` experts, in the order of the ranks, and
    /// tokens of its own, any number. Rows travel to the ranks of their experts and back. The gradients of experts are
    /// complete, over the tokens of all ranks; others are those of the own tokens. The mean of the losses over the ranks is
    /// that of all their tokens, as NVTEX_GRADIENTS_MEAN takes it: where gradients are sums over ranks, give `1 / ranks` as the
    /// gradient of the losses, or divide their factors. The host waits for the numbers of rows, so that a graph cannot
    /// capture it.
    ///
    /// With `capacity_factor` sizes are fixed, and nothing waits: under NCCL a graph can capture passes over ranks, too. All
    /// ranks then have the same number of tokens in a pass. Each pair exchanges a slot for each of their tokens, in which a token
    /// travels once for all of its experts of a rank. That rank sums their results with their weights, rounds the sum to
    /// `dtype`, and sends it back, where the sums of all ranks are added in Float32 and rounded once more. The same choices are
    /// dropped as by one rank that has all tokens.
    ///
    /// Ranks of tensor parallelism (`tensor_parallel_size`) have the same tokens and choices, and parts of each expert: rows of
    /// W1 and columns of W2. Their results are parts of a sum over these ranks, which one all-reduce of the output makes, and one
    /// of the gradient of the input; another one sums the gradients of weights of experts, 4 bytes a choice. The router and
    /// the second biases are whole on each rank, and their gradients the same. Sizes that the ranks do not divide are refused.
    ///
    /// Notes: without other ranks nothing waits for the device, and graphs can capture passes. On CUDA the products need compute
    /// capability 9.0.
    pub fn nvtex_moe_create(context: NVTEXContext, config: *const NVTEXMoeConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_embedding_config_init(config: *mut NVTEXEmbeddingConfig, struct_size: usize);
    /// Creates an embedding: `y = scale * weight[token]`, plus `position_weight[position]` if there are positions.
    ///
    /// Inputs: tokens `[..., s]`, and, if the module has positions, those of the tokens; Int32 or Int64, both the same.
    /// Without the second input (null) a token's position is its place in the last dimension. Output:
    /// `[..., s, hidden_size]`. Tokens that are not in the vocabulary, and positions that are not in the table, have rows
    /// of zeros and no gradient.
    ///
    /// Parameters: `weight` `[vocabulary_size, hidden_size]`, `position_weight` `[max_positions, hidden_size]`. Their
    /// gradients are sums in a fixed order.
    ///
    /// Over several ranks tokens are those of all of them. The output is whole, or has the rows of this rank if ranks share
    /// rows (`sequence_parallel`): an equal share of the first dimension.
    ///
    /// Errors: a last dimension of more than `max_positions` tokens without positions.
    pub fn nvtex_embedding_create(context: NVTEXContext, config: *const NVTEXEmbeddingConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_lm_head_config_init(config: *mut NVTEXLMHeadConfig, struct_size: usize);
    /// Creates the head of a language model: logits `x W^T`, and their mean cross entropy against targets, as
    /// `nvtex_linear_cross_entropy` computes it without ever having all logits in memory. It stays in high precision
    /// whatever the recipe is.
    ///
    /// Inputs: hidden states `[..., hidden_size]`; targets, Int32 or Int64, one for each row; and a factor of the loss
    /// for its gradients, Float32 `[1]` on the device (null: 1), such as that of loss scaling. Outputs, each of which may
    /// be null: the mean loss `[1]` without the factor, the losses of the rows, both Float32, and all logits
    /// `[..., vocabulary_size]`. Without targets there are only logits.
    ///
    /// Passes: a forward pass with a tape computes all gradients, since the logits exist only then. It writes that of the
    /// weight to where it is bound, or adds it; one that is set to zeros is so before the forward pass, and a tape that
    /// is used twice adds nothing. The backward pass takes no gradient of its outputs; it gives that of the hidden states.
    /// Where the weight is that of an embedding, the embedding's backward pass adds to what this module has written.
    ///
    /// Over several ranks the hidden states are whole, or have the rows of this rank if ranks share rows
    /// (`sequence_parallel`); targets and losses are those of all rows on each rank, and logits are
    /// `[all rows, vocabulary_size / ranks]`.
    ///
    /// Parameters: `weight` `[vocabulary_size, hidden_size]`; none if it is an embedding's, which lists it.
    pub fn nvtex_lm_head_create(context: NVTEXContext, config: *const NVTEXLMHeadConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Creates a module of modules in a row: the first output of each is the first input of the next.
    ///
    /// `names` are those of the parts, unique and without dots, before the names of their parameters: `layer0.weight`.
    /// Null: "0", "1" and so on. The new module keeps the others alive, so that their handles may be destroyed at once,
    /// or used further: for their parameters, for passes of their own, or in another row.
    ///
    /// Inputs: those of the first module, followed by those of the last one but its first. Outputs: those of the last one.
    /// Of an embedding, layers and a head: tokens, positions, targets, factor of the loss; loss, losses of rows, logits.
    /// Memory between the modules is the context's. With dropout a call uses 128 random numbers for each module.
    ///
    /// Parameters: those of all modules, in their order.
    ///
    /// Errors: modules of other contexts; one module twice; no module.
    pub fn nvtex_sequential_create(context: NVTEXContext, modules: *const NVTEXModule, names: *const *const c_char, count: usize) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_language_model_config_init(config: *mut NVTEXLanguageModelConfig, struct_size: usize);
    /// Creates a language model: what `nvtex_embedding_create`, `nvtex_transformer_layer_create`, `nvtex_norm_create` and
    /// `nvtex_lm_head_create` make, in a row as `nvtex_sequential_create` puts them.
    ///
    /// Inputs: tokens, positions (null without `max_positions`, or for places in the last dimension), targets, factor of
    /// the loss. Outputs: the mean loss, losses of rows, logits; each may be null.
    ///
    /// Parameters: `0.weight`, `0.position_weight`, those of layer i behind `<i + 1>.`, those of the norm behind
    /// `<num_layers + 1>.`, and without `tied_embeddings` the weight of the head behind `<num_layers + 2>.`.
    ///
    /// Errors: those of the parts.
    pub fn nvtex_language_model_create(context: NVTEXContext, config: *const NVTEXLanguageModelConfig, stream: cudaStream_t) -> NVTEXModule;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_rotary_config_init(config: *mut NVTEXRotaryConfig, struct_size: usize);
    /// Writes the angles of rotary embeddings: `a(p, i) = p base^(-2 i / d2)` for positions p from `offset`
    /// on and pairs i. They are computed in float64 on the host.
    ///
    /// Shapes: `frequencies` `[rows, 1, 1, d2]`, Float32, d2 even. Null config: defaults.
    pub fn nvtex_rotary_frequencies(frequencies: NVTETensor, config: *const NVTEXRotaryConfig, stream: cudaStream_t);
    /// Destroys a module; tapes that are left keep what they need. Null is ignored.
    pub fn nvtex_module_destroy(module: NVTEXModule);
    /// Returns the number of parameters of a module.
    pub fn nvtex_module_num_parameters(module: NVTEXModule) -> usize;
    /// Describes the parameter number `index` of a module.
    pub fn nvtex_module_parameter(module: NVTEXModule, index: usize, parameter: *mut NVTEXParameter);
    /// Binds the value of a parameter to the memory of a tensor of its shape and dtype, which every pass
    /// reads from then on. Errors: parameters in FP8.
    pub fn nvtex_module_set_parameter(module: NVTEXModule, index: usize, value: NVTETensor);
    /// Copies a tensor (Float32, Float16 or BFloat16) to the value of a parameter, and casts it: to FP8
    /// with the scales of the recipe if the weight exists in FP8 alone.
    pub fn nvtex_module_assign_parameter(module: NVTEXModule, index: usize, value: NVTETensor, stream: cudaStream_t);
    /// Computes the initial value of a parameter on the host, before rounding, from seed and deviation, for
    /// copies of higher precision than the parameter has. Errors: a `count` that is not its number of
    /// elements.
    pub fn nvtex_module_initial_value(module: NVTEXModule, index: usize, value: *mut f32, count: usize);
    /// Tells how an operand of the products of a weight was cast in the module's last forward pass: the
    /// scaling, FP8 dtype and options, or NVTEX_SLOT_HIGH_PRECISION and the dtype of the module.
    ///
    /// `index` is the number of the weight among the parameters. Errors: a parameter that is no weight of
    /// products, or of a module that has not run.
    pub fn nvtex_module_precision(module: NVTEXModule, index: usize, role: NVTEXRole, choice: *mut NVTEXSlotChoice);
    /// Binds the gradient of a parameter to a tensor of its shape, of its dtype or Float32. Null: no
    /// gradient is computed.
    ///
    /// Backward passes write there, or add if `accumulate`, unless a microbatch says otherwise. Bind it
    /// before the forward pass.
    pub fn nvtex_module_set_gradient(module: NVTEXModule, index: usize, grad: NVTETensor, accumulate: bool);
    /// Sets the defaults in the first `struct_size` bytes of a step.
    pub fn nvtex_step_init(step: *mut NVTEXStep, struct_size: usize);
    /// Runs the forward pass of a module.
    ///
    /// Arrays: `inputs` and `outputs` hold what the function that created the module says. Missing and null
    /// entries at their end are optional ones. Outputs overlap neither inputs nor each other.
    ///
    /// Tape: if `tape` is not null, it takes what the backward pass needs; several may be in flight. A tape
    /// refers to the inputs, the norm's result and the parameters, which must stay as they are until the
    /// backward pass is done. Without a tape the maxima of delayed scaling stay as they are.
    ///
    /// Notes: a null `step` means defaults. The first call of a layer under a recipe allocates; later ones
    /// with the same sizes do not, and can be captured in a graph.
    pub fn nvtex_module_forward(module: NVTEXModule, inputs: *const NVTETensor, num_inputs: usize, outputs: *const NVTETensor, num_outputs: usize, step: *const NVTEXStep, tape: *mut NVTEXTape, stream: cudaStream_t);
    /// Runs the backward pass of a module: writes the gradients of the inputs that `grad_inputs` has, and
    /// those of the parameters that are bound.
    ///
    /// `grad_outputs` is like the outputs of the forward pass; null for an optional output is a gradient of
    /// 0. The tape stays, and may be used again. Gradients of inputs overlap neither those of outputs nor
    /// each other. Operators follow the policy that the forward pass had (`nvtex_policy_push`), whatever that of the
    /// calling thread is.
    pub fn nvtex_module_backward(module: NVTEXModule, tape: NVTEXTape, grad_outputs: *const NVTETensor, num_grad_outputs: usize, grad_inputs: *const NVTETensor, num_grad_inputs: usize, stream: cudaStream_t);
    /// Destroys a tape. Null is ignored.
    pub fn nvtex_tape_destroy(tape: NVTEXTape);
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_kv_cache_config_init(config: *mut NVTEXKVCacheConfig, struct_size: usize);
    /// Creates a cache of keys and values for passes of `nvtex_module_forward` without a tape: text is read
    /// in pieces of any length and written token by token.
    ///
    /// One cache serves all attentions of its context; each gets its memory, for `num_pages * page_size`
    /// tokens, in its first pass. A causal mask is aligned to the bottom right of a sequence; other masks
    /// let all of its tokens count.
    ///
    /// The lengths of the sequences and their pages are also on the device, where passes read them. So a
    /// pass may be captured in a graph, and replayed after each `nvtex_kv_cache_step` with the same `batch`
    /// and no longer pieces, with a contiguous cache until `nvtex_kv_cache_reorder` is called.
    ///
    /// Errors: sizes that are 0 or do not go together.
    pub fn nvtex_kv_cache_create(context: NVTEXContext, config: *const NVTEXKVCacheConfig, stream: cudaStream_t) -> NVTEXKVCache;
    /// Destroys a cache. Null is ignored.
    pub fn nvtex_kv_cache_destroy(cache: NVTEXKVCache);
    /// Begins a step, before its passes: sequence i gets `new_tokens[i]` tokens (0 or more) behind those
    /// that it has.
    ///
    /// Sequences that are not there yet begin empty. Sequences from `batch` on get none in this step. The
    /// call must not be captured in a graph.
    ///
    /// Errors: more than `max_sequence_length` tokens; more pages than are free. Nothing changes then.
    pub fn nvtex_kv_cache_step(cache: NVTEXKVCache, new_tokens: *const usize, batch: usize, stream: cudaStream_t);
    /// Returns the tokens of a sequence, with those of the current step; 0 for one that is not there.
    pub fn nvtex_kv_cache_length(cache: NVTEXKVCache, sequence: usize) -> usize;
    /// Forgets the tokens of a sequence from `length` on; 0 makes room for another sequence. Errors: the
    /// sequence has fewer tokens.
    pub fn nvtex_kv_cache_truncate(cache: NVTEXKVCache, sequence: usize, length: usize);
    /// Makes sequence i what sequence `from[i]` was, or empty for -1; there are `count` sequences then. A
    /// sequence that goes to several places has its pages copied; others only change their tables.
    ///
    /// Errors: no such sequence; not enough pages for the copies. Nothing changes then.
    pub fn nvtex_kv_cache_reorder(cache: NVTEXKVCache, from: *const i64, count: usize, stream: cudaStream_t);
    /// Copies the rows of whole sequences that this rank has to `part`: tokens, labels, positions, or what else has a row for
    /// each token.
    ///
    /// The length of `whole` is divided into as many chunks as twice the ranks of the communicator, of which rank r of P gets
    /// the chunks r and 2 P - 1 - r, so that causal attention costs all ranks the same.
    ///
    /// Shapes: `whole` `[length, ...]` (NVTE_SBHD) or `[batch, length, ...]` (NVTE_BSHD), `part` the same with the P-th part of
    /// the length, which is a multiple of 2 P. Any dtype. No rank waits for another one.
    pub fn nvtex_context_parallel_split(communicator: NVTEXCommunicator, whole: NVTETensor, part: NVTETensor, format: NVTE_QKV_Format, stream: cudaStream_t);
    /// Brings the rows of all ranks back together in `whole`, on each of them: the inverse of `nvtex_context_parallel_split`,
    /// with its shapes. Collective.
    pub fn nvtex_context_parallel_merge(communicator: NVTEXCommunicator, part: NVTETensor, whole: NVTETensor, format: NVTE_QKV_Format, stream: cudaStream_t);
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_data_parallel_config_init(config: *mut NVTEXDataParallelConfig, struct_size: usize);
    /// Makes the ranks of a communicator train modules of a context together, each with batches of its own. Collective:
    /// the ranks compare names, shapes, dtypes and seeds of the parameters, and take the values of rank 0.
    ///
    /// The engine makes gradients of 0, Float32 or as `wire_dtype` says, and binds them. With NVTEX_SHARDING_OPTIMIZER it
    /// also moves the values of parameters into memory of its own, from which they can be gathered at once; weights in FP8
    /// blocks, MXFP8 or NVFP4 alone and values in memory of the program stay where they are, and are not divided. With
    /// NVTEX_SHARDING_FULL each layer of the modules (of `nvtex_sequential_create` each part) has its parameters only while
    /// it runs: `NVTEXParameter.value` has null data otherwise, and passes are collective calls, which all ranks make in
    /// the same order. So create it behind the modules, before the optimizer and before anything is captured in a graph.
    ///
    /// A step of the program: backward passes over all microbatches; `nvtex_data_parallel_reduce`;
    /// `nvtex_optimizer_step` of an optimizer that has the engine in its config.
    ///
    /// Notes: modules and communicator live at least as long as the engine, which lives as long as an optimizer that has
    /// it. Null config: defaults. Errors: gradients that are bound already; ranks that differ, with the first difference;
    /// an error of one rank is one of all. Returns null.
    pub fn nvtex_data_parallel_create(context: NVTEXContext, config: *const NVTEXDataParallelConfig, communicator: NVTEXCommunicator, modules: *const NVTEXModule, num_modules: usize, stream: cudaStream_t) -> NVTEXDataParallel;
    /// Destroys an engine, and unbinds the gradients that it has made when no optimizer has it any more. Null is ignored.
    pub fn nvtex_data_parallel_destroy(data_parallel: NVTEXDataParallel);
    /// Reduces the gradients of all ranks: call it behind the last backward pass of a step. With NVTEX_SHARDING_OPTIMIZER and
    /// NVTEX_SHARDING_FULL a gradient then is that of all ranks in the part of this rank, and means nothing elsewhere.
    ///
    /// Collective, as `nvtex_all_reduce`: with ranks of NCCL it may be captured in a graph, from its second call on.
    pub fn nvtex_data_parallel_reduce(data_parallel: NVTEXDataParallel, stream: cudaStream_t);
    /// Gathers the values of divided parameters, of which each rank has updated its part. `nvtex_optimizer_step` does this
    /// itself: the function is for optimizers of the program. Collective.
    ///
    /// With NVTEX_SHARDING_FULL every rank has all parameters from then on, until `nvtex_data_parallel_release`: passes of one
    /// rank alone are possible, values may be read and assigned (on all ranks alike), and modules may be used further
    /// when the engine is gone.
    pub fn nvtex_data_parallel_gather(data_parallel: NVTEXDataParallel, stream: cudaStream_t);
    /// Lets parameters go that `nvtex_data_parallel_gather` has brought together under NVTEX_SHARDING_FULL; each rank keeps its
    /// part, as it is then. Otherwise it does nothing.
    pub fn nvtex_data_parallel_release(data_parallel: NVTEXDataParallel, stream: cudaStream_t);
    /// Tells which elements of a flattened parameter this rank updates: `count` elements from number `first` on. All of
    /// them, unless ranks divide the parameter.
    pub fn nvtex_data_parallel_part(data_parallel: NVTEXDataParallel, module: NVTEXModule, index: usize, first: *mut usize, count: *mut usize);
    /// Sets the defaults of a rule in the first `struct_size` bytes of a config: learning rate 1e-3 (gradient descent:
    /// 0.1), weight decay 0.01 (gradient descent: 0), betas 0.9 and 0.999, epsilon 1e-8, Float32 moments, momentum 0.95
    /// with `nesterov` (gradient descent: 0.9 without), 5 Newton-Schulz iterations, Float32 masters, a constant learning
    /// rate, no clipping, loss scale 1 which stays, and factors of 2 and 0.5 within 1 and 2^24 for one that does not.
    pub fn nvtex_optimizer_config_init(config: *mut NVTEXOptimizerConfig, struct_size: usize, rule: NVTEXUpdateRule);
    /// Creates an optimizer over the parameters of modules of a context.
    ///
    /// Gradients: a parameter that has a gradient bound (`nvtex_module_set_gradient`) keeps it; for the others the
    /// optimizer makes gradients of 0, Float32 or as `low_precision_gradients` says, and binds them, until it is destroyed. A step reads values and gradients
    /// that are bound then. Parameters that modules share (`nvtex_module_set_parameter` with the same memory) are one,
    /// under the first name, and backward passes add to the gradient that the optimizer makes for it.
    ///
    /// Masters begin with the values of the parameters; for weights in FP8 alone these are dequantized.
    ///
    /// Notes: the modules live at least as long as the optimizer. Null config: defaults of AdamW.
    ///
    /// Errors: modules of another context, or given twice; no parameter to update; numbers out of their range; what the
    /// function `choose` answers; gradients that `data_parallel` has not made; Muon for a parameter that ranks divide.
    /// Returns null.
    pub fn nvtex_optimizer_create(context: NVTEXContext, config: *const NVTEXOptimizerConfig, modules: *const NVTEXModule, num_modules: usize, stream: cudaStream_t) -> NVTEXOptimizer;
    /// Destroys an optimizer, and unbinds the gradients that it has made. Null is ignored.
    pub fn nvtex_optimizer_destroy(optimizer: NVTEXOptimizer);
    /// Sets all gradients to 0.
    pub fn nvtex_optimizer_zero_grad(optimizer: NVTEXOptimizer, stream: cudaStream_t);
    /// Updates all parameters by their gradients.
    ///
    /// It does not wait for the device. It may be captured in a graph, also from its first call, together with the
    /// passes: everything that changes from step to step lies on the device.
    ///
    /// With `data_parallel` the step works on the gradients of all ranks together, and gathers the values that other ranks
    /// have updated. The norm counts each element once.
    ///
    /// Errors: a gradient that was unbound since the optimizer was created; with `data_parallel` gradients that were not
    /// reduced since the step before.
    pub fn nvtex_optimizer_step(optimizer: NVTEXOptimizer, stream: cudaStream_t);
    /// Sets the learning rate that the schedule starts from, for the steps on the stream from here on, those of a
    /// captured graph too.
    pub fn nvtex_optimizer_set_learning_rate(optimizer: NVTEXOptimizer, learning_rate: f32, stream: cudaStream_t);
    /// Returns the loss scale, Float32 `[1]` on the device, which belongs to the optimizer. A program that scales the
    /// loss multiplies its gradient by this number, or begins the backward pass with it.
    pub fn nvtex_optimizer_loss_scale(optimizer: NVTEXOptimizer) -> NVTETensor;
    /// Reads the numbers of the newest step, and waits for the stream.
    pub fn nvtex_optimizer_numbers(optimizer: NVTEXOptimizer, numbers: *mut NVTEXOptimizerNumbers, stream: cudaStream_t);
    /// Returns the number of parameters of an optimizer, with those that it does not update.
    pub fn nvtex_optimizer_num_parameters(optimizer: NVTEXOptimizer) -> usize;
    /// Describes the parameter number `index` of an optimizer.
    pub fn nvtex_optimizer_parameter(optimizer: NVTEXOptimizer, index: usize, parameter: *mut NVTEXOptimizerParameter);
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_trainer_config_init(config: *mut NVTEXTrainerConfig, struct_size: usize);
    /// Creates a trainer of a model: an optimizer over its parameters, and in a context with a grid a data-parallel engine over
    /// NVTEX_GRID_DP_CP. Collective there. Destroy it with `nvtex_trainer_destroy`; it keeps model and recipe alive.
    ///
    /// Errors: those of `nvtex_data_parallel_create` and `nvtex_optimizer_create`; a `data_parallel` that divides something
    /// in a context without a grid. Returns null.
    pub fn nvtex_trainer_create(context: NVTEXContext, config: *const NVTEXTrainerConfig, stream: cudaStream_t) -> NVTEXTrainer;
    /// Destroys a trainer with its optimizer, engine and graph. Null is ignored.
    pub fn nvtex_trainer_destroy(trainer: NVTEXTrainer);
    /// Trains a model by one batch. It does the same as, in this order:
    /// 1. `nvtex_context_begin` with the recipe, `nvtex_module_forward` with a tape, `nvtex_context_end`,
    ///    `nvtex_context_forward_update`,
    /// 2. `nvtex_module_backward`, `nvtex_context_backward_update`,
    /// 3. `nvtex_data_parallel_reduce` and `nvtex_optimizer_step`,
    /// 4. `nvtex_all_reduce` of the losses of ranks that have rows of their own.
    ///
    /// Inputs: those of the model. A replayed step reads them where those of the captured one were, so that they are the
    /// same tensors with other contents; `step`, which may be null, stays as it was, too.
    ///
    /// It does not wait for the device, unless a rank waits for others. Collective in a context with a grid.
    ///
    /// Errors: those of the functions above; once a step was captured, tensors in other memory or of another shape.
    pub fn nvtex_trainer_step(trainer: NVTEXTrainer, inputs: *const NVTETensor, num_inputs: usize, step: *const NVTEXStep, stream: cudaStream_t);
    /// Returns the loss of the newest step: the mean over the ranks that have rows of their own. It waits for the stream.
    /// Errors: there was no step.
    pub fn nvtex_trainer_loss(trainer: NVTEXTrainer, stream: cudaStream_t) -> f32;
    /// Returns the optimizer of a trainer, for checkpoints and its numbers. It lives as long as the trainer.
    pub fn nvtex_trainer_optimizer(trainer: NVTEXTrainer) -> NVTEXOptimizer;
    /// Returns the data-parallel engine of a trainer, or null in a context without a grid. It lives as long as the trainer.
    pub fn nvtex_trainer_data_parallel(trainer: NVTEXTrainer) -> NVTEXDataParallel;
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_token_loader_config_init(config: *mut NVTEXTokenLoaderConfig, struct_size: usize);
    /// Creates a loader. Destroy it with `nvtex_token_loader_destroy`.
    ///
    /// Errors: files that cannot be opened (`NVTEX_DEVICE_ERROR`), or end within a token; fewer windows than one batch for
    /// every rank; numbers out of their range. Returns null.
    pub fn nvtex_token_loader_create(config: *const NVTEXTokenLoaderConfig) -> NVTEXTokenLoader;
    /// Destroys a loader. Null is ignored.
    pub fn nvtex_token_loader_destroy(loader: NVTEXTokenLoader);
    /// Returns the batches of each rank in an epoch.
    pub fn nvtex_token_loader_epoch_batches(loader: NVTEXTokenLoader) -> usize;
    /// Writes the next batch to the host: `[batch, sequence + 1]`, of which the first `sequence` tokens of a row are inputs
    /// and the last `sequence` targets.
    ///
    /// Errors: a `count` that is not `batch * (sequence + 1)`; a file that cannot be read or has become shorter; tokens out
    /// of range. The loader stays where it is then.
    pub fn nvtex_token_loader_next(loader: NVTEXTokenLoader, tokens: *mut i32, count: usize);
    /// Copies the next batch to the device: inputs and targets, each `[batch, sequence]`, Int32 or Int64. With a grid these
    /// are the rows and columns of this rank, `[batch / dp, sequence / cp]`. The copies are on the stream; a captured graph
    /// that reads the tensors sees the new batch when it is replayed afterwards.
    ///
    /// Errors: as `nvtex_token_loader_next`; other shapes and dtypes; a stream that is being captured.
    pub fn nvtex_token_loader_next_on_device(loader: NVTEXTokenLoader, inputs: NVTETensor, targets: NVTETensor, stream: cudaStream_t);
    /// Writes the place in its row of each token that `nvtex_token_loader_next_on_device` copies: the second input of an
    /// embedding with a table of positions, which counts them itself where rows are not divided. They are the same for every
    /// batch.
    ///
    /// Shapes and dtypes: as `nvtex_token_loader_next_on_device`. Errors: other ones; a stream that is being captured.
    pub fn nvtex_token_loader_positions(loader: NVTEXTokenLoader, positions: NVTETensor, stream: cudaStream_t);
    /// Tells where a loader is.
    pub fn nvtex_token_loader_position(loader: NVTEXTokenLoader, position: *mut NVTEXTokenPosition);
    /// Goes to a position: the next batch is the one that follows it. Errors: the position of a loader of other data.
    pub fn nvtex_token_loader_seek(loader: NVTEXTokenLoader, position: *const NVTEXTokenPosition);
    /// Sets the defaults, nothing, in the first `struct_size` bytes of a config.
    pub fn nvtex_checkpoint_config_init(config: *mut NVTEXCheckpointConfig, struct_size: usize);
    /// Writes a checkpoint. It waits for the stream.
    ///
    /// Format: a safetensors file, which other programs read. Names: `<module>.<parameter>` of parameters (Float32 if
    /// there is a master, else of their dtype; weights in FP8 alone dequantized), `optimizer.exp_avg.<module>.<parameter>`,
    /// `optimizer.exp_avg_sq....`, `optimizer.momentum....`, `optimizer.counters` (I32: steps, skipped steps, good steps),
    /// `optimizer.scalars` (F32: learning rate, loss scale), `recipe.state` (U8: what `nvtex_context_save` writes),
    /// `tokens.position` (I64), and `extra.<name>`. In `__metadata__` are `nvte.checkpoint`, the version of all this, and
    /// `nvte.sha256`, the SHA-256 of the file with the 64 digits of this value replaced by `0`. Parameters that modules
    /// share are there once, under their first name. Moments in Float8E4M3 are there as the Float32 numbers that they stand
    /// for, and come back as the same numbers.
    ///
    /// The file is written under another name in the same folder, forced to the disk and renamed, so that after a crash
    /// there is the older file or the new one.
    ///
    /// Ranks: rank 0 of `config.communicator` writes the file, and what other ranks have parts of is sent to it: tensors in
    /// the file are whole, whether ranks divide state or share weights. For equal values the file is the same on every
    /// grid. What all ranks have, such as the loader's position and further tensors, is written as rank 0 has it. An error
    /// of one rank is one of all. Without a communicator a rank writes what it has of weights that ranks share.
    ///
    /// Errors: a file that cannot be written (`NVTEX_DEVICE_ERROR`); two tensors of one name; an optimizer that ranks
    /// divide without the communicator of these.
    pub fn nvtex_checkpoint_save(path: *const c_char, config: *const NVTEXCheckpointConfig, stream: cudaStream_t);
    /// Reads a checkpoint that `nvtex_checkpoint_save` wrote, of modules and an optimizer of the same shapes; masters and
    /// dtypes may be others. Tensors that the config does not ask for are left alone. Captured graphs see the new values.
    ///
    /// Ranks: their number and their grid may be others than those of the ranks which saved. Rank 0 checks the digest; each
    /// rank reads the header, and its parts of parameters and state. All begin to change something when all have found
    /// the file sound.
    ///
    /// Errors: a file that is damaged, cut off or of another version; a missing tensor, or one of another shape or dtype;
    /// a loader of other data. Nothing is changed then, unless the disk fails while tensors are read.
    pub fn nvtex_checkpoint_load(path: *const c_char, config: *const NVTEXCheckpointConfig, stream: cudaStream_t);
    /// Sets parameters from the tensors of a safetensors file, of an index of such files, or of a folder with
    /// `model.safetensors` or `model.safetensors.index.json`.
    ///
    /// Dtypes: F32, F16 and BF16, which are cast to that of the parameter. The masters that `optimizer` has for these
    /// parameters are set as well; it may be null.
    ///
    /// Errors: a file that is damaged; missing tensors; other shapes or dtypes; rows that are not as many as those of the
    /// parameter. Nothing is changed then, unless the disk fails while tensors are read.
    pub fn nvtex_pretrained_load(path: *const c_char, parameters: *const NVTEXPretrainedParameter, num_parameters: usize, optimizer: NVTEXOptimizer, stream: cudaStream_t);
    /// Reads the sizes of a model from the `config.json` of a folder, or of the folder that a file is in.
    ///
    /// Errors: `model_type` other than llama, mistral, qwen2 and qwen3; `hidden_act` other than silu; `rope_scaling` other
    /// than linear; sizes that are missing or do not go together. Nothing is written then.
    pub fn nvtex_llama_sizes(path: *const c_char, sizes: *mut NVTEXLlamaSizes);
    /// Sets the defaults in the first `struct_size` bytes of a config.
    pub fn nvtex_llama_config_init(config: *mut NVTEXLlamaConfig, struct_size: usize);
    /// Sets the parameters of a model of the Llama or Qwen family from files as Hugging Face stores them, as
    /// `nvtex_pretrained_load` does.
    ///
    /// Names, behind `<prefix>layers.<i>.`: `input_layernorm`, `self_attn.{q,k,v,o}_proj`, `self_attn.{q,k}_norm`,
    /// `post_attention_layernorm`, `mlp.{gate,up,down}_proj`, each with `.weight`; `<prefix>embed_tokens.weight`,
    /// `<prefix>norm.weight`, and `lm_head.weight`, or without it the weight of the embedding. Biases that the files do not
    /// have become 0. The rotary embedding of these models is that of `nvtex_rotary_frequencies` without `interleaved`.
    ///
    /// Heads have no place in the shapes of weights: those of the layers, of this config, and of a `config.json` beside the
    /// weights must be the same.
    pub fn nvtex_llama_load(path: *const c_char, config: *const NVTEXLlamaConfig, optimizer: NVTEXOptimizer, stream: cudaStream_t);
    /// Creates a model of the Llama or Qwen family from a folder as Hugging Face stores it: embedding, layers, norm and head
    /// in a row, with the sizes of `config.json` and the weights of the files.
    ///
    /// Shapes: as `nvtex_sequential_create` of these modules. Inputs are tokens `[batch, length]` (layers in NVTE_BSHD), null,
    /// and targets; outputs are the loss, losses of rows, and logits. A step has `rotary_frequencies` by the `rotary_base` and
    /// the `rotary_factor` of `nvtex_llama_sizes`.
    ///
    /// Dtypes: Float32, Float16 or BFloat16, of parameters and activations.
    ///
    /// Errors: as `nvtex_llama_sizes` and `nvtex_llama_load`. Returns null.
    pub fn nvtex_llama_create(context: NVTEXContext, path: *const c_char, dtype: NVTEDType, stream: cudaStream_t) -> NVTEXModule;
}

/// Sizes, alignments and offsets of the structs.
#[cfg(test)]
pub(crate) fn layouts() -> Vec<String> {
    vec![
        crate::layout!(NVTEShape: data ndim),
        crate::layout!(NVTEBasicTensor: data_ptr dtype shape),
        crate::layout!(NVTETensorPack: tensors size),
        crate::layout!(NVTECommWindow: window offset scale_window scale_offset),
        crate::layout!(NVTEEpGroupConfig: struct_size ep_size num_experts max_tokens_per_rank max_recv_tokens_per_rank hidden_dim num_comm_sms max_token_dtype zero_copy num_topk drop_on_overflow),
        crate::layout!(NVTEEpLayerConfig: struct_size top_k dispatch_output_per_expert_alignment),
        crate::layout!(NVTEXCrossEntropyOptions: struct_size ignored_target vocabulary_start vocabulary_size label_smoothing z_loss reduction),
        crate::layout!(NVTEXCommunicatorConfig: struct_size name timeout staging_bytes sum_order check transport abort_borrowed on_failure user),
        crate::layout!(NVTEXMessage: data bytes peer receive),
        crate::layout!(NVTEXCollectives: struct_size user all_gather all_to_all broadcast barrier exchange reduce_scatter all_reduce split abort release),
        crate::layout!(NVTEXGridConfig: struct_size tp cp dp pp ep),
        crate::layout!(NVTEXTransfer: data count dtype peer receive),
        crate::layout!(NVTEXRoleOptions: power_2_scales amax_epsilon block_dim),
        crate::layout!(NVTEXSlotChoice: scaling dtype options),
        crate::layout!(NVTEXRecipeConfig: struct_size kind format margin amax_history_len amax_algo update_interval reduce_amax input weight grad_output split_accumulator_fprop split_accumulator_dgrad split_accumulator_wgrad backward choose user fp8_dpa nvfp4_hadamard nvfp4_stochastic_rounding),
        crate::layout!(NVTEXContextConfig: struct_size allocator allocate release communicator all_reduce_max multiprocessor_count max_unused_bytes),
        crate::layout!(NVTEXMemoryUse: struct_size scratch tape persistent unused most_scratch most_tape most_persistent most_at_once),
        crate::layout!(NVTEXNormConfig: struct_size name kind hidden_size epsilon zero_centered_gamma dtype sequence_parallel reserved),
        crate::layout!(NVTEXParallelOptions: struct_size mode local_scales),
        crate::layout!(NVTEXParallelConfig: tensor_parallel_size sequence_parallel context_parallel_size options reserved),
        crate::layout!(NVTEXLinearConfig: struct_size name in_features out_features bias dtype init_std seed parallel reserved),
        crate::layout!(NVTEXLayerNormLinearConfig: struct_size norm linear name in_features out_features bias dtype init_std seed norm_type norm_epsilon parallel reserved),
        crate::layout!(NVTEXGroupedLinearConfig: struct_size num_gemms linear name in_features out_features bias dtype init_std seed reserved),
        crate::layout!(NVTEXLayerNormMLPConfig: struct_size name norm hidden_size ffn_hidden_size activation clamp_limit clamp_alpha clamp_offset bias dtype init_std output_init_std seed checkpoint parallel reserved),
        crate::layout!(NVTEXAttentionConfig: struct_size name num_attention_heads num_gqa_groups head_dim_qk head_dim_v attention_dropout qkv_format attn_mask_type window_size_left window_size_right bottom_right_diagonal softmax_type softmax_scale dtype checkpoint_core_attention qk_norm_type qk_norm_epsilon qk_norm_before_rope parallel context_parallel_kind reserved),
        crate::layout!(NVTEXMultiheadAttentionConfig: struct_size name hidden_size attention input_layernorm norm cross_attention bias rotary_interleaved init_std output_init_std seed num_attention_heads num_gqa_groups norm_type norm_epsilon dtype qkv_format attn_mask_type attention_dropout parallel reserved),
        crate::layout!(NVTEXMoeConfig: struct_size name hidden_size ffn_hidden_size num_experts top_k dtype router_dtype activation clamp_limit clamp_alpha clamp_offset bias score num_groups group_top_k expert_bias scaling_factor balance_coefficient z_coefficient shared_ffn_hidden_size init_std output_init_std router_init_std seed expert_parallel_size capacity_factor tensor_parallel_size reserved),
        crate::layout!(NVTEXTransformerLayerConfig: struct_size name attention mlp hidden_dropout decoder inter_mask_type residual_post_layernorm output_layernorm parallel_attention_mlp rotary_interleaved hidden_size ffn_hidden_size num_attention_heads num_gqa_groups activation norm_type norm_epsilon dtype qkv_format attn_mask_type attention_dropout bias init_std output_init_std seed checkpoint parallel experts reserved),
        crate::layout!(NVTEXEmbeddingConfig: struct_size name vocabulary_size hidden_size max_positions scale dtype init_std position_init_std seed parallel reserved),
        crate::layout!(NVTEXLMHeadConfig: struct_size name vocabulary_size hidden_size tied_to dtype init_std seed ignored_target label_smoothing z_loss workspace_limit parallel reserved),
        crate::layout!(NVTEXLanguageModelConfig: struct_size vocabulary_size max_positions num_layers layer tied_embeddings workspace_limit reserved),
        crate::layout!(NVTEXRotaryConfig: struct_size base offset interpolation_factor pretrained_length interleaved),
        crate::layout!(NVTEXParameterPiece: whole part length counts),
        crate::layout!(NVTEXParameter: struct_size name shape dtype value quantized whole_shape shared_dimension num_pieces pieces),
        crate::layout!(NVTEXStep: struct_size microbatch skip_weight_update rng_state cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded cu_seqlens_kv_padded max_seqlen_q max_seqlen_kv rotary_frequencies kv_cache m_splits num_splits),
        crate::layout!(NVTEXKVCacheConfig: struct_size max_batch_size max_sequence_length page_size num_pages),
        crate::layout!(NVTEXDataParallelConfig: struct_size sharding gradients wire_dtype bucket_bytes accumulate),
        crate::layout!(NVTEXUpdateOptions: rule weight_decay learning_rate_factor),
        crate::layout!(NVTEXOptimizerConfig: struct_size rule learning_rate weight_decay choose user beta1 beta2 epsilon moment_dtype momentum nesterov newton_schulz_steps masters initial_masters schedule warmup_steps total_steps last_rate_factor max_norm check_gradients accumulation_steps accumulate loss_scale growth_interval growth_factor backoff_factor least_loss_scale most_loss_scale data_parallel low_precision_gradients),
        crate::layout!(NVTEXOptimizerNumbers: struct_size step skipped was_skipped learning_rate norm gradient_scale loss_scale),
        crate::layout!(NVTEXOptimizerParameter: struct_size name options gradient master state state_scales),
        crate::layout!(NVTEXTrainerConfig: struct_size model recipe optimizer data_parallel graph reserved),
        crate::layout!(NVTEXTokenLoaderConfig: struct_size paths num_paths token_bytes batch sequence shuffle seed rank world vocabulary grid),
        crate::layout!(NVTEXTokenPosition: struct_size batches windows seed sequence rows),
        crate::layout!(NVTEXCheckpointConfig: struct_size modules num_modules optimizer loader names tensors num_tensors communicator),
        crate::layout!(NVTEXSourceRows: name first_row num_rows),
        crate::layout!(NVTEXPretrainedParameter: module index rows num_rows),
        crate::layout!(NVTEXLlamaSizes: struct_size vocabulary_size hidden_size ffn_hidden_size num_layers num_attention_heads num_key_value_heads head_dim max_positions sliding_window norm_epsilon rotary_base rotary_factor bias qk_norm tied_embeddings dtype),
        crate::layout!(NVTEXLlamaConfig: struct_size prefix layers num_layers num_attention_heads num_key_value_heads embedding norm head),
    ]
}
