// Generated from the C headers by tests/abi.rs.
use crate::config::{Names, initialized};
use crate::module::module;
use nvte_sys as sys;

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum DType {
    /// `kNVTEByte`
    Byte = 0,
    /// `kNVTEInt16`
    Int16 = 1,
    /// `kNVTEInt32`
    Int32 = 2,
    /// `kNVTEInt64`
    Int64 = 3,
    /// `kNVTEFloat32`
    Float32 = 4,
    /// `kNVTEFloat16`
    Float16 = 5,
    /// `kNVTEBFloat16`
    BFloat16 = 6,
    /// `kNVTEFloat8E4M3`
    Float8E4M3 = 7,
    /// `kNVTEFloat8E5M2`
    Float8E5M2 = 8,
    /// `kNVTEFloat8E8M0`
    Float8E8M0 = 9,
    /// `kNVTEFloat4E2M1`
    Float4E2M1 = 10,
}

impl DType {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Byte),
            1 => Some(Self::Int16),
            2 => Some(Self::Int32),
            3 => Some(Self::Int64),
            4 => Some(Self::Float32),
            5 => Some(Self::Float16),
            6 => Some(Self::BFloat16),
            7 => Some(Self::Float8E4M3),
            8 => Some(Self::Float8E5M2),
            9 => Some(Self::Float8E8M0),
            10 => Some(Self::Float4E2M1),
            _ => None,
        }
    }
}

/// Kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum NormType {
    /// `LayerNorm`
    LayerNorm = 0,
    /// `RMSNorm`
    RMSNorm = 1,
}

impl NormType {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::LayerNorm),
            1 => Some(Self::RMSNorm),
            _ => None,
        }
    }
}

/// Activations, plain and gated. No function takes such a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum ActivationType {
    /// `GELU`
    Gelu = 0,
    /// `GEGLU`
    Geglu = 1,
    /// `GLU`
    Glu = 2,
    /// `SILU`
    Silu = 3,
    /// `SWIGLU`
    Swiglu = 4,
    /// `RELU`
    Relu = 5,
    /// `REGLU`
    Reglu = 6,
    /// `QGELU`
    Qgelu = 7,
    /// `QGEGLU`
    Qgeglu = 8,
    /// `SRELU`
    Srelu = 9,
    /// `SREGLU`
    Sreglu = 10,
    /// `CLAMPED_SWIGLU`
    ClampedSwiglu = 11,
}

impl ActivationType {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Gelu),
            1 => Some(Self::Geglu),
            2 => Some(Self::Glu),
            3 => Some(Self::Silu),
            4 => Some(Self::Swiglu),
            5 => Some(Self::Relu),
            6 => Some(Self::Reglu),
            7 => Some(Self::Qgelu),
            8 => Some(Self::Qgeglu),
            9 => Some(Self::Srelu),
            10 => Some(Self::Sreglu),
            11 => Some(Self::ClampedSwiglu),
            _ => None,
        }
    }
}

/// Order of the dimensions of queries, keys and values: sequence, batch, heads, elements, or packed
/// tokens (T) of all sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum QKVFormat {
    /// `NVTE_SBHD`
    SBHD = 0,
    /// `NVTE_BSHD`
    BSHD = 1,
    /// `NVTE_THD`
    THD = 2,
    /// `NVTE_BSHD_2SBHD`
    BSHD2SBHD = 3,
    /// `NVTE_SBHD_2BSHD`
    SBHD2BSHD = 4,
    /// `NVTE_THD_2BSHD`
    THD2BSHD = 5,
    /// `NVTE_THD_2SBHD`
    THD2SBHD = 6,
    /// `NVTE_BHSD`
    BHSD = 7,
    /// `NVTE_QKV_Format_NOT_SET`
    QKVFormatNOTSET = 8,
}

impl QKVFormat {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::SBHD),
            1 => Some(Self::BSHD),
            2 => Some(Self::THD),
            3 => Some(Self::BSHD2SBHD),
            4 => Some(Self::SBHD2BSHD),
            5 => Some(Self::THD2BSHD),
            6 => Some(Self::THD2SBHD),
            7 => Some(Self::BHSD),
            8 => Some(Self::QKVFormatNOTSET),
            _ => None,
        }
    }
}

/// Which scores count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum MaskType {
    /// `NVTE_NO_MASK`
    NoMask = 0,
    /// `NVTE_PADDING_MASK`
    PaddingMask = 1,
    /// `NVTE_CAUSAL_MASK`
    CausalMask = 2,
    /// `NVTE_PADDING_CAUSAL_MASK`
    PaddingCausalMask = 3,
    /// `NVTE_CAUSAL_BOTTOM_RIGHT_MASK`
    CausalBottomRightMask = 4,
    /// `NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK`
    PaddingCausalBottomRightMask = 5,
}

impl MaskType {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::NoMask),
            1 => Some(Self::PaddingMask),
            2 => Some(Self::CausalMask),
            3 => Some(Self::PaddingCausalMask),
            4 => Some(Self::CausalBottomRightMask),
            5 => Some(Self::PaddingCausalBottomRightMask),
            _ => None,
        }
    }
}

/// Whether the softmax has one more column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum SoftmaxType {
    /// `NVTE_VANILLA_SOFTMAX`
    VanillaSoftmax = 0,
    /// `NVTE_OFF_BY_ONE_SOFTMAX`
    OffBYOneSoftmax = 1,
    /// `NVTE_LEARNABLE_SOFTMAX`
    LearnableSoftmax = 2,
}

impl SoftmaxType {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::VanillaSoftmax),
            1 => Some(Self::OffBYOneSoftmax),
            2 => Some(Self::LearnableSoftmax),
            _ => None,
        }
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Status {
    /// No call of this thread has failed since the status was cleared.
    Ok = 0,
    /// An argument is wrong; the message names it.
    InvalidArgument = 1,
    /// Valid, but not available in this build or on this device.
    Unsupported = 2,
    /// The device, its driver or one of its libraries failed.
    DeviceError = 3,
    /// A defect of this library.
    InternalError = 4,
}

impl Status {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Ok),
            1 => Some(Self::InvalidArgument),
            2 => Some(Self::Unsupported),
            3 => Some(Self::DeviceError),
            4 => Some(Self::InternalError),
            _ => None,
        }
    }
}

/// How operands of matrix products are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum RecipeKind {
    /// One scale for a tensor, from the maxima of earlier steps.
    DelayedScaling = 0,
    /// One scale for a tensor, from its own maximum.
    CurrentScaling = 1,
    /// A scale for each 128 elements, or 128 x 128.
    BlockScaling = 2,
    /// A power of two for each 32 elements, or 32 x 32 of a weight.
    MXFP8 = 3,
    /// The function `choose` says how each operand is scaled.
    Custom = 4,
    /// NVFP4: a Float8E4M3 for each 16 elements, or 16 x 16 of a weight, and a factor for the tensor.
    /// For modules in Float32 or BFloat16, with inputs of a multiple of 16 rows.
    NVFP4 = 5,
}

