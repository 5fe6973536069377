//! C functions of module.h: recipes, contexts, modules, tapes.
#![allow(unsafe_code, non_camel_case_types, clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::*;
use crate::error::{Handle, guard};
use crate::tensor::{FromC, from_c_enum};
use crate::types::*;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// Handle of a recipe.
pub type NVTEXRecipe = *mut c_void;
/// Handle of a context.
pub type NVTEXContext = *mut c_void;
/// Handle of a module.
pub type NVTEXModule = *mut c_void;
/// Handle of a tape.
pub type NVTEXTape = *mut c_void;

/// Handle of a cache of keys and values.
pub type NVTEXKVCache = *mut c_void;

/// How operands of matrix products are scaled.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXRecipeKind {
    /// One scale for a tensor, from the maxima of earlier steps.
    NVTEX_RECIPE_DELAYED_SCALING = 0,
    /// One scale for a tensor, from its own maximum.
    NVTEX_RECIPE_CURRENT_SCALING = 1,
    /// A scale for each 128 elements, or 128 x 128.
    NVTEX_RECIPE_BLOCK_SCALING = 2,
    /// A power of two for each 32 elements, or 32 x 32 of a weight.
    NVTEX_RECIPE_MXFP8 = 3,
    /// What `choose` says of each operand.
    NVTEX_RECIPE_CUSTOM = 4,
}

from_c_enum!(
    NVTEXRecipeKind,
    "an NVTEXRecipeKind from 0 to 4",
    [
        NVTEX_RECIPE_DELAYED_SCALING,
        NVTEX_RECIPE_CURRENT_SCALING,
        NVTEX_RECIPE_BLOCK_SCALING,
        NVTEX_RECIPE_MXFP8,
        NVTEX_RECIPE_CUSTOM,
    ]
);

/// FP8 types of a recipe.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXFormat {
    NVTEX_FORMAT_E4M3 = 0,
    /// Refused by every recipe: two E5M2 operands have no product.
    NVTEX_FORMAT_E5M2 = 1,
    /// E4M3, and E5M2 for gradients.
    NVTEX_FORMAT_HYBRID = 2,
}

from_c_enum!(
    NVTEXFormat,
    "an NVTEXFormat from 0 to 2",
    [NVTEX_FORMAT_E4M3, NVTEX_FORMAT_E5M2, NVTEX_FORMAT_HYBRID]
);

/// Which maximum of a history counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXHistoryAlgo {
    NVTEX_HISTORY_MAX = 0,
    NVTEX_HISTORY_MOST_RECENT = 1,
}

from_c_enum!(
    NVTEXHistoryAlgo,
    "an NVTEXHistoryAlgo, 0 or 1",
    [NVTEX_HISTORY_MAX, NVTEX_HISTORY_MOST_RECENT]
);

/// Operands of the products of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXRole {
    NVTEX_ROLE_INPUT = 0,
    NVTEX_ROLE_WEIGHT = 1,
    NVTEX_ROLE_GRAD_OUTPUT = 2,
}

from_c_enum!(
    NVTEXRole,
    "an NVTEXRole from 0 to 2",
    [NVTEX_ROLE_INPUT, NVTEX_ROLE_WEIGHT, NVTEX_ROLE_GRAD_OUTPUT]
);

/// What a recipe says of one role.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRoleOptions {
    /// Rounds scales down to powers of two (current scaling, FP8 blocks).
    pub power_2_scales: MaybeUninit<bool>,
    /// The least maximum that counts (current scaling, FP8 blocks).
    pub amax_epsilon: f32,
    /// 1: blocks along rows; 2: square ones (FP8 blocks; MXFP8 weights).
    pub block_dim: i32,
}

/// Scaling of an operand, for `NVTEX_RECIPE_CUSTOM`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXSlotScaling {
    /// The operand stays in high precision.
    NVTEX_SLOT_HIGH_PRECISION = 0,
    NVTEX_SLOT_DELAYED = 1,
    NVTEX_SLOT_CURRENT = 2,
    NVTEX_SLOT_BLOCK = 3,
    NVTEX_SLOT_MXFP8 = 4,
}

from_c_enum!(
    NVTEXSlotScaling,
    "an NVTEXSlotScaling from 0 to 4",
    [
        NVTEX_SLOT_HIGH_PRECISION,
        NVTEX_SLOT_DELAYED,
        NVTEX_SLOT_CURRENT,
        NVTEX_SLOT_BLOCK,
        NVTEX_SLOT_MXFP8,
    ]
);

/// The choice for one operand.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXSlotChoice {
    pub scaling: MaybeUninit<NVTEXSlotScaling>,
    /// Float8E4M3 or Float8E5M2.
    pub dtype: MaybeUninit<NVTEDType>,
    pub options: NVTEXRoleOptions,
}

/// Chooses for an operand of the layer `layer` (a module's name, and its part behind a dot) by writing
/// to `choice`, which comes as high precision. Returns 0, anything else for failure. An unknown number is an
/// error. What `NVTEXContextConfig` says of its functions holds here, too.
pub type NVTEXChoose = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        layer: *const c_char,
        role: NVTEXRole,
        choice: *mut NVTEXSlotChoice,
    ) -> c_int,
>;

/// Operands of the products of the backward pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXBackward {
    /// Gradients, inputs and weights as the recipe casts them.
    NVTEX_BACKWARD_QUANTIZED = 0,
    /// Gradients, inputs and weights in high precision. Not with delayed scaling.
    NVTEX_BACKWARD_HIGH_PRECISION = 1,
    /// Gradients in high precision, and inputs and weights cast back from what the forward pass read. Not
    /// with delayed scaling.
    NVTEX_BACKWARD_DEQUANTIZED = 2,
}

from_c_enum!(
    NVTEXBackward,
    "an NVTEXBackward from 0 to 2",
    [NVTEX_BACKWARD_QUANTIZED, NVTEX_BACKWARD_HIGH_PRECISION, NVTEX_BACKWARD_DEQUANTIZED]
);

