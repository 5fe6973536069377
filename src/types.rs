//! Types of the C ABI: enumerations, plain structs and opaque pointers, with the layouts of
//! release 2.20.2. They become `include/nvte/types.h`.
#![allow(non_camel_case_types, non_upper_case_globals)]

use num_derive::FromPrimitive;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// A CUDA stream, as `cuda_runtime.h` declares it. The CPU backend ignores it.
#[repr(C)]
pub struct CUstream_st {
    _opaque: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;

/// A CUDA event, as `cuda_runtime.h` declares it.
#[repr(C)]
pub struct CUevent_st {
    _opaque: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;

/// A communicator of NCCL, as `nccl.h` declares it.
#[repr(C)]
pub struct ncclComm {
    _opaque: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;

/// Symmetric memory of NCCL, as `nccl.h` declares what an `ncclWindow_t` points to.
#[repr(C)]
pub struct ncclWindow_vidmem {
    _opaque: [u8; 0],
}

/// Element type of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, FromPrimitive)]
pub enum NVTEDType {
    kNVTEByte = 0,
    kNVTEInt16 = 1,
    kNVTEInt32 = 2,
    kNVTEInt64 = 3,
    #[default]
    kNVTEFloat32 = 4,
    kNVTEFloat16 = 5,
    kNVTEBFloat16 = 6,
    kNVTEFloat8E4M3 = 7,
    kNVTEFloat8E5M2 = 8,
    kNVTEFloat8E8M0 = 9,
    kNVTEFloat4E2M1 = 10,
    kNVTENumTypes = 11,
}

/// How the scales of a tensor are laid out; mode 0 is also "not quantized".
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, FromPrimitive)]
pub enum NVTEScalingMode {
    #[default]
    NVTE_DELAYED_TENSOR_SCALING = 0,
    NVTE_MXFP8_1D_SCALING = 1,
    NVTE_BLOCK_SCALING_1D = 2,
    NVTE_BLOCK_SCALING_2D = 3,
    NVTE_NVFP4_1D_SCALING = 4,
    NVTE_INVALID_SCALING = 100,
}

/// Kind of normalization.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_Norm_Type {
    LayerNorm = 0,
    RMSNorm = 1,
}

/// How a map of tokens to experts is stored: a byte or a bit for each expert.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTERoutingMapFormat {
    NVTE_ROUTING_MAP_FORMAT_BYTEMAP = 0,
    NVTE_ROUTING_MAP_FORMAT_BITMAP_U8 = 1,
}

/// Whether the router itself counts distances to the cutoff.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEQBHistogramMode {
    NVTE_QB_HISTOGRAM_TWO_KERNEL = 0,
    NVTE_QB_HISTOGRAM_FUSED_ATOMIC = 1,
}

/// Parameters of a tensor handle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTETensorParam {
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
}

/// Parameters of a grouped tensor handle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEGroupedTensorParam {
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
}

/// Block-scale selection rule of NVFP4 quantization.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTENVFP44Over6Mode {
    kNVTENVFP44Over6Disabled = 0,
    kNVTENVFP44Over6MinMAE = 1,
    kNVTENVFP44Over6MinMSE = 2,
}

/// Attributes of a quantization config.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEQuantizationConfigAttribute {
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
}

/// Attributes of a matmul config.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEMatmulConfigAttribute {
    kNVTEMatmulConfigBiasTensor = 0,
    kNVTEMatmulConfigDBiasTensor = 1,
    kNVTEMatmulConfigWithGELUEpilogue = 2,
    kNVTEMatmulConfigWithDGELUEpilogue = 3,
    kNVTEMatmulConfigEpilogueAuxTensor = 4,
    kNVTEMatmulConfigUseSplitAccumulator = 5,
    kNVTEMatmulConfigSMCount = 6,
    kNVTEMatmulConfigNumAttributes = 7,
}