impl RecipeKind {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::DelayedScaling),
            1 => Some(Self::CurrentScaling),
            2 => Some(Self::BlockScaling),
            3 => Some(Self::MXFP8),
            4 => Some(Self::Custom),
            5 => Some(Self::NVFP4),
            _ => None,
        }
    }
}

/// FP8 types of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Format {
    /// `NVTEX_FORMAT_E4M3`
    E4M3 = 0,
    /// E5M2 for everything. Every recipe refuses it, because two E5M2 operands cannot be multiplied.
    E5M2 = 1,
    /// E4M3, and E5M2 for gradients.
    Hybrid = 2,
}

impl Format {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::E4M3),
            1 => Some(Self::E5M2),
            2 => Some(Self::Hybrid),
            _ => None,
        }
    }
}

/// Which maximum of a history counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum HistoryAlgo {
    /// `NVTEX_HISTORY_MAX`
    Max = 0,
    /// `NVTEX_HISTORY_MOST_RECENT`
    MostRecent = 1,
}

impl HistoryAlgo {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Max),
            1 => Some(Self::MostRecent),
            _ => None,
        }
    }
}

/// Operands of the products of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Backward {
    /// Gradients, inputs and weights as the recipe casts them.
    Quantized = 0,
    /// Gradients, inputs and weights in high precision. Not with delayed scaling.
    HighPrecision = 1,
    /// Gradients in high precision, and inputs and weights cast back from what the forward pass read. Not
    /// with delayed scaling.
    Dequantized = 2,
}

impl Backward {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Quantized),
            1 => Some(Self::HighPrecision),
            2 => Some(Self::Dequantized),
            _ => None,
        }
    }
}

/// Operands of the products of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Role {
    /// `NVTEX_ROLE_INPUT`
    Input = 0,
    /// `NVTEX_ROLE_WEIGHT`
    Weight = 1,
    /// `NVTEX_ROLE_GRAD_OUTPUT`
    GradOutput = 2,
}

impl Role {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Input),
            1 => Some(Self::Weight),
            2 => Some(Self::GradOutput),
            _ => None,
        }
    }
}

/// Scaling of an operand, for `NVTEX_RECIPE_CUSTOM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum SlotScaling {
    /// The operand stays in high precision.
    HighPrecision = 0,
    /// `NVTEX_SLOT_DELAYED`
    Delayed = 1,
    /// `NVTEX_SLOT_CURRENT`
    Current = 2,
    /// `NVTEX_SLOT_BLOCK`
    Block = 3,
    /// `NVTEX_SLOT_MXFP8`
    MXFP8 = 4,
    /// `NVTEX_SLOT_NVFP4`
    NVFP4 = 5,
}

impl SlotScaling {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::HighPrecision),
            1 => Some(Self::Delayed),
            2 => Some(Self::Current),
            3 => Some(Self::Block),
            4 => Some(Self::MXFP8),
            5 => Some(Self::NVFP4),
            _ => None,
        }
    }
}

/// Slots of delayed scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Pass {
    /// 3 slots: input, weight, output (not used).
    Forward = 0,
    /// 2 slots: gradient of the output, gradient of the input (not used).
    Backward = 1,
}

impl Pass {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Forward),
            1 => Some(Self::Backward),
            _ => None,
        }
    }
}

/// Norms of the heads of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum QKNorm {
    /// `NVTEX_QK_NORM_NONE`
    None = 0,
    /// `x / sqrt(sum(x^2) + epsilon)`, without parameters.
    L2 = 1,
    /// `NVTEX_QK_NORM_RMS`
    RMS = 2,
    /// `NVTEX_QK_NORM_LAYER`
    Layer = 3,
}

impl QKNorm {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::L2),
            2 => Some(Self::RMS),
            3 => Some(Self::Layer),
            _ => None,
        }
    }
}

/// How the ranks that share each sequence do their attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum ContextParallelKind {
    /// NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL where that is possible and moves fewer bytes, unless there is a window to the
    /// left; else NVTEX_CONTEXT_PARALLEL_ALL_GATHER.
    Automatic = 0,
    /// A rank gets some of the heads of whole sequences; heads of queries and of keys are multiples of the ranks. All
    /// masks, packed tokens and dropout, which drops the same elements as on one rank.
    AllToAll = 1,
    /// A rank gets the keys and values that its queries see. No dropout; masks with padding only of packed tokens, which
    /// have a causal mask, or neither a mask nor a window, and of which a rank gets all keys and values.
    AllGather = 2,
    /// A rank gets the keys and values of one rank after the other, so that its memory does not grow with the whole
    /// sequence. As NVTEX_CONTEXT_PARALLEL_ALL_GATHER, which it is if there is a window to the left: what that leaves comes at
    /// once. No window to the right alone.
    Ring = 3,
}

impl ContextParallelKind {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Automatic),
            1 => Some(Self::AllToAll),
            2 => Some(Self::AllGather),
            3 => Some(Self::Ring),
            _ => None,
        }
    }
}

/// Scores of a router, of the logits of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum MoeScore {
    /// The greatest logits are chosen, and weights are the softmax over those.
    Softmax = 0,
    /// Weights are the softmax over the logits of all experts; those of a token need not add up to 1.
    SoftmaxOfAll = 1,
    /// Weights are sigmoids, divided by the sum of those chosen if these are several.
    Sigmoid = 2,
    /// As NVTEX_MOE_SCORE_SIGMOID, with `sqrt(log(1 + exp(x)))`.
    Sqrtsoftplus = 3,
}

impl MoeScore {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Softmax),
            1 => Some(Self::SoftmaxOfAll),
            2 => Some(Self::Sigmoid),
            3 => Some(Self::Sqrtsoftplus),
            _ => None,
        }
    }
}

/// Place of a step among the microbatches that share their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Microbatch {
    /// Weights are cast in each step; gradients are written or added as they were bound.
    None = 0,
    /// Weights are cast and kept; gradients are overwritten.
    First = 1,
    /// The kept weights are used; gradients are added.
    Later = 2,
}

impl Microbatch {
    /// The variant with this number in C, if there is one.
    pub fn from_c(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::First),
            2 => Some(Self::Later),
            _ => None,
        }
    }
}