/// A recipe. `nvtex_recipe_config_init` sets the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRecipeConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub kind: MaybeUninit<NVTEXRecipeKind>,
    /// Default: hybrid, of the block recipes E4M3.
    pub format: MaybeUninit<NVTEXFormat>,
    /// Delayed scaling multiplies scales by `2^-margin`. Default 0.
    pub margin: f32,
    /// Delayed scaling: maxima that are kept. Default 1024.
    pub amax_history_len: usize,
    pub amax_algo: MaybeUninit<NVTEXHistoryAlgo>,
    /// Delayed scaling: every how many updates histories and scales change; the maxima of the others
    /// count as of one step. Default 1.
    pub update_interval: u32,
    /// Delayed scaling: max-reduces over the group of `nvtex_context_begin`. Default true.
    pub reduce_amax: MaybeUninit<bool>,
    pub input: NVTEXRoleOptions,
    pub weight: NVTEXRoleOptions,
    pub grad_output: NVTEXRoleOptions,
    /// Sums the products of each pass more precisely. Defaults: false, true, true; of FP8 blocks, which
    /// need it, true.
    pub split_accumulator_fprop: MaybeUninit<bool>,
    pub split_accumulator_dgrad: MaybeUninit<bool>,
    pub split_accumulator_wgrad: MaybeUninit<bool>,
    /// Default: quantized.
    pub backward: MaybeUninit<NVTEXBackward>,
    /// For `NVTEX_RECIPE_CUSTOM`, with what it is passed first.
    pub choose: NVTEXChoose,
    pub user: *mut c_void,
    /// Attention reads queries, keys and values in E4M3, with one scale for a tensor from its own maximum, and
    /// its result is in high precision; so are the gradients, of what the forward pass has read. With delayed and
    /// current scaling, without a cache of keys and values. Default: false.
    pub fp8_dpa: MaybeUninit<bool>,
}

/// How long memory of an allocator is wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXLifetime {
    /// Until the call returns.
    NVTEX_LIFETIME_SCRATCH = 0,
    /// Until a tape is destroyed.
    NVTEX_LIFETIME_TAPE = 1,
    /// Until the module or the context is destroyed.
    NVTEX_LIFETIME_PERSISTENT = 2,
}

/// Memory of the device, null if there is none left; what `NVTEXContextConfig` says holds.
pub type NVTEXAllocate = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        bytes: usize,
        alignment: usize,
        lifetime: NVTEXLifetime,
        stream: cudaStream_t,
    ) -> *mut c_void,
>;

/// Takes memory back. Work on the stream may still use it: hand it out again to that stream alone, or
/// wait for it. What `NVTEXContextConfig` says holds; a C++ exception is reported to stderr alone, and the
/// memory counts as released.
pub type NVTEXRelease = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        ptr: *mut c_void,
        bytes: usize,
        lifetime: NVTEXLifetime,
        stream: cudaStream_t,
    ),
>;

/// Replaces each of `count` floats on the device by the largest of the group's ranks, on the stream.
/// Returns 0, anything else for failure. What `NVTEXContextConfig` says holds.
pub type NVTEXAllReduceMax = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        group: *mut c_void,
        data: *mut f32,
        count: usize,
        stream: cudaStream_t,
    ) -> c_int,
>;

/// What a context gets from the program. All may be null or 0.
///
/// The functions must not call functions of the same context, its modules, tapes and caches, not even those
/// that destroy: such a call is an error. A C++ exception that leaves one of them becomes an error of the call
/// that called it. They must end by returning or by an exception: `longjmp` out of them, and ending the thread
/// in them, is undefined behaviour.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXContextConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Passed to `allocate` and `release`, which come as a pair (null: memory of `nvtex_malloc`, kept and
    /// used again).
    pub allocator: *mut c_void,
    pub allocate: NVTEXAllocate,
    pub release: NVTEXRelease,
    /// Passed to `all_reduce_max` (null: nothing is reduced).
    pub communicator: *mut c_void,
    pub all_reduce_max: NVTEXAllReduceMax,
    /// Multiprocessors that normalizations may keep busy; sums depend on it. 0: 132.
    pub multiprocessor_count: i32,
    /// Without `allocate`: bytes that the context may keep unused when it asks the device for more; what is
    /// beyond goes back to the device first, which waits for its work then. Memory that a captured graph uses
    /// stays. 0: four times the most that passes have used at once, at least 4 MiB. SIZE_MAX: keeps all.
    pub max_unused_bytes: usize,
}

/// Flag of `nvtex_context_begin`: modules multiply as the recipe says; without it in high precision.
pub const NVTEX_CONTEXT_ENABLED: u32 = 1;
/// Flag of `nvtex_context_begin`: modules collect the maxima of delayed scaling while they compute in
/// high precision.
pub const NVTEX_CONTEXT_CALIBRATING: u32 = 2;
/// Flag of `nvtex_context_begin`: modules that are created keep their weights in the recipe's format
/// alone.
pub const NVTEX_CONTEXT_QUANTIZED_WEIGHTS: u32 = 4;

/// Slots of delayed scaling.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXPass {
    /// 3 slots: input, weight, output (not used).
    NVTEX_PASS_FORWARD = 0,
    /// 2 slots: gradient of the output, gradient of the input (not used).
    NVTEX_PASS_BACKWARD = 1,
}

from_c_enum!(NVTEXPass, "an NVTEXPass, 0 or 1", [NVTEX_PASS_FORWARD, NVTEX_PASS_BACKWARD]);