/// Attributes of a grouped matmul config.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEGroupedMatmulConfigAttribute {
    kNVTEGroupedMatmulConfigAvgM = 0,
    kNVTEGroupedMatmulConfigAvgN = 1,
    kNVTEGroupedMatmulConfigAvgK = 2,
    kNVTEGroupedMatmulConfigSMCount = 3,
    kNVTEGroupedMatmulConfigUseSplitAccumulator = 4,
    kNVTEGroupedMatmulConfigNumAttributes = 5,
}

/// Activations, plain and gated. No function takes such a value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_Activation_Type {
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
}

/// Dimensions of a tensor; entries at and past `ndim` are not read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NVTEShape {
    pub data: [usize; 15],
    pub ndim: usize,
}

impl Default for NVTEShape {
    /// The shape `(0)` of an unset buffer.
    fn default() -> Self {
        Self { data: [0; 15], ndim: 1 }
    }
}

/// A buffer: pointer, element type, shape. The memory belongs to the caller.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEBasicTensor {
    pub data_ptr: *mut c_void,
    pub dtype: MaybeUninit<NVTEDType>,
    pub shape: NVTEShape,
}

impl Default for NVTEBasicTensor {
    fn default() -> Self {
        Self {
            data_ptr: std::ptr::null_mut(),
            dtype: MaybeUninit::new(NVTEDType::kNVTEFloat32),
            shape: NVTEShape::default(),
        }
    }
}

/// Handle of a tensor. Null is "no tensor".
pub type NVTETensor = *mut c_void;
/// Handle of a grouped tensor.
pub type NVTEGroupedTensor = *mut c_void;
/// Handle of a quantization config. Null means defaults.
pub type NVTEQuantizationConfig = *mut c_void;
/// Handle of a matmul config. Null means defaults.
pub type NVTEMatmulConfig = *mut c_void;
/// Handle of a grouped matmul config. Null means defaults.
pub type NVTEGroupedMatmulConfig = *mut c_void;

/// A fixed array of tensor handles, `size` of them in use.
#[repr(C)]
pub struct NVTETensorPack {
    pub tensors: [NVTETensor; 10],
    pub size: usize,
}

/// Order of the dimensions of queries, keys and values: sequence, batch, heads, elements, or packed
/// tokens (T) of all sequences.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_QKV_Format {
    #[default]
    NVTE_SBHD = 0,
    NVTE_BSHD = 1,
    NVTE_THD = 2,
    NVTE_BSHD_2SBHD = 3,
    NVTE_SBHD_2BSHD = 4,
    NVTE_THD_2BSHD = 5,
    NVTE_THD_2SBHD = 6,
    NVTE_BHSD = 7,
    NVTE_QKV_Format_NOT_SET = 8,
}

/// How queries, keys and values lie in memory: dimensions in order (sequence, batch, heads, elements, or
/// packed tokens T), 3 or 2 of them interleaved, or one after the other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_QKV_Layout {
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
}

/// Which of the three are interleaved, and where.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NVTE_QKV_Layout_Group {
    #[default]
    NVTE_3HD = 0,
    NVTE_H3D = 1,
    NVTE_HD_2HD = 2,
    NVTE_HD_H2D = 3,
    NVTE_HD_HD_HD = 4,
    NVTE_Paged_KV_HD_HD_HD = 5,
    NVTE_SD_SD_SD = 6,
}

/// What is added to the scores.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_Bias_Type {
    NVTE_NO_BIAS = 0,
    NVTE_PRE_SCALE_BIAS = 1,
    NVTE_POST_SCALE_BIAS = 2,
    NVTE_ALIBI = 3,
}

/// Which scores count.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_Mask_Type {
    NVTE_NO_MASK = 0,
    NVTE_PADDING_MASK = 1,
    NVTE_CAUSAL_MASK = 2,
    NVTE_PADDING_CAUSAL_MASK = 3,
    NVTE_CAUSAL_BOTTOM_RIGHT_MASK = 4,
    NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK = 5,
}