/// What a recipe says of one role.
#[derive(Clone, Debug)]
pub struct RoleOptions {
    pub(crate) raw: sys::NVTEXRoleOptions,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl RoleOptions {

    /// Rounds scales down to powers of two (current scaling, FP8 blocks).
    pub fn power_2_scales(mut self, value: bool) -> Self {
        self.raw.power_2_scales = value;
        self
    }

    /// The least maximum that counts (current scaling, FP8 blocks).
    pub fn amax_epsilon(mut self, value: f32) -> Self {
        self.raw.amax_epsilon = value;
        self
    }

    /// 1: blocks along rows; 2: square ones (FP8 blocks; MXFP8 and NVFP4 weights).
    pub fn block_dim(mut self, value: i32) -> Self {
        self.raw.block_dim = value;
        self
    }
}

/// A recipe. `nvtex_recipe_config_init` sets the defaults.
#[derive(Clone, Debug)]
pub struct RecipeConfig {
    pub(crate) raw: sys::NVTEXRecipeConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl RecipeConfig {

    /// Sets `kind`.
    pub fn kind(mut self, value: RecipeKind) -> Self {
        self.raw.kind = value as i32;
        self
    }

    /// FP8 types. Default: hybrid; E4M3 in block recipes.
    pub fn format(mut self, value: Format) -> Self {
        self.raw.format = value as i32;
        self
    }

    /// Delayed scaling multiplies scales by `2^-margin`. Default 0.
    pub fn margin(mut self, value: f32) -> Self {
        self.raw.margin = value;
        self
    }

    /// Delayed scaling: maxima that are kept. Default 1024.
    pub fn amax_history_len(mut self, value: usize) -> Self {
        self.raw.amax_history_len = value;
        self
    }

    /// Sets `amax_algo`.
    pub fn amax_algo(mut self, value: HistoryAlgo) -> Self {
        self.raw.amax_algo = value as i32;
        self
    }

    /// Delayed scaling: histories and scales change in every n-th update, with n this number. The maxima
    /// of the updates between count as those of one step. Default 1.
    pub fn update_interval(mut self, value: u32) -> Self {
        self.raw.update_interval = value;
        self
    }

    /// Delayed scaling: maxima are reduced over the group of `nvtex_context_begin`. Default true.
    pub fn reduce_amax(mut self, value: bool) -> Self {
        self.raw.reduce_amax = value;
        self
    }

    /// Sets `input`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn input(mut self, change: impl FnOnce(RoleOptions) -> RoleOptions) -> Self {
        let (raw, names) = (self.raw.input, self.names.clone());
        let changed = change(RoleOptions { raw, names });
        self.raw.input = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Sets `weight`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn weight(mut self, change: impl FnOnce(RoleOptions) -> RoleOptions) -> Self {
        let (raw, names) = (self.raw.weight, self.names.clone());
        let changed = change(RoleOptions { raw, names });
        self.raw.weight = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Sets `grad_output`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn grad_output(mut self, change: impl FnOnce(RoleOptions) -> RoleOptions) -> Self {
        let (raw, names) = (self.raw.grad_output, self.names.clone());
        let changed = change(RoleOptions { raw, names });
        self.raw.grad_output = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Sums the products of each pass more precisely. Defaults: false, true, true; for FP8 blocks,
    /// which need it, always true.
    pub fn split_accumulator_fprop(mut self, value: bool) -> Self {
        self.raw.split_accumulator_fprop = value;
        self
    }

    /// Sets `split_accumulator_dgrad`.
    pub fn split_accumulator_dgrad(mut self, value: bool) -> Self {
        self.raw.split_accumulator_dgrad = value;
        self
    }

    /// Sets `split_accumulator_wgrad`.
    pub fn split_accumulator_wgrad(mut self, value: bool) -> Self {
        self.raw.split_accumulator_wgrad = value;
        self
    }

    /// Default: quantized.
    pub fn backward(mut self, value: Backward) -> Self {
        self.raw.backward = value as i32;
        self
    }

    /// Attention reads queries, keys and values in E4M3, with one scale for a tensor from its own
    /// maximum. Its result is in high precision, and so are the gradients, which are those of what the
    /// forward pass has read. This is for delayed and current scaling, without a cache of keys and
    /// values. Default: false.
    pub fn fp8_dpa(mut self, value: bool) -> Self {
        self.raw.fp8_dpa = value;
        self
    }

    /// NVFP4: inputs and gradients go through a random Hadamard transform of each 16 rows before they are
    /// cast for the product of the weight's gradient. Default: true.
    pub fn nvfp4_hadamard(mut self, value: bool) -> Self {
        self.raw.nvfp4_hadamard = value;
        self
    }

    /// NVFP4: gradients are rounded stochastically, by the `rng_state` of the step, which is needed then.
    /// Default: true.
    pub fn nvfp4_stochastic_rounding(mut self, value: bool) -> Self {
        self.raw.nvfp4_stochastic_rounding = value;
        self
    }
}

/// What a context gets from the program. All fields may be null or 0.
///
/// The functions must not call functions of the same context, its modules, tapes and caches, not even those
/// that destroy: such a call is an error. A C++ exception that leaves one of them becomes an error of the call
/// that called it. They must end by returning or by an exception: `longjmp` out of them, and ending the thread
/// in them, is undefined behaviour.
#[derive(Clone, Debug)]
pub struct ContextConfig {
    pub(crate) raw: sys::NVTEXContextConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl ContextConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_context_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Multiprocessors that normalizations may keep busy; sums depend on it. 0: all of the device's, and
    /// 132 on the CPU backend.
    pub fn multiprocessor_count(mut self, value: i32) -> Self {
        self.raw.multiprocessor_count = value;
        self
    }

    /// Without `allocate`: bytes that the context may keep unused when it asks the device for more.
    /// What is beyond goes back to the device first, and the device waits for its work then. Memory
    /// that a captured graph uses stays. 0: four times the most that passes have used at once, at
    /// least 4 MiB. SIZE_MAX: everything is kept.
    pub fn max_unused_bytes(mut self, value: usize) -> Self {
        self.raw.max_unused_bytes = value;
        self
    }
}

impl Default for ContextConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Config of a norm, as a module or as the first part of one.
#[derive(Clone, Debug)]
pub struct NormConfig {
    pub(crate) raw: sys::NVTEXNormConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl NormConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_norm_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Default: LayerNorm.
    pub fn kind(mut self, value: NormType) -> Self {
        self.raw.kind = value as i32;
        self
    }

    /// Elements of a row.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// Default: 1e-5.
    pub fn epsilon(mut self, value: f32) -> Self {
        self.raw.epsilon = value;
        self
    }

    /// The weight is stored as its distance from 1.
    pub fn zero_centered_gamma(mut self, value: bool) -> Self {
        self.raw.zero_centered_gamma = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Of a norm that is a module: the ranks that share weights share its rows, so that the gradients of its parameters
    /// are summed over them. Default: false.
    pub fn sequence_parallel(mut self, value: bool) -> Self {
        self.raw.sequence_parallel = value;
        self
    }
}

impl Default for NormConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// How a module is spread over the ranks of its context's grid (`nvtex_context_set_grid`).
///
/// Sizes in configs are those of the whole module. Parameters are parts of it, as `nvtex_module_parameter` says, with
/// the initial values that they have in the whole; all ranks give the same seeds. Inputs and outputs are parts where this
/// is said below, and gradients are complete: the library has summed what comes from the parts of other ranks.
/// All ranks make the same calls in the same order, and bind the same gradients.
#[derive(Clone, Debug)]
pub struct ParallelConfig {
    pub(crate) raw: sys::NVTEXParallelConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl ParallelConfig {

    /// Ranks that share each weight: 1 (default): the module is not divided, and the same on all ranks; 0: those of
    /// NVTEX_GRID_TP; or the number of these. They share outputs of the products that come first in a module (rows of
    /// the weight; in the MLP those of the function and of its gate each; heads) and the inputs of those that come last
    /// (columns of the weight), after which one sum over the ranks follows. Inputs and outputs of modules are whole, those
    /// of attention without projections have the own heads.
    pub fn tensor_parallel_size(mut self, value: usize) -> Self {
        self.raw.tensor_parallel_size = value;
        self
    }

    /// The same ranks share the rows between products, too: inputs and outputs, norms, dropout and residuals have an
    /// equal share of the first dimension, in the order of the ranks. Default: false.
    pub fn sequence_parallel(mut self, value: bool) -> Self {
        self.raw.sequence_parallel = value;
        self
    }

    /// Ranks that share each sequence. Default: 1.
    pub fn context_parallel_size(mut self, value: usize) -> Self {
        self.raw.context_parallel_size = value;
        self
    }
}

/// `y = x W^T + b`
#[derive(Clone, Debug)]
pub struct LinearConfig {
    pub(crate) raw: sys::NVTEXLinearConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl LinearConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_linear_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Sets `in_features`.
    pub fn in_features(mut self, value: usize) -> Self {
        self.raw.in_features = value;
        self
    }

    /// Sets `out_features`.
    pub fn out_features(mut self, value: usize) -> Self {
        self.raw.out_features = value;
        self
    }

    /// Default: true.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Standard deviation of the initial weight. Default: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Seed of the initial weight.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// How ranks share the module.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn parallel(mut self, change: impl FnOnce(ParallelConfig) -> ParallelConfig) -> Self {
        let (raw, names) = (self.raw.parallel, self.names.clone());
        let changed = change(ParallelConfig { raw, names });
        self.raw.parallel = changed.raw;
        self.names.join(changed.names);
        self
    }
}

impl Default for LinearConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// `y = norm(x) W^T + b`. The norm's `hidden_size`, `name` and `dtype` are ignored.
///
/// A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[derive(Clone, Debug)]
pub struct LayerNormLinearConfig {
    pub(crate) raw: sys::NVTEXLayerNormLinearConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl LayerNormLinearConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_layernorm_linear_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Sets `norm`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn norm(mut self, change: impl FnOnce(NormConfig) -> NormConfig) -> Self {
        let (raw, names) = (self.raw.norm, self.names.clone());
        let changed = change(NormConfig { raw, names });
        self.raw.norm = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Sets `linear`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn linear(mut self, change: impl FnOnce(LinearConfig) -> LinearConfig) -> Self {
        let (raw, names) = (self.raw.linear, self.names.clone());
        let changed = change(LinearConfig { raw, names });
        self.raw.linear = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// `linear.name`.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// `linear.in_features`. Default: 0.
    pub fn in_features(mut self, value: usize) -> Self {
        self.raw.in_features = value;
        self
    }

    /// `linear.out_features`. Default: 0.
    pub fn out_features(mut self, value: usize) -> Self {
        self.raw.out_features = value;
        self
    }

    /// `linear.bias`. Default: true.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Seed of the initial weight: `linear.seed`. Default: 0.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// `norm.kind`. Default: LayerNorm.
    pub fn norm_type(mut self, value: NormType) -> Self {
        self.raw.norm_type = value as i32;
        self
    }

    /// `norm.epsilon`. Default: 1e-5.
    pub fn norm_epsilon(mut self, value: f32) -> Self {
        self.raw.norm_epsilon = value;
        self
    }

    /// How ranks share the module: `linear.parallel`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn parallel(mut self, change: impl FnOnce(ParallelConfig) -> ParallelConfig) -> Self {
        let (raw, names) = (self.raw.parallel, self.names.clone());
        let changed = change(ParallelConfig { raw, names });
        self.raw.parallel = changed.raw;
        self.names.join(changed.names);
        self
    }
}

impl Default for LayerNormLinearConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// `y_e = x_e W_e^T + b_e`
///
/// A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[derive(Clone, Debug)]
pub struct GroupedLinearConfig {
    pub(crate) raw: sys::NVTEXGroupedLinearConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl GroupedLinearConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_grouped_linear_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Parts, each with a weight of its own.
    pub fn num_gemms(mut self, value: usize) -> Self {
        self.raw.num_gemms = value;
        self
    }

    /// Config of each part, with one name for all. Initial weights differ.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn linear(mut self, change: impl FnOnce(LinearConfig) -> LinearConfig) -> Self {
        let (raw, names) = (self.raw.linear, self.names.clone());
        let changed = change(LinearConfig { raw, names });
        self.raw.linear = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// `linear.name`.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// `linear.in_features`. Default: 0.
    pub fn in_features(mut self, value: usize) -> Self {
        self.raw.in_features = value;
        self
    }

    /// `linear.out_features`. Default: 0.
    pub fn out_features(mut self, value: usize) -> Self {
        self.raw.out_features = value;
        self
    }

    /// `linear.bias`. Default: true.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Seed of the initial weight: `linear.seed`. Default: 0.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }
}

impl Default for GroupedLinearConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// `y = f(norm(x) W1^T + b1) W2^T + b2`. The norm's `hidden_size`, `name` and `dtype` are ignored.
#[derive(Clone, Debug)]
pub struct LayerNormMLPConfig {
    pub(crate) raw: sys::NVTEXLayerNormMLPConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl LayerNormMLPConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_layernorm_mlp_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Sets `norm`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn norm(mut self, change: impl FnOnce(NormConfig) -> NormConfig) -> Self {
        let (raw, names) = (self.raw.norm, self.names.clone());
        let changed = change(NormConfig { raw, names });
        self.raw.norm = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Sets `hidden_size`.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// Elements after the activation. With a gated activation W1 has twice as many rows, first those
    /// of the function f, then those of the gate.
    pub fn ffn_hidden_size(mut self, value: usize) -> Self {
        self.raw.ffn_hidden_size = value;
        self
    }

    /// Default: GELU.
    pub fn activation(mut self, value: ActivationType) -> Self {
        self.raw.activation = value as i32;
        self
    }

    /// Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub fn clamp_limit(mut self, value: f32) -> Self {
        self.raw.clamp_limit = value;
        self
    }

    /// Sets `clamp_alpha`.
    pub fn clamp_alpha(mut self, value: f32) -> Self {
        self.raw.clamp_alpha = value;
        self
    }

    /// Sets `clamp_offset`.
    pub fn clamp_offset(mut self, value: f32) -> Self {
        self.raw.clamp_offset = value;
        self
    }

    /// Whether both linear layers have a bias. Default: true.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Standard deviations of the initial weights. Defaults: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Sets `output_init_std`.
    pub fn output_init_std(mut self, value: f32) -> Self {
        self.raw.output_init_std = value;
        self
    }

    /// Seed of the initial weights.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// Tapes hold the input, but neither the norm's result nor the input and the result of the
    /// activation. The backward pass computes these again, to the same bits, from weights that tapes
    /// then hold for both passes. Default: false.
    pub fn checkpoint(mut self, value: bool) -> Self {
        self.raw.checkpoint = value;
        self
    }

    /// How ranks share the module.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn parallel(mut self, change: impl FnOnce(ParallelConfig) -> ParallelConfig) -> Self {
        let (raw, names) = (self.raw.parallel, self.names.clone());
        let changed = change(ParallelConfig { raw, names });
        self.raw.parallel = changed.raw;
        self.names.join(changed.names);
        self
    }
}

impl Default for LayerNormMLPConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// `softmax(scale q k^T) v`, as `nvte_fused_attn_fwd_v2` has it.
#[derive(Clone, Debug)]
pub struct AttentionConfig {
    pub(crate) raw: sys::NVTEXAttentionConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl AttentionConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_attention_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Sets `num_attention_heads`.
    pub fn num_attention_heads(mut self, value: usize) -> Self {
        self.raw.num_attention_heads = value;
        self
    }

    /// Heads of keys and values. 0: as many as of queries.
    pub fn num_gqa_groups(mut self, value: usize) -> Self {
        self.raw.num_gqa_groups = value;
        self
    }

    /// Sets `head_dim_qk`.
    pub fn head_dim_qk(mut self, value: usize) -> Self {
        self.raw.head_dim_qk = value;
        self
    }

    /// Elements of a head of values; 0 stands for `head_dim_qk`.
    pub fn head_dim_v(mut self, value: usize) -> Self {
        self.raw.head_dim_v = value;
        self
    }

    /// Dropout of the probabilities, in passes with a tape. Default: 0.
    pub fn attention_dropout(mut self, value: f32) -> Self {
        self.raw.attention_dropout = value;
        self
    }

    /// NVTE_SBHD (default), NVTE_BSHD, or NVTE_THD (packed tokens, only with masks that have padding).
    pub fn qkv_format(mut self, value: QKVFormat) -> Self {
        self.raw.qkv_format = value as i32;
        self
    }

    /// Default: NVTE_CAUSAL_MASK.
    pub fn attn_mask_type(mut self, value: MaskType) -> Self {
        self.raw.attn_mask_type = value as i32;
        self
    }

    /// The numbers of keys before and after a query that it sees; -1 (default): all.
    pub fn window_size_left(mut self, value: i64) -> Self {
        self.raw.window_size_left = value;
        self
    }

    /// Sets `window_size_right`.
    pub fn window_size_right(mut self, value: i64) -> Self {
        self.raw.window_size_right = value;
        self
    }

    /// Windows of masks that are not causal are aligned at the bottom right. Default: true.
    pub fn bottom_right_diagonal(mut self, value: bool) -> Self {
        self.raw.bottom_right_diagonal = value;
        self
    }

    /// Sets `softmax_type`.
    pub fn softmax_type(mut self, value: SoftmaxType) -> Self {
        self.raw.softmax_type = value as i32;
        self
    }

    /// Factor of the scores; 0 (default) stands for `1 / sqrt(head_dim_qk)`.
    pub fn softmax_scale(mut self, value: f32) -> Self {
        self.raw.softmax_scale = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// In modules with projections: tapes hold queries, keys and values, but not the attention's
    /// result and statistics, which the backward pass computes again, to the same bits. Default:
    /// false.
    pub fn checkpoint_core_attention(mut self, value: bool) -> Self {
        self.raw.checkpoint_core_attention = value;
        self
    }

    /// In self attention of modules with projections: normalizes each head of queries and keys, after
    /// or before the rotary embedding. Default: none.
    pub fn qk_norm_type(mut self, value: QKNorm) -> Self {
        self.raw.qk_norm_type = value as i32;
        self
    }

    /// Default: 1e-6.
    pub fn qk_norm_epsilon(mut self, value: f32) -> Self {
        self.raw.qk_norm_epsilon = value;
        self
    }

    /// Default: false.
    pub fn qk_norm_before_rope(mut self, value: bool) -> Self {
        self.raw.qk_norm_before_rope = value;
        self
    }

    /// How ranks share the module.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn parallel(mut self, change: impl FnOnce(ParallelConfig) -> ParallelConfig) -> Self {
        let (raw, names) = (self.raw.parallel, self.names.clone());
        let changed = change(ParallelConfig { raw, names });
        self.raw.parallel = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// How ranks that share each sequence do their attention. Default: automatic.
    pub fn context_parallel_kind(mut self, value: ContextParallelKind) -> Self {
        self.raw.context_parallel_kind = value as i32;
        self
    }
}

impl Default for AttentionConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Config of projections, attention, and a projection. The attention's `name` is ignored; if its
/// `head_dim_qk` is 0 (default), it is `hidden_size / num_attention_heads`, and `head_dim_v` is the
/// same.
///
/// A field from `num_attention_heads` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[derive(Clone, Debug)]
pub struct MultiheadAttentionConfig {
    pub(crate) raw: sys::NVTEXMultiheadAttentionConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl MultiheadAttentionConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_multihead_attention_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Sets `hidden_size`.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// Sets `attention`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn attention(mut self, change: impl FnOnce(AttentionConfig) -> AttentionConfig) -> Self {
        let (raw, names) = (self.raw.attention, self.names.clone());
        let changed = change(AttentionConfig { raw, names });
        self.raw.attention = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// A norm in front of the first projection. Default: false. Its `hidden_size`, `name` and `dtype` are
    /// ignored.
    pub fn input_layernorm(mut self, value: bool) -> Self {
        self.raw.input_layernorm = value;
        self
    }

    /// Sets `norm`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn norm(mut self, change: impl FnOnce(NormConfig) -> NormConfig) -> Self {
        let (raw, names) = (self.raw.norm, self.names.clone());
        let changed = change(NormConfig { raw, names });
        self.raw.norm = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Keys and values come from a second input. Default: false.
    pub fn cross_attention(mut self, value: bool) -> Self {
        self.raw.cross_attention = value;
        self
    }

    /// Whether the projections have biases. Default: true.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    pub fn rotary_interleaved(mut self, value: bool) -> Self {
        self.raw.rotary_interleaved = value;
        self
    }

    /// Standard deviations of the initial weights, of the first projections and of the last. Default: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Sets `output_init_std`.
    pub fn output_init_std(mut self, value: f32) -> Self {
        self.raw.output_init_std = value;
        self
    }

    /// Seed of the initial weights.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// `attention.num_attention_heads`. Default: 0.
    pub fn num_attention_heads(mut self, value: usize) -> Self {
        self.raw.num_attention_heads = value;
        self
    }

    /// Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    pub fn num_gqa_groups(mut self, value: usize) -> Self {
        self.raw.num_gqa_groups = value;
        self
    }

    /// `norm.kind`. Default: LayerNorm.
    pub fn norm_type(mut self, value: NormType) -> Self {
        self.raw.norm_type = value as i32;
        self
    }

    /// `norm.epsilon`. Default: 1e-5.
    pub fn norm_epsilon(mut self, value: f32) -> Self {
        self.raw.norm_epsilon = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `attention.dtype`.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// `attention.qkv_format`. Default: NVTE_SBHD.
    pub fn qkv_format(mut self, value: QKVFormat) -> Self {
        self.raw.qkv_format = value as i32;
        self
    }

    /// `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    pub fn attn_mask_type(mut self, value: MaskType) -> Self {
        self.raw.attn_mask_type = value as i32;
        self
    }

    /// Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    pub fn attention_dropout(mut self, value: f32) -> Self {
        self.raw.attention_dropout = value;
        self
    }

    /// How ranks share the module: `attention.parallel`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn parallel(mut self, change: impl FnOnce(ParallelConfig) -> ParallelConfig) -> Self {
        let (raw, names) = (self.raw.parallel, self.names.clone());
        let changed = change(ParallelConfig { raw, names });
        self.raw.parallel = changed.raw;
        self.names.join(changed.names);
        self
    }
}

impl Default for MultiheadAttentionConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Config of a layer of experts: `y = sum_k w_k f_k(x) + g(x)` for the experts k that a router chooses for the token x,
/// each an MLP `f(x) = act(x W1^T + b1) W2^T + b2`, and an MLP g for all tokens.
#[derive(Clone, Debug)]
pub struct MoeConfig {
    pub(crate) raw: sys::NVTEXMoeConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl MoeConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_moe_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Sets `hidden_size`.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// Elements of an expert after its activation. With a gated activation W1 has twice as many rows, first those
    /// of the function, then those of the gate.
    pub fn ffn_hidden_size(mut self, value: usize) -> Self {
        self.raw.ffn_hidden_size = value;
        self
    }