/// How a module is spread over ranks. So far it is on one alone: other values are refused.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXParallelConfig {
    /// Ranks that share each weight. Default: 1.
    pub tensor_parallel_size: usize,
    /// Those ranks share the rows between products, too. Default: false.
    pub sequence_parallel: MaybeUninit<bool>,
    /// Ranks that share each sequence. Default: 1.
    pub context_parallel_size: usize,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// Norms of the heads of queries and keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXQKNorm {
    NVTEX_QK_NORM_NONE = 0,
    /// `x / sqrt(sum(x^2) + epsilon)`, without parameters.
    NVTEX_QK_NORM_L2 = 1,
    NVTEX_QK_NORM_RMS = 2,
    NVTEX_QK_NORM_LAYER = 3,
}

from_c_enum!(
    NVTEXQKNorm,
    "an NVTEXQKNorm from 0 to 3",
    [NVTEX_QK_NORM_NONE, NVTEX_QK_NORM_L2, NVTEX_QK_NORM_RMS, NVTEX_QK_NORM_LAYER]
);

/// A norm: a module of its own, or the first part of one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXNormConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Unique in its context; null or empty: made up.
    pub name: *const c_char,
    /// Default: LayerNorm.
    pub kind: MaybeUninit<NVTE_Norm_Type>,
    /// Elements of a row.
    pub hidden_size: usize,
    /// Default: 1e-5.
    pub epsilon: f32,
    /// The weight is stored as its distance from 1.
    pub zero_centered_gamma: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y = x W^T + b`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Unique in its context; null or empty: made up.
    pub name: *const c_char,
    pub in_features: usize,
    pub out_features: usize,
    /// Default: true.
    pub bias: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviation of the initial weight. Default: 0.023.
    pub init_std: f32,
    /// Of the initial weight.
    pub seed: u64,
    /// Of the module among ranks.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y = norm(x) W^T + b`. The norm's `hidden_size`, `name` and `dtype` are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLayerNormLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub norm: NVTEXNormConfig,
    pub linear: NVTEXLinearConfig,
}

/// `y_e = x_e W_e^T + b_e`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXGroupedLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Parts, each with a weight of its own.
    pub num_gemms: usize,
    /// Of each part; name of all. Initial weights differ.
    pub linear: NVTEXLinearConfig,
}

/// `y = f(norm(x) W1^T + b1) W2^T + b2`. The norm's `hidden_size`, `name` and `dtype` are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLayerNormMLPConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Unique in its context; null or empty: made up.
    pub name: *const c_char,
    pub norm: NVTEXNormConfig,
    pub hidden_size: usize,
    /// Elements after the activation. A gated one has twice as many rows in W1, those of the function
    /// first.
    pub ffn_hidden_size: usize,
    /// Default: GELU.
    pub activation: MaybeUninit<NVTE_Activation_Type>,
    /// Of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub clamp_limit: f32,
    pub clamp_alpha: f32,
    pub clamp_offset: f32,
    /// Of both. Default: true.
    pub bias: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviations of the initial weights. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Of the initial weights.
    pub seed: u64,
    /// Tapes hold the input, but neither the norm's result nor the activation and what it is given, which
    /// the backward pass computes again, to the same bits, from weights that tapes then hold for both passes.
    /// Default: false.
    pub checkpoint: MaybeUninit<bool>,
    /// Of the module among ranks.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `softmax(scale q k^T) v`, as `nvte_fused_attn_fwd_v2` has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXAttentionConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Unique in its context; null or empty: made up.
    pub name: *const c_char,
    pub num_attention_heads: usize,
    /// Heads of keys and values. 0: as those of the queries.
    pub num_gqa_groups: usize,
    pub head_dim_qk: usize,
    /// 0: as `head_dim_qk`.
    pub head_dim_v: usize,
    /// Of the probabilities, with a tape. Default: 0.
    pub attention_dropout: f32,
    /// NVTE_SBHD (default), NVTE_BSHD, NVTE_THD (packed tokens; masks with padding alone).
    pub qkv_format: MaybeUninit<NVTE_QKV_Format>,
    /// Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    /// Keys before and after a query that count; -1 (default): all.
    pub window_size_left: i64,
    pub window_size_right: i64,
    /// Where windows of masks that are not causal are aligned. Default: true.
    pub bottom_right_diagonal: MaybeUninit<bool>,
    pub softmax_type: MaybeUninit<NVTE_Softmax_Type>,
    /// 0 (default): `1 / sqrt(head_dim_qk)`.
    pub softmax_scale: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Of modules with projections: tapes hold queries, keys and values, but not the attention's result and
    /// statistics, which the backward pass computes again, to the same bits. Default: false.
    pub checkpoint_core_attention: MaybeUninit<bool>,
    /// Of self attention in modules with projections: normalizes each head of queries and keys, behind the
    /// rotary embedding or in front of it. Default: none.
    pub qk_norm_type: MaybeUninit<NVTEXQKNorm>,
    /// Default: 1e-6.
    pub qk_norm_epsilon: f32,
    /// Default: false.
    pub qk_norm_before_rope: MaybeUninit<bool>,
    /// Of the module among ranks.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// Projections, attention, projection. The attention's `name` is ignored; its `head_dim_qk` 0 (default) is
/// `hidden_size / num_attention_heads`, and `head_dim_v` is the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXMultiheadAttentionConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Unique in its context; null or empty: made up.
    pub name: *const c_char,
    pub hidden_size: usize,
    pub attention: NVTEXAttentionConfig,
    /// A norm in front of the first projection. Default: false. Its `hidden_size`, `name` and `dtype` are
    /// ignored.
    pub input_layernorm: MaybeUninit<bool>,
    pub norm: NVTEXNormConfig,
    /// Keys and values come from a second input. Default: false.
    pub cross_attention: MaybeUninit<bool>,
    /// Of all projections. Default: true.
    pub bias: MaybeUninit<bool>,
    /// Rotary embeddings turn neighbours, not halves. Default: false.
    pub rotary_interleaved: MaybeUninit<bool>,
    /// Standard deviations of the initial weights, of the first projections and of the last. Default: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Of the initial weights.
    pub seed: u64,
}