/// Whether the softmax has one more column.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTE_Softmax_Type {
    NVTE_VANILLA_SOFTMAX = 0,
    NVTE_OFF_BY_ONE_SOFTMAX = 1,
    NVTE_LEARNABLE_SOFTMAX = 2,
}

/// Kind of implementation of an attention.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTE_Fused_Attn_Backend {
    NVTE_No_Backend = -1,
    NVTE_F16_arbitrary_seqlen = 1,
    NVTE_FP8 = 2,
}

/// Attributes of a config of attention.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEFusedAttnConfigAttribute {
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
}

/// Attributes of the parameters of a forward attention.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEFusedAttnFwdParamsAttribute {
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
}

/// Attributes of the parameters of a backward attention.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEFusedAttnBwdParamsAttribute {
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
}

/// Config of an attention.
pub type NVTEFusedAttnConfig = *mut c_void;
/// Parameters of a forward attention.
pub type NVTEFusedAttnFwdParams = *mut c_void;
/// Parameters of a backward attention.
pub type NVTEFusedAttnBwdParams = *mut c_void;

/// What iterations over the ranks of a communicator keep.
pub struct NVTECusolverMpCtx {
    _opaque: [u8; 0],
}

/// What products over the ranks of a communicator keep.
pub struct NVTECommGemmCtx {
    _opaque: [u8; 0],
}

/// How a product and its communication overlap: a hint.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTECommGemmAlgoType {
    kNVTECommGemmAlgoDefault = 0,
    kNVTECommGemmAlgoSplitP2P = 1,
    kNVTECommGemmAlgoSplitMulticast = 2,
    kNVTECommGemmAlgoAtomicP2P = 3,
    kNVTECommGemmAlgoAtomicMulticast = 4,
}

/// Symmetric memory in place of a tensor's own pointers; all zero: the pointers are used. Offsets are
/// in bytes. The second pair stands for `scale_inv`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTECommWindow {
    pub window: *mut ncclWindow_vidmem,
    pub offset: u64,
    pub scale_window: *mut ncclWindow_vidmem,
    pub scale_offset: u64,
}

/// A group of ranks between which the experts of layers are divided. Fields that `struct_size` does not
/// reach are 0.
#[repr(C)]
#[derive(Clone, Copy)]
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
    pub max_token_dtype: MaybeUninit<NVTEDType>,
    /// Payloads lie in windows.
    pub zero_copy: i32,
    pub num_topk: i32,
    /// Rows beyond `max_recv_tokens_per_rank` are left out; 0: they are an error.
    pub drop_on_overflow: i32,
}

/// A layer of experts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEEpLayerConfig {
    /// At least 24, which 0 also means.
    pub struct_size: usize,
    /// Experts of a token.
    pub top_k: i32,
    /// The rows of an expert are padded to a multiple of this; 0 and 1: not at all.
    pub dispatch_output_per_expert_alignment: usize,
}

impl NVTEDType {
    /// Bits of an element.
    pub const fn bits(self) -> usize {
        use NVTEDType::*;
        match self {
            kNVTEInt64 => 64,
            kNVTEInt32 | kNVTEFloat32 => 32,
            kNVTEInt16 | kNVTEFloat16 | kNVTEBFloat16 => 16,
            kNVTEByte | kNVTEFloat8E4M3 | kNVTEFloat8E5M2 | kNVTEFloat8E8M0 => 8,
            kNVTEFloat4E2M1 => 4,
            kNVTENumTypes => 0,
        }
    }

    /// E4M3 or E5M2.
    pub fn is_fp8(self) -> bool {
        matches!(self, NVTEDType::kNVTEFloat8E4M3 | NVTEDType::kNVTEFloat8E5M2)
    }

    /// Largest finite value of an FP8 type.
    pub fn fp8_max(self) -> f32 {
        if self == NVTEDType::kNVTEFloat8E5M2 { 57344.0 } else { 448.0 }
    }
}