    /// Sets `num_experts`.
    pub fn num_experts(mut self, value: usize) -> Self {
        self.raw.num_experts = value;
        self
    }

    /// Experts of a token.
    pub fn top_k(mut self, value: usize) -> Self {
        self.raw.top_k = value;
        self
    }

    /// Float16 or BFloat16, on the CPU backend also Float32 (default), of experts, inputs and outputs.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Of the router: Float32 (default) or `dtype`. Its products stay in it whatever the recipe says; logits are Float32.
    pub fn router_dtype(mut self, value: DType) -> Self {
        self.raw.router_dtype = value as i32;
        self
    }

    /// Default: SWIGLU.
    pub fn activation(mut self, value: ActivationType) -> Self {
        self.raw.activation = value as i32;
        self
    }

    /// Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub fn clamp_limit(mut self, value: f32) -> Self {
        self.raw.clamp_limit = value;
        self
    }

    /// Sets `clamp_alpha`.
    pub fn clamp_alpha(mut self, value: f32) -> Self {
        self.raw.clamp_alpha = value;
        self
    }

    /// Sets `clamp_offset`.
    pub fn clamp_offset(mut self, value: f32) -> Self {
        self.raw.clamp_offset = value;
        self
    }

    /// Whether experts and the shared MLP have biases. Default: false.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Default: NVTEX_MOE_SCORE_SOFTMAX.
    pub fn score(mut self, value: MoeScore) -> Self {
        self.raw.score = value as i32;
        self
    }