/// A layer of a Transformer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXTransformerLayerConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Unique in its context; null or empty: made up.
    pub name: *const c_char,
    /// As for `nvtex_multihead_attention_create`, of the self attention.
    pub attention: NVTEXAttentionConfig,
    /// As for `nvtex_layernorm_mlp_create`; gives sizes, norms, bias, deviations and seed of the whole layer.
    pub mlp: NVTEXLayerNormMLPConfig,
    /// Of what is added to the residuals, with a tape. Default: 0.
    pub hidden_dropout: f32,
    /// Adds attention to a second input, without a mask unless `inter_mask_type` says so. Default: false.
    pub decoder: MaybeUninit<bool>,
    pub inter_mask_type: MaybeUninit<NVTE_Mask_Type>,
    /// Residuals are the norms' results. Default: false.
    pub residual_post_layernorm: MaybeUninit<bool>,
    /// A norm behind the layer in place of the one in front of the self attention. Default: false.
    pub output_layernorm: MaybeUninit<bool>,
    /// Attention and MLP read the layer's input, and their sum is added to it; excludes the three above.
    /// Default: false.
    pub parallel_attention_mlp: MaybeUninit<bool>,
    /// Rotary embeddings turn neighbours, not halves. Default: false.
    pub rotary_interleaved: MaybeUninit<bool>,
}

/// Angles of rotary embeddings.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXRotaryConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Default: 10000.
    pub base: f32,
    /// Position of the first row. Default: 0.
    pub offset: usize,
    /// Divides positions by this factor; 0 (default): none.
    pub interpolation_factor: f32,
    /// With a factor f: more rows than f times this length divide by `rows / length` instead. 0 (default):
    /// none.
    pub pretrained_length: usize,
    /// The angle of a pair stands beside itself, not in the other half.
    pub interleaved: MaybeUninit<bool>,
}

/// A parameter of a module.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXParameter {
    /// Bytes of this struct; set it before the call.
    pub struct_size: usize,
    /// Of the caller until the module is destroyed.
    pub name: *const c_char,
    pub shape: NVTEShape,
    /// In high precision.
    pub dtype: MaybeUninit<NVTEDType>,
    /// The value: in high precision, or in FP8 with its scales if the weight has no other form. Of the
    /// caller until the module is destroyed or the value is bound anew.
    pub value: NVTETensor,
    /// The value is in FP8.
    pub quantized: MaybeUninit<bool>,
}

/// Place of a step among the microbatches that share their weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NVTEXMicrobatch {
    /// Weights are cast in each step; gradients go as their binding says.
    NVTEX_MICROBATCH_NONE = 0,
    /// Cast weights are kept; gradients are overwritten.
    NVTEX_MICROBATCH_FIRST = 1,
    /// Kept weights are used; gradients are added.
    NVTEX_MICROBATCH_LATER = 2,
}

from_c_enum!(
    NVTEXMicrobatch,
    "an NVTEXMicrobatch from 0 to 2",
    [NVTEX_MICROBATCH_NONE, NVTEX_MICROBATCH_FIRST, NVTEX_MICROBATCH_LATER]
);

/// Options of a forward pass; its backward pass has the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXStep {
    /// Bytes of this struct.
    pub struct_size: usize,
    pub microbatch: MaybeUninit<NVTEXMicrobatch>,
    /// One Float32 on the device, or null: while it is 1, kept weights stay as they are. For graphs that
    /// are captured once and replayed for each microbatch.
    pub skip_weight_update: NVTETensor,
    /// Int64 `[2]` on the device, seed and offset, if there is dropout: a call uses the sequence from this
    /// offset on. Add 128 for each call.
    pub rng_state: NVTETensor,
    /// Int32 `[b + 1]` on the device, or null: the first tokens of sequences of queries, and of keys and
    /// values, without padding (padding masks; self attention reads the first for both).
    pub cu_seqlens_q: NVTETensor,
    pub cu_seqlens_kv: NVTETensor,
    /// Likewise, where sequences begin in NVTE_THD, if there is padding between them.
    pub cu_seqlens_q_padded: NVTETensor,
    pub cu_seqlens_kv_padded: NVTETensor,
    /// Longest sequences, for NVTE_THD. 0 (modules with projections): as all tokens.
    pub max_seqlen_q: usize,
    pub max_seqlen_kv: usize,
    /// Float32 `[length or more, 1, 1, d2]` (`nvtex_rotary_frequencies`): turns the first d2 elements of
    /// queries and keys of self attention. Null: none. NVTE_THD: `max_seqlen_q` rows or more, of all tokens if
    /// that is 0 or there is padding between sequences.
    pub rotary_frequencies: NVTETensor,
    /// Or null: self attention appends its keys and values to those of earlier tokens in this cache of the
    /// same context, and reads all of them. Not with a tape. Inputs are the new tokens of the sequences of
    /// `nvtex_kv_cache_step`, of each those in front, so that their number may differ, or packed (NVTE_THD,
    /// without `cu_seqlens_q`). Frequencies have `max_sequence_length + length - 1` rows or more, packed
    /// `max_sequence_length`.
    pub kv_cache: NVTEXKVCache,
    /// Rows of each part of a grouped linear layer, on the host; they may be 0. They are read before the call
    /// returns.
    pub m_splits: *const usize,
    pub num_splits: usize,
}

/// Sizes of a cache of keys and values.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXKVCacheConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Most sequences at a time.
    pub max_batch_size: usize,
    /// Most tokens of a sequence.
    pub max_sequence_length: usize,
    /// Tokens of a page, a divisor of `max_sequence_length`. 0 (default): contiguous, room for whole
    /// sequences.
    pub page_size: usize,
    /// Pages of all sequences together. 0 (default): enough for all of `max_sequence_length`.
    pub num_pages: usize,
}

