//! Types of the C ABI: enumerations, plain structs and opaque pointers, with the layouts of
//! release 2.20.2. They become `include/nvte/types.h`.
#![allow(non_camel_case_types, non_upper_case_globals)]

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

/// Element type of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTE_Norm_Type {
    LayerNorm = 0,
    RMSNorm = 1,
}

/// Parameters of a tensor handle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEGroupedMatmulConfigAttribute {
    kNVTEGroupedMatmulConfigAvgM = 0,
    kNVTEGroupedMatmulConfigAvgN = 1,
    kNVTEGroupedMatmulConfigAvgK = 2,
    kNVTEGroupedMatmulConfigSMCount = 3,
    kNVTEGroupedMatmulConfigUseSplitAccumulator = 4,
    kNVTEGroupedMatmulConfigNumAttributes = 5,
}

/// Activations, plain and gated. No function takes one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTE_QKV_Format {
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