    /// Experts come in groups of neighbours, of which only the best `group_top_k` are chosen from; the score of a group is
    /// the sum of its best `top_k / group_top_k`. 0 (default): there are none.
    pub fn num_groups(mut self, value: usize) -> Self {
        self.raw.num_groups = value;
        self
    }

    /// Sets `group_top_k`.
    pub fn group_top_k(mut self, value: usize) -> Self {
        self.raw.group_top_k = value;
        self
    }

    /// A bias of each expert that is added to its score for the choice alone; not with a softmax. The program moves it, by
    /// what the third output says. Default: false.
    pub fn expert_bias(mut self, value: bool) -> Self {
        self.raw.expert_bias = value;
        self
    }

    /// Factor of the weights of experts. Default: 1.
    pub fn scaling_factor(mut self, value: f32) -> Self {
        self.raw.scaling_factor = value;
        self
    }

    /// Factor c of the loss of balance, `c E / (k T^2) sum_e n_e sum_t s_te`: of T tokens n_e have chosen expert e, to
    /// which token t gives the score s_te, divided by those of all experts. Default: 0.
    pub fn balance_coefficient(mut self, value: f32) -> Self {
        self.raw.balance_coefficient = value;
        self
    }

    /// Factor c of the loss of the size of the logits, `c / T sum_t log(sum_e exp(x_te))^2`. Default: 0.
    pub fn z_coefficient(mut self, value: f32) -> Self {
        self.raw.z_coefficient = value;
        self
    }