// ---- Recipes

/// Sets the defaults of a kind in the first `struct_size` bytes of a config.
///
/// Errors: null; a size that cannot hold its own field; unknown kind.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_recipe_config_init(
    config: *mut NVTEXRecipeConfig,
    struct_size: usize,
    kind: MaybeUninit<NVTEXRecipeKind>,
) {
    guard("nvtex_recipe_config_init", || {
        let default = recipe_defaults(from_c("kind", kind)?);
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &default) }
    });
}

/// Creates a recipe, which never changes. Destroy it with `nvtex_recipe_destroy`; contexts that use it
/// keep it alive.
///
/// Errors: fields that are unknown, out of range, or do not go together; each is named.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_recipe_create(
    config: *const NVTEXRecipeConfig,
) -> NVTEXRecipe {
    guard("nvtex_recipe_create", || {
        // SAFETY: the caller vouches for the config.
        Ok(Handle(RECIPES.insert(Arc::new(unsafe { recipe(config) }?))?))
    })
    .0
}

/// Destroys a recipe. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_recipe_destroy(recipe: NVTEXRecipe) {
    guard("nvtex_recipe_destroy", || remove(&RECIPES, "recipe", recipe));
}

// ---- Contexts

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_config_init(
    config: *mut NVTEXContextConfig,
    struct_size: usize,
) {
    guard("nvtex_context_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXContextConfig::default()) }
    });
}

/// Creates a context: all state of FP8 training that modules share. There are no globals, so there may
/// be one for each thread and device. A context is for one thread at a time, and for one stream or for
/// streams that wait for each other. Null: defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_create(
    config: *const NVTEXContextConfig,
) -> NVTEXContext {
    guard("nvtex_context_create", || {
        // SAFETY: the caller vouches for the config.
        Ok(Handle(CONTEXTS.insert(unsafe { context(config) }?)?))
    })
    .0
}

/// Destroys a context; modules and tapes that are left keep its memory until they are destroyed. Null is
/// ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_destroy(context: NVTEXContext) {
    guard("nvtex_context_destroy", || destroy(&CONTEXTS, "context", context));
}

/// Gives unused memory of the context back to the device until `bytes_to_keep` bytes of it are left, those
/// that have not been used for longest first, and returns the bytes that went back: 0 for a context with an
/// allocator of the program. The device waits for its work.
///
/// What passes that were captured in graphs use stays, so that these graphs may be replayed as long as their
/// modules, tapes and caches live. Not while a stream of the process is being captured: the device refuses
/// to free memory then.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_trim(context: NVTEXContext, bytes_to_keep: usize) -> usize {
    guard("nvtex_context_trim", || open(&CONTEXTS, "context", context)?.memory.trim(bytes_to_keep))
}

/// Opens a region: forward passes and creations until the matching `nvtex_context_end` follow the
/// recipe. Regions nest; the innermost counts.
///
/// `flags` is the sum of `NVTEX_CONTEXT_*`; the recipe may be null if there are none. `amax_group` is
/// handed to `all_reduce_max`; null: this rank alone. Backward passes follow the recipe of their forward
/// pass, wherever they run. Without NVTEX_CONTEXT_ENABLED products are in high precision:
/// `nvtex_module_precision` says what a pass has used, and so does `NVTE_VERBOSE=dispatch`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_begin(
    context: NVTEXContext,
    recipe: NVTEXRecipe,
    flags: u32,
    amax_group: *mut c_void,
) {
    guard("nvtex_context_begin", || begin(context, recipe, flags, amax_group));
}

/// Closes the innermost region. Errors: there is none.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_end(context: NVTEXContext) {
    guard("nvtex_context_end", || open(&CONTEXTS, "context", context)?.end());
}

/// Updates histories and scales of the forward slots of all layers with delayed scaling, after reducing
/// their maxima over the group; call it once after the forward passes of a step. Layers that did not run
/// stay as they are (`nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction`).
///
/// May be captured in a graph (an `update_interval` counts at capture).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_forward_update(
    context: NVTEXContext,
    stream: cudaStream_t,
) {
    guard("nvtex_context_forward_update", || {
        open(&CONTEXTS, "context", context)?.update(Pass::Forward, stream)
    });
}

/// As `nvtex_context_forward_update`, of the backward slots, after the backward passes of a step.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_backward_update(
    context: NVTEXContext,
    stream: cudaStream_t,
) {
    guard("nvtex_context_backward_update", || {
        open(&CONTEXTS, "context", context)?.update(Pass::Backward, stream)
    });
}

/// Copies scales and history of a layer with delayed scaling to the host, and returns the length of the
/// history; waits for the stream.
///
/// `layer` is a module's name, of `LayerNormMLP` followed by `.fc1` or `.fc2`. Shapes: `scales` `[n]`,
/// `history` `[length, n]` with n = 3 (forward) or 2; row 0 is the current maximum, the last row the
/// newest of the others. Either may be null. Errors: no such layer; `history_size` floats do not suffice.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_delayed_scaling(
    context: NVTEXContext,
    layer: *const c_char,
    pass: MaybeUninit<NVTEXPass>,
    scales: *mut f32,
    history: *mut f32,
    history_size: usize,
    stream: cudaStream_t,
) -> usize {
    guard("nvtex_context_delayed_scaling", || {
        let room = (scales, history, history_size);
        // SAFETY: the caller vouches for the arrays.
        unsafe { delayed_scaling(context, layer, from_c("pass", pass)?, room, stream) }
    })
}

/// Bytes that `nvtex_context_save` writes.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_context_state_size(context: NVTEXContext) -> usize {
    guard("nvtex_context_state_size", || Ok(open(&CONTEXTS, "context", context)?.state_size()))
}