    /// Elements of the MLP for all tokens after its activation. 0 (default): there is none.
    pub fn shared_ffn_hidden_size(mut self, value: usize) -> Self {
        self.raw.shared_ffn_hidden_size = value;
        self
    }

    /// Standard deviations of the initial weights: of first and last products, and of the router. Defaults: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Sets `output_init_std`.
    pub fn output_init_std(mut self, value: f32) -> Self {
        self.raw.output_init_std = value;
        self
    }

    /// Sets `router_init_std`.
    pub fn router_init_std(mut self, value: f32) -> Self {
        self.raw.router_init_std = value;
        self
    }

    /// Seed of the initial weights.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// Ranks that share the experts: 1 (default): none; 0: those of NVTEX_GRID_EP; or the number of these. Each has
    /// `num_experts` divided by their number, and tokens of its own.
    pub fn expert_parallel_size(mut self, value: usize) -> Self {
        self.raw.expert_parallel_size = value;
        self
    }

    /// An expert takes at most `ceil(capacity_factor * top_k * T / num_experts)` choices, computed in double, of the T
    /// tokens of all ranks that share the experts: with 1 as many as if all experts had the same number. Choices beyond are
    /// dropped. 0 (default): none is.
    pub fn capacity_factor(mut self, value: f32) -> Self {
        self.raw.capacity_factor = value;
        self
    }

    /// Ranks that divide each expert and the shared MLP, as they divide an MLP (`NVTEXParallelConfig`): 1 (default): none;
    /// 0: those of NVTEX_GRID_TP; or the number of these. They have the same tokens, or, in a layer of a Transformer with
    /// `mlp.parallel.sequence_parallel`, parts of them; each has the router.
    pub fn tensor_parallel_size(mut self, value: usize) -> Self {
        self.raw.tensor_parallel_size = value;
        self
    }
}

impl Default for MoeConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// A layer of a Transformer.
///
/// A field from `hidden_size` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[derive(Clone, Debug)]
pub struct TransformerLayerConfig {
    pub(crate) raw: sys::NVTEXTransformerLayerConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl TransformerLayerConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_transformer_layer_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// The self attention, as for `nvtex_multihead_attention_create`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn attention(mut self, change: impl FnOnce(AttentionConfig) -> AttentionConfig) -> Self {
        let (raw, names) = (self.raw.attention, self.names.clone());
        let changed = change(AttentionConfig { raw, names });
        self.raw.attention = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// The MLP, as for `nvtex_layernorm_mlp_create`. It also gives sizes, norms, bias, deviations and
    /// seed of the whole layer.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn mlp(mut self, change: impl FnOnce(LayerNormMLPConfig) -> LayerNormMLPConfig) -> Self {
        let (raw, names) = (self.raw.mlp, self.names.clone());
        let changed = change(LayerNormMLPConfig { raw, names });
        self.raw.mlp = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// Dropout of what is added to the residuals, in passes with a tape. Default: 0.
    pub fn hidden_dropout(mut self, value: f32) -> Self {
        self.raw.hidden_dropout = value;
        self
    }

    /// Adds attention to a second input, without a mask unless `inter_mask_type` says so. Default: false.
    pub fn decoder(mut self, value: bool) -> Self {
        self.raw.decoder = value;
        self
    }

    /// Sets `inter_mask_type`.
    pub fn inter_mask_type(mut self, value: MaskType) -> Self {
        self.raw.inter_mask_type = value as i32;
        self
    }

    /// Residuals are the norms' results. Default: false.
    pub fn residual_post_layernorm(mut self, value: bool) -> Self {
        self.raw.residual_post_layernorm = value;
        self
    }

    /// The layer has a norm at its end instead of the one before the self attention. Default: false.
    pub fn output_layernorm(mut self, value: bool) -> Self {
        self.raw.output_layernorm = value;
        self
    }

    /// Attention and MLP both read the layer's input, and their sum is added to it. This excludes
    /// `decoder`, `residual_post_layernorm` and `output_layernorm`. Default: false.
    pub fn parallel_attention_mlp(mut self, value: bool) -> Self {
        self.raw.parallel_attention_mlp = value;
        self
    }

    /// Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    pub fn rotary_interleaved(mut self, value: bool) -> Self {
        self.raw.rotary_interleaved = value;
        self
    }

    /// Elements of a row: `mlp.hidden_size`. Default: 0.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// Elements after the activation of the MLP: `mlp.ffn_hidden_size`. Default: 0.
    pub fn ffn_hidden_size(mut self, value: usize) -> Self {
        self.raw.ffn_hidden_size = value;
        self
    }

    /// `attention.num_attention_heads`. Default: 0.
    pub fn num_attention_heads(mut self, value: usize) -> Self {
        self.raw.num_attention_heads = value;
        self
    }

    /// Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    pub fn num_gqa_groups(mut self, value: usize) -> Self {
        self.raw.num_gqa_groups = value;
        self
    }

    /// `mlp.activation`. Default: GELU.
    pub fn activation(mut self, value: ActivationType) -> Self {
        self.raw.activation = value as i32;
        self
    }

    /// Of all norms of rows: `mlp.norm.kind`. Default: LayerNorm.
    pub fn norm_type(mut self, value: NormType) -> Self {
        self.raw.norm_type = value as i32;
        self
    }

    /// Of all norms of rows: `mlp.norm.epsilon`. Default: 1e-5.
    pub fn norm_epsilon(mut self, value: f32) -> Self {
        self.raw.norm_epsilon = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `mlp.dtype`.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// `attention.qkv_format`. Default: NVTE_SBHD.
    pub fn qkv_format(mut self, value: QKVFormat) -> Self {
        self.raw.qkv_format = value as i32;
        self
    }

    /// Of the self attention: `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    pub fn attn_mask_type(mut self, value: MaskType) -> Self {
        self.raw.attn_mask_type = value as i32;
        self
    }

    /// Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    pub fn attention_dropout(mut self, value: f32) -> Self {
        self.raw.attention_dropout = value;
        self
    }

    /// Whether the linear layers have biases: `mlp.bias`. Default: true.
    pub fn bias(mut self, value: bool) -> Self {
        self.raw.bias = value;
        self
    }

    /// Standard deviations of the initial weights: `mlp.init_std`, `mlp.output_init_std`. Defaults: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Sets `output_init_std`.
    pub fn output_init_std(mut self, value: f32) -> Self {
        self.raw.output_init_std = value;
        self
    }

    /// Seed of the initial weights: `mlp.seed`. Default: 0.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// Tapes leave out what is cheap to compute again: `mlp.checkpoint` and
    /// `attention.checkpoint_core_attention`. Default: false.
    pub fn checkpoint(mut self, value: bool) -> Self {
        self.raw.checkpoint = value;
        self
    }

    /// How ranks share the layer: `mlp.parallel` and `attention.parallel`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn parallel(mut self, change: impl FnOnce(ParallelConfig) -> ParallelConfig) -> Self {
        let (raw, names) = (self.raw.parallel, self.names.clone());
        let changed = change(ParallelConfig { raw, names });
        self.raw.parallel = changed.raw;
        self.names.join(changed.names);
        self
    }
}

impl Default for TransformerLayerConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Config of an embedding.
#[derive(Clone, Debug)]
pub struct EmbeddingConfig {
    pub(crate) raw: sys::NVTEXEmbeddingConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl EmbeddingConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_embedding_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Tokens that there are: rows of the weight.
    pub fn vocabulary_size(mut self, value: usize) -> Self {
        self.raw.vocabulary_size = value;
        self
    }

    /// Sets `hidden_size`.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// Rows of a learned table of positions. 0 (default): there is none.
    pub fn max_positions(mut self, value: usize) -> Self {
        self.raw.max_positions = value;
        self
    }

    /// Factor of the rows of tokens. Default: 1.
    pub fn scale(mut self, value: f32) -> Self {
        self.raw.scale = value;
        self
    }

    /// Float32 (default), Float16 or BFloat16, of parameters and outputs.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Standard deviations of the initial tables of tokens and of positions. Defaults: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Sets `position_init_std`.
    pub fn position_init_std(mut self, value: f32) -> Self {
        self.raw.position_init_std = value;
        self
    }

    /// Seed of the initial tables.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }
}

impl Default for EmbeddingConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Config of the head of a language model.
#[derive(Clone, Debug)]
pub struct LMHeadConfig {
    pub(crate) raw: sys::NVTEXLMHeadConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl LMHeadConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_lm_head_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Name, unique in its context; for null or an empty one a name is made up.
    pub fn name(mut self, name: &str) -> Self {
        self.raw.name = self.names.add(name);
        self
    }

    /// Rows of the weight.
    pub fn vocabulary_size(mut self, value: usize) -> Self {
        self.raw.vocabulary_size = value;
        self
    }

    /// Sets `hidden_size`.
    pub fn hidden_size(mut self, value: usize) -> Self {
        self.raw.hidden_size = value;
        self
    }

    /// An embedding of the same context whose weight is this module's, too; then sizes and dtype are those of the
    /// embedding, and `vocabulary_size` and `hidden_size` are 0 or the same. Null (default): the module has a
    /// weight of its own.
    pub fn tied_to(mut self, module: &crate::Module<'_>) -> Self {
        self.raw.tied_to = module.raw();
        self
    }

    /// Float32 (default), Float16 or BFloat16, of the parameter and the hidden states.
    pub fn dtype(mut self, value: DType) -> Self {
        self.raw.dtype = value as i32;
        self
    }

    /// Standard deviation of the initial weight. Default: 0.023.
    pub fn init_std(mut self, value: f32) -> Self {
        self.raw.init_std = value;
        self
    }

    /// Seed of the initial weight.
    pub fn seed(mut self, value: u64) -> Self {
        self.raw.seed = value;
        self
    }