/// Writes the state of delayed scaling of all layers, by name, to host memory and returns its bytes;
/// waits for the stream. The format is the same on every machine, and has a version and a checksum.
///
/// Errors: fewer than `nvtex_context_state_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_save(
    context: NVTEXContext,
    buffer: *mut c_void,
    bytes: usize,
    stream: cudaStream_t,
) -> usize {
    // SAFETY: the caller vouches for the bytes.
    guard("nvtex_context_save", || unsafe { save(context, buffer, bytes, stream) })
}

/// Restores what `nvtex_context_save` wrote: of layers that have run now, of others when they first do.
/// Histories of another length keep their newest maxima.
///
/// Errors: not such a file, another version, damaged, truncated; scales that are not finite or not above 0,
/// maxima that are not finite or below 0, as they are after a step that has overflowed. Nothing is changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_context_load(
    context: NVTEXContext,
    buffer: *const c_void,
    bytes: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the bytes.
    guard("nvtex_context_load", || unsafe { load(context, buffer, bytes, stream) });
}

// ---- Modules

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_norm_config_init(
    config: *mut NVTEXNormConfig,
    struct_size: usize,
) {
    guard("nvtex_norm_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXNormConfig::default()) }
    });
}

/// Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd`, `nvte_rmsnorm_fwd` with parameters.
///
/// Input and output: `[..., hidden_size]`. Parameters: `weight`, of LayerNorm `bias`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_norm_create(
    context: NVTEXContext,
    config: *const NVTEXNormConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_norm_create", || unsafe { create(context, config, stream) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_linear_config_init(
    config: *mut NVTEXLinearConfig,
    struct_size: usize,
) {
    guard("nvtex_linear_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXLinearConfig::default()) }
    });
}

/// Creates a linear layer, `y = x W^T + b`.
///
/// Input `[..., in_features]`, output `[..., out_features]`. Parameters: `weight`
/// `[out_features, in_features]`, `bias` `[out_features]`. Under a recipe, features
/// must be multiples of 16 (MXFP8: 32); rows may be any number. On CUDA the FP8 product of the weight's
/// gradient is faster if rows are a multiple of 16, and with FP8 blocks the others if they are one of 8;
/// otherwise it takes a kernel of this library, and a product with a bias `4 * rows * out_features` bytes
/// more of the context's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_linear_create(
    context: NVTEXContext,
    config: *const NVTEXLinearConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_linear_create", || unsafe { create(context, config, stream) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_layernorm_linear_config_init(
    config: *mut NVTEXLayerNormLinearConfig,
    struct_size: usize,
) {
    guard("nvtex_layernorm_linear_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXLayerNormLinearConfig::default()) }
    });
}

/// Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the recipe
/// allows it.
///
/// As `nvtex_linear_create`; a second output, if not null, takes the norm's result, and its gradient
/// counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `weight`, `bias`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_layernorm_linear_create(
    context: NVTEXContext,
    config: *const NVTEXLayerNormLinearConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    guard("nvtex_layernorm_linear_create", || {
        // SAFETY: the caller vouches for the config.
        unsafe { create(context, config, stream) }
    })
    .0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_grouped_linear_config_init(
    config: *mut NVTEXGroupedLinearConfig,
    struct_size: usize,
) {
    guard("nvtex_grouped_linear_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXGroupedLinearConfig::default()) }
    });
}

/// Creates linear layers for rows that are sorted by layer, as those of experts: the first `m_splits[0]` rows
/// (of the step) go through the first one, and so on.
///
/// Input `[..., in_features]`, output `[..., out_features]`. Parameters: for each part e `weight<e>` and
/// `bias<e>`, as of `nvtex_linear_create`; its name for `nvtex_context_delayed_scaling` is the module's followed
/// by `.<e>`. Each split keeps the rules for rows there. A part without rows gets gradients of 0.
/// Errors: splits that are not `num_gemms`, or do not sum to the rows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_grouped_linear_create(
    context: NVTEXContext,
    config: *const NVTEXGroupedLinearConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_grouped_linear_create", || unsafe { create(context, config, stream) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_layernorm_mlp_config_init(
    config: *mut NVTEXLayerNormMLPConfig,
    struct_size: usize,
) {
    guard("nvtex_layernorm_mlp_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXLayerNormMLPConfig::default()) }
    });
}

/// Creates a norm followed by a linear layer, an activation and a linear layer.
///
/// Input and output `[..., hidden_size]`; a second output, if not null, takes the norm's result, and its
/// gradient counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `fc1_weight`
/// `[ffn_hidden_size (gated: twice that), hidden_size]`, `fc1_bias`, `fc2_weight`
/// `[hidden_size, ffn_hidden_size]`, `fc2_bias`. Sizes: as `nvtex_linear_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_layernorm_mlp_create(
    context: NVTEXContext,
    config: *const NVTEXLayerNormMLPConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_layernorm_mlp_create", || unsafe { create(context, config, stream) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_attention_config_init(
    config: *mut NVTEXAttentionConfig,
    struct_size: usize,
) {
    guard("nvtex_attention_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXAttentionConfig::default()) }
    });
}

/// Creates an attention of queries, keys and values, in high precision unless a recipe has `fp8_dpa`.
///
/// Inputs `[s, b, h, d]` (NVTE_SBHD), `[b, s, h, d]` (NVTE_BSHD) or `[t, h, d]` (NVTE_THD), with
/// `num_attention_heads` heads of queries and `num_gqa_groups` of keys and values; output of as many elements
/// as there are rows of heads times `head_dim_v`. Parameters: with a learnable softmax `softmax_offset`, Float32
/// `[num_attention_heads]`. Masks with padding take their lengths from the step. The tape refers to the output,
/// too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_attention_create(
    context: NVTEXContext,
    config: *const NVTEXAttentionConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_attention_create", || unsafe { create(context, config, stream) }).0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_multihead_attention_config_init(
    config: *mut NVTEXMultiheadAttentionConfig,
    struct_size: usize,
) {
    guard("nvtex_multihead_attention_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXMultiheadAttentionConfig::default()) }
    });
}

/// Creates projections to queries, keys and values, rotary embeddings, attention, and a projection.
///
/// Input and output `[s, b, hidden_size]` (NVTE_SBHD), `[b, s, hidden_size]` (NVTE_BSHD) or `[t, hidden_size]`
/// (NVTE_THD, where `cu_seqlens_q` of the step says which tokens are a sequence, and those of none get the
/// bias); cross attention has a second input `[s_kv, b, hidden_size]`, likewise. Rows of the first weight are, for each group of
/// heads, those of its queries, its key and its value. Parameters, each as of `nvtex_linear_create` or
/// `nvtex_layernorm_linear_create`: `qkv.` or `layernorm_qkv.`, of cross attention `query_layer.` or
/// `layernorm_query.` and `key_value.`; then `q_norm.` and `k_norm.` as of `nvtex_norm_create`,
/// `core_attention.softmax_offset` (learnable softmax) and `proj.`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_multihead_attention_create(
    context: NVTEXContext,
    config: *const NVTEXMultiheadAttentionConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    guard("nvtex_multihead_attention_create", || {
        // SAFETY: the caller vouches for the config.
        unsafe { create(context, config, stream) }
    })
    .0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_transformer_layer_config_init(
    config: *mut NVTEXTransformerLayerConfig,
    struct_size: usize,
) {
    guard("nvtex_transformer_layer_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXTransformerLayerConfig::default()) }
    });
}

/// Creates a layer of a Transformer: with D = dropout, `y = x + D(attention(norm(x)))`, for a decoder
/// `y = y + D(cross_attention(norm(y), memory))`, and `y + D(mlp(norm(y)))`; or with parallel parts
/// `x + D(attention(norm(x)) + mlp(norm'(x)))`.
///
/// Inputs: as `nvtex_multihead_attention_create`, of a decoder a second one. Parameters: those of
/// `nvtex_multihead_attention_create` behind `self_attention.` and `inter_attention.`, those of
/// `nvtex_layernorm_mlp_create` behind `layernorm_mlp.`, and `layernorm.weight`, `layernorm.bias`.
/// Without dropout residuals are added by products, and their gradients by norms.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_transformer_layer_create(
    context: NVTEXContext,
    config: *const NVTEXTransformerLayerConfig,
    stream: cudaStream_t,
) -> NVTEXModule {
    guard("nvtex_transformer_layer_create", || {
        // SAFETY: the caller vouches for the config.
        unsafe { create(context, config, stream) }
    })
    .0
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_rotary_config_init(
    config: *mut NVTEXRotaryConfig,
    struct_size: usize,
) {
    guard("nvtex_rotary_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXRotaryConfig::default()) }
    });
}

/// Writes angles of rotary embeddings: `a(p, i) = p base^(-2 i / d2)` of positions p from `offset` on and
/// pairs i. Computed in float64 on the host.
///
/// Shapes: `frequencies` `[rows, 1, 1, d2]`, Float32, d2 even. Null config: defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_rotary_frequencies(
    frequencies: NVTETensor,
    config: *const NVTEXRotaryConfig,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_rotary_frequencies", || unsafe { rotary(frequencies, config, stream) });
}

/// Destroys a module; tapes that are left keep what they need. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_destroy(module: NVTEXModule) {
    guard("nvtex_module_destroy", || destroy(&MODULES, "module", module));
}

/// Number of parameters of a module.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_num_parameters(module: NVTEXModule) -> usize {
    guard("nvtex_module_num_parameters", || Ok(open(&MODULES, "module", module)?.num_parameters()))
}

/// Describes the parameter `index`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_parameter(
    module: NVTEXModule,
    index: usize,
    parameter: *mut NVTEXParameter,
) {
    // SAFETY: the caller vouches for the struct.
    guard("nvtex_module_parameter", || unsafe { describe(module, index, parameter) });
}

/// Binds the value of a parameter to the memory of a tensor of its shape and dtype, which from then on
/// is read in every pass. Errors: parameters in FP8.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_set_parameter(
    module: NVTEXModule,
    index: usize,
    value: NVTETensor,
) {
    guard("nvtex_module_set_parameter", || set_parameter(module, index, value));
}

/// Copies a tensor (Float32, Float16 or BFloat16) to the value of a parameter, and casts it: to FP8 with
/// the scales of the recipe if the weight has no other form.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_assign_parameter(
    module: NVTEXModule,
    index: usize,
    value: NVTETensor,
    stream: cudaStream_t,
) {
    guard("nvtex_module_assign_parameter", || assign_parameter(module, index, value, stream));
}

/// Computes the initial value of a parameter on the host, before rounding, from seed and deviation: for
/// copies of higher precision than the parameter has. Errors: `count` is not its number of elements.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_initial_value(
    module: NVTEXModule,
    index: usize,
    value: *mut f32,
    count: usize,
) {
    // SAFETY: the caller vouches for the array.
    guard("nvtex_module_initial_value", || unsafe { initial_value(module, index, value, count) });
}

/// Writes how an operand of the products of a weight was cast in the module's last forward pass: the
/// scaling, FP8 dtype and options, or NVTEX_SLOT_HIGH_PRECISION and the dtype of the module.
///
/// `index` is the weight among the parameters. Errors: a parameter that is no weight of products, or of a
/// module that has not run.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_precision(
    module: NVTEXModule,
    index: usize,
    role: MaybeUninit<NVTEXRole>,
    choice: *mut NVTEXSlotChoice,
) {
    guard("nvtex_module_precision", || precision(module, index, from_c("role", role)?, choice));
}

/// Binds the gradient of a parameter to a tensor of its shape, of its dtype or Float32. Backward passes
/// write there, or add if `accumulate`, unless a microbatch says otherwise. Null: no gradient is computed.
/// Bind it before the forward pass.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_module_set_gradient(
    module: NVTEXModule,
    index: usize,
    grad: NVTETensor,
    accumulate: bool,
) {
    guard("nvtex_module_set_gradient", || set_gradient(module, index, grad, accumulate));
}