    /// The target of tokens that do not count. Default: -100.
    pub fn ignored_target(mut self, value: i64) -> Self {
        self.raw.ignored_target = value;
        self
    }

    /// The part of a target's weight that is spread over the whole vocabulary, 0 to 1. Default: 0.
    pub fn label_smoothing(mut self, value: f32) -> Self {
        self.raw.label_smoothing = value;
        self
    }

    /// Factor of the square of the logsumexp, which is added to the loss. Default: 0.
    pub fn z_loss(mut self, value: f32) -> Self {
        self.raw.z_loss = value;
        self
    }

    /// Bytes that logits may take at a time. 0 (default): 500 MB. Over several ranks each has all of its own logits in
    /// memory.
    pub fn workspace_limit(mut self, value: usize) -> Self {
        self.raw.workspace_limit = value;
        self
    }
}

impl Default for LMHeadConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Config of a language model: an embedding, layers that are alike, a norm and a head in a row.
#[derive(Clone, Debug)]
pub struct LanguageModelConfig {
    pub(crate) raw: sys::NVTEXLanguageModelConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl LanguageModelConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_language_model_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Sets `vocabulary_size`.
    pub fn vocabulary_size(mut self, value: usize) -> Self {
        self.raw.vocabulary_size = value;
        self
    }

    /// Rows of a learned table of positions. 0 (default): there is none, for steps with `rotary_frequencies`.
    pub fn max_positions(mut self, value: usize) -> Self {
        self.raw.max_positions = value;
        self
    }

    /// Sets `num_layers`.
    pub fn num_layers(mut self, value: usize) -> Self {
        self.raw.num_layers = value;
        self
    }

    /// Each of the layers. Its sizes, dtype, norm, seed, deviations and ranks are those of the whole model: seeds of the
    /// parts follow from it and differ, and the deviation of what is added to residuals (`output_init_std`, also of
    /// `experts`) is divided by `sqrt(2 num_layers)`. It is no decoder, and has no name. Default of `qkv_format` here:
    /// NVTE_BSHD, for tokens `[batch, length]`.
    ///
    /// The function gets what is set so far, and returns what shall be.
    pub fn layer(mut self, change: impl FnOnce(TransformerLayerConfig) -> TransformerLayerConfig) -> Self {
        let (raw, names) = (self.raw.layer, self.names.clone());
        let changed = change(TransformerLayerConfig { raw, names });
        self.raw.layer = changed.raw;
        self.names.join(changed.names);
        self
    }

    /// The head has the weight of the embedding. Default: true.
    pub fn tied_embeddings(mut self, value: bool) -> Self {
        self.raw.tied_embeddings = value;
        self
    }

    /// Bytes that logits may take at a time, as of NVTEXLMHeadConfig.
    pub fn workspace_limit(mut self, value: usize) -> Self {
        self.raw.workspace_limit = value;
        self
    }
}

impl Default for LanguageModelConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Angles of rotary embeddings.
#[derive(Clone, Debug)]
pub struct RotaryConfig {
    pub(crate) raw: sys::NVTEXRotaryConfig,
    /// Keeps the texts that `raw` points to.
    #[allow(dead_code)]
    pub(crate) names: Names,
}

impl RotaryConfig {
    /// Makes a config with the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function writes a config of this size.
        let raw = initialized(|raw, size| unsafe { sys::nvtex_rotary_config_init(raw, size) });
        Self { raw, names: Names::default() }
    }

    /// Default: 10000.
    pub fn base(mut self, value: f32) -> Self {
        self.raw.base = value;
        self
    }

    /// Position of the first row. Default: 0.
    pub fn offset(mut self, value: usize) -> Self {
        self.raw.offset = value;
        self
    }

    /// Divides positions by this factor; 0 (default): none.
    pub fn interpolation_factor(mut self, value: f32) -> Self {
        self.raw.interpolation_factor = value;
        self
    }

    /// With a factor f and more rows than f times this length, positions are divided by `rows / length`
    /// instead. 0 (default): never.
    pub fn pretrained_length(mut self, value: usize) -> Self {
        self.raw.pretrained_length = value;
        self
    }

    /// The two entries of a pair's angle are neighbours, instead of lying in the two halves of the
    /// row.
    pub fn interleaved(mut self, value: bool) -> Self {
        self.raw.interleaved = value;
        self
    }
}

impl Default for RotaryConfig {
    fn default() -> Self {
        Self::new()
    }
}

module! {
    /// Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd` or `nvte_rmsnorm_fwd` with parameters.
    ///
    /// Input and output: `[..., hidden_size]`. Parameters: `weight`, and with LayerNorm `bias`.
    Norm, NormConfig, nvtex_norm_create
}

module! {
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
    Linear, LinearConfig, nvtex_linear_create
}

module! {
    /// Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the
    /// recipe allows it.
    ///
    /// As `nvtex_linear_create`; a second output, if not null, takes the norm's result, and its gradient
    /// counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `weight`, `bias`.
    LayerNormLinear, LayerNormLinearConfig, nvtex_layernorm_linear_create
}

module! {
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
    GroupedLinear, GroupedLinearConfig, nvtex_grouped_linear_create
}

module! {
    /// Creates a norm followed by a linear layer, an activation and a second linear layer.
    ///
    /// Shapes: input and output `[..., hidden_size]`; a second output, if not null, takes the norm's
    /// result, and its gradient counts. Sizes: as `nvtex_linear_create`.
    ///
    /// Parameters: `layer_norm_weight`, `layer_norm_bias`, `fc1_weight`
    /// `[ffn_hidden_size (gated: twice that), hidden_size]`, `fc1_bias`, `fc2_weight`
    /// `[hidden_size, ffn_hidden_size]`, `fc2_bias`.
    LayerNormMLP, LayerNormMLPConfig, nvtex_layernorm_mlp_create
}

module! {
    /// Creates an attention of queries, keys and values, in high precision unless a recipe has `fp8_dpa`.
    ///
    /// Shapes: inputs `[s, b, h, d]` (NVTE_SBHD), `[b, s, h, d]` (NVTE_BSHD) or `[t, h, d]` (NVTE_THD),
    /// with `num_attention_heads` heads of queries and `num_gqa_groups` of keys and values. The output has
    /// as many elements as there are rows of heads times `head_dim_v`.
    ///
    /// Parameters: with a learnable softmax `softmax_offset`, Float32 `[num_attention_heads]`.
    ///
    /// Notes: masks with padding take their lengths from the step. The tape refers to the output, too.
    Attention, AttentionConfig, nvtex_attention_create
}

module! {
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
    MultiheadAttention, MultiheadAttentionConfig, nvtex_multihead_attention_create
}

module! {
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
    TransformerLayer, TransformerLayerConfig, nvtex_transformer_layer_create
}

module! {
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
    Moe, MoeConfig, nvtex_moe_create
}

module! {
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
    Embedding, EmbeddingConfig, nvtex_embedding_create
}

module! {
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
    LMHead, LMHeadConfig, nvtex_lm_head_create
}

module! {
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
    LanguageModel, LanguageModelConfig, nvtex_language_model_create
}