/// Sets the defaults in the first `struct_size` bytes of a step.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_step_init(step: *mut NVTEXStep, struct_size: usize) {
    guard("nvtex_step_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(step, struct_size, &NVTEXStep::default()) }
    });
}

/// Runs a module forward.
///
/// Arrays hold what the module's creation says; missing and null entries at their end are optional ones.
/// Outputs overlap neither inputs nor each other.
/// `tape`, if not null, takes what the backward pass needs: several may be in flight. It refers to the
/// inputs, the norm's result and the parameters, which must stay as they are until the backward pass is
/// done. Without a tape the maxima of delayed scaling stay as they are. `step` null: defaults.
/// The first call of a layer under a recipe allocates; later ones with the same sizes do not, and can be
/// captured in a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_forward(
    module: NVTEXModule,
    inputs: *const NVTETensor,
    num_inputs: usize,
    outputs: *const NVTETensor,
    num_outputs: usize,
    step: *const NVTEXStep,
    tape: *mut NVTEXTape,
    stream: cudaStream_t,
) {
    guard("nvtex_module_forward", || {
        let [inputs, outputs] = [(inputs, num_inputs), (outputs, num_outputs)];
        // SAFETY: the caller vouches for arrays and structs.
        unsafe { forward(module, inputs, outputs, step, tape, stream) }
    });
}

/// Runs a module backward: writes the gradients of the inputs that `grad_inputs` has, and those of the
/// parameters that are bound. `grad_outputs` is like the outputs of the forward pass; null for an optional
/// output is a gradient of 0. The tape stays, and may be used again. Gradients of inputs overlap neither
/// those of outputs nor each other.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_module_backward(
    module: NVTEXModule,
    tape: NVTEXTape,
    grad_outputs: *const NVTETensor,
    num_grad_outputs: usize,
    grad_inputs: *const NVTETensor,
    num_grad_inputs: usize,
    stream: cudaStream_t,
) {
    guard("nvtex_module_backward", || {
        let outputs = (grad_outputs, num_grad_outputs);
        // SAFETY: the caller vouches for the arrays.
        unsafe { backward(module, tape, outputs, (grad_inputs, num_grad_inputs), stream) }
    });
}

/// Sets the defaults in the first `struct_size` bytes of a config.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_config_init(
    config: *mut NVTEXKVCacheConfig,
    struct_size: usize,
) {
    guard("nvtex_kv_cache_config_init", || {
        // SAFETY: the caller vouches for the bytes.
        unsafe { write_config(config, struct_size, &NVTEXKVCacheConfig::default()) }
    });
}

/// Creates a cache of keys and values for passes of `nvtex_module_forward` without a tape: text is read in
/// pieces of any length and written token by token. One cache serves all attentions of its context; each
/// gets its memory, `num_pages * page_size` tokens, in its first pass. Masks: a causal one is aligned to the
/// bottom right of a sequence, others let all of its tokens count.
///
/// The lengths of the sequences and their pages are also on the device, where passes read them: a pass may be
/// captured in a graph, and replayed after each `nvtex_kv_cache_step` with the same `batch` and no longer pieces,
/// of a contiguous cache until `nvtex_kv_cache_reorder` is called.
/// Errors: sizes that are 0 or do not go together.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_create(
    context: NVTEXContext,
    config: *const NVTEXKVCacheConfig,
    stream: cudaStream_t,
) -> NVTEXKVCache {
    // SAFETY: the caller vouches for the config.
    guard("nvtex_kv_cache_create", || unsafe { kv_cache::create(context, config, stream) }).0
}

/// Destroys a cache. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_kv_cache_destroy(cache: NVTEXKVCache) {
    guard("nvtex_kv_cache_destroy", || destroy(&KV_CACHES, "cache", cache));
}

/// Begins a step, before its passes: sequence i gets `new_tokens[i]` tokens (0 or more) behind those that it
/// has. Sequences that are not there yet begin empty; those from `batch` on rest. Not to be captured.
///
/// Errors: more than `max_sequence_length` tokens; more pages than are free. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_step(
    cache: NVTEXKVCache,
    new_tokens: *const usize,
    batch: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the array.
    guard("nvtex_kv_cache_step", || unsafe { kv_cache::step(cache, (new_tokens, batch), stream) });
}

/// Tokens of a sequence, with those of the step; 0 of one that is not there.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_kv_cache_length(cache: NVTEXKVCache, sequence: usize) -> usize {
    guard("nvtex_kv_cache_length", || Ok(open(&KV_CACHES, "cache", cache)?.length(sequence)))
}

/// Forgets the tokens of a sequence from `length` on; 0 makes room for another sequence. Errors: it has
/// fewer.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_kv_cache_truncate(
    cache: NVTEXKVCache,
    sequence: usize,
    length: usize,
) {
    guard("nvtex_kv_cache_truncate", || {
        open(&KV_CACHES, "cache", cache)?.truncate(sequence, length)
    });
}

/// Makes sequence i what sequence `from[i]` was, or empty for -1; there are `count` sequences then. Where
/// one goes to several places its pages are copied; others only change their tables.
///
/// Errors: no such sequence; not enough pages for the copies. Nothing changes then.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn nvtex_kv_cache_reorder(
    cache: NVTEXKVCache,
    from: *const i64,
    count: usize,
    stream: cudaStream_t,
) {
    // SAFETY: the caller vouches for the array.
    guard("nvtex_kv_cache_reorder", || unsafe { kv_cache::reorder(cache, (from, count), stream) });
}

/// Destroys a tape. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn nvtex_tape_destroy(tape: NVTEXTape) {
    guard("nvtex_tape_destroy", || destroy(&TAPES, "tape", tape));
}
