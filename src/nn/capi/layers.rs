//! Configs of the layers, and the functions that create layers from them.
#![allow(unsafe_code, clippy::missing_safety_doc, non_camel_case_types)]

use super::*;
use crate::sized::Grows;
use num_derive::FromPrimitive;

/// Which side of the weight of a linear layer ranks share.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXParallelMode {
    /// As the kind of the module has it; of `nvtex_linear_create` neither.
    NVTEX_PARALLEL_DEFAULT = 0,
    /// The outputs: each rank has some rows of the weight, and writes some columns of the result.
    NVTEX_PARALLEL_COLUMN = 1,
    /// The inputs: each rank reads some columns of the input. The results are summed over the ranks, then the bias is
    /// added.
    NVTEX_PARALLEL_ROW = 2,
}

from_c_enum!(NVTEXParallelMode, "an NVTEXParallelMode from 0 to 2");

/// What else there is to say about ranks. Set all of it to 0, then `struct_size`, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXParallelOptions {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Of linear layers.
    pub mode: MaybeUninit<NVTEXParallelMode>,
    /// Where a scale comes from all values of a tensor of which each rank has a part (current scaling, NVFP4), each rank
    /// scales its own part: less to wait for, but values that depend on the number of ranks. Default: false.
    pub local_scales: MaybeUninit<bool>,
}

// SAFETY: the layout is that of C; numbers may be zero.
unsafe impl Grows for NVTEXParallelOptions {
    const LEAST: usize = 16;
}

/// How a module is spread over the ranks of its context's grid (`nvtex_context_set_grid`).
///
/// Sizes in configs are those of the whole module. Parameters are parts of it, as `nvtex_module_parameter` says, with
/// the initial values that they have in the whole; all ranks give the same seeds. Inputs and outputs are parts where this
/// is said below, and gradients are complete: the library has summed what comes from the parts of other ranks.
/// All ranks make the same calls in the same order, and bind the same gradients.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXParallelConfig {
    /// Ranks that share each weight: 1 (default): the module is not divided, and the same on all ranks; 0: those of
    /// NVTEX_GRID_TP; or the number of these. They share outputs of the products that come first in a module (rows of
    /// the weight; in the MLP those of the function and of its gate each; heads) and the inputs of those that come last
    /// (columns of the weight), after which one sum over the ranks follows. Inputs and outputs of modules are whole, those
    /// of attention without projections have the own heads.
    pub tensor_parallel_size: usize,
    /// The same ranks share the rows between products, too: inputs and outputs, norms, dropout and residuals have an
    /// equal share of the first dimension, in the order of the ranks. Default: false.
    pub sequence_parallel: MaybeUninit<bool>,
    /// Ranks that share each sequence. Default: 1.
    pub context_parallel_size: usize,
    /// Null (default): none. It is read when the module is created.
    pub options: *const NVTEXParallelOptions,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 3],
}

/// How the ranks that share each sequence do their attention.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXContextParallelKind {
    /// NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL where that is possible and moves fewer bytes, unless there is a window to the
    /// left; else NVTEX_CONTEXT_PARALLEL_ALL_GATHER.
    NVTEX_CONTEXT_PARALLEL_AUTOMATIC = 0,
    /// A rank gets some of the heads of whole sequences; heads of queries and of keys are multiples of the ranks. All
    /// masks, packed tokens and dropout, which drops the same elements as on one rank.
    NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL = 1,
    /// A rank gets the keys and values that its queries see. No dropout; masks with padding only of packed tokens, which
    /// have a causal mask, or neither a mask nor a window, and of which a rank gets all keys and values.
    NVTEX_CONTEXT_PARALLEL_ALL_GATHER = 2,
    /// A rank gets the keys and values of one rank after the other, so that its memory does not grow with the whole
    /// sequence. As NVTEX_CONTEXT_PARALLEL_ALL_GATHER, which it is if there is a window to the left: what that leaves comes at
    /// once. No window to the right alone.
    NVTEX_CONTEXT_PARALLEL_RING = 3,
}

from_c_enum!(NVTEXContextParallelKind, "an NVTEXContextParallelKind from 0 to 3");

/// Norms of the heads of queries and keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromPrimitive)]
pub enum NVTEXQKNorm {
    NVTEX_QK_NORM_NONE = 0,
    /// `x / sqrt(sum(x^2) + epsilon)`, without parameters.
    NVTEX_QK_NORM_L2 = 1,
    NVTEX_QK_NORM_RMS = 2,
    NVTEX_QK_NORM_LAYER = 3,
}

from_c_enum!(NVTEXQKNorm, "an NVTEXQKNorm from 0 to 3");

/// Config of a norm, as a module or as the first part of one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXNormConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
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
    /// Of a norm that is a module: the ranks that share weights share its rows, so that the gradients of its parameters
    /// are summed over them. Default: false.
    pub sequence_parallel: MaybeUninit<bool>,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y = x W^T + b`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NVTEXLinearConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub in_features: usize,
    pub out_features: usize,
    /// Default: true.
    pub bias: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
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
#[derive(Clone, Copy)]
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
    pub bias: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight: `linear.seed`. Default: 0.
    pub seed: u64,
    /// `norm.kind`. Default: LayerNorm.
    pub norm_type: MaybeUninit<NVTE_Norm_Type>,
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
#[derive(Clone, Copy)]
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
    pub bias: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    pub init_std: f32,
    /// Seed of the initial weight: `linear.seed`. Default: 0.
    pub seed: u64,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// `y = f(norm(x) W1^T + b1) W2^T + b2`. The norm's `hidden_size`, `name` and `dtype` are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
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
    pub activation: MaybeUninit<NVTE_Activation_Type>,
    /// Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    pub clamp_limit: f32,
    pub clamp_alpha: f32,
    pub clamp_offset: f32,
    /// Whether both linear layers have a bias. Default: true.
    pub bias: MaybeUninit<bool>,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// Standard deviations of the initial weights. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Seed of the initial weights.
    pub seed: u64,
    /// Tapes hold the input, but neither the norm's result nor the input and the result of the
    /// activation. The backward pass computes these again, to the same bits, from weights that tapes
    /// then hold for both passes. Default: false.
    pub checkpoint: MaybeUninit<bool>,
    /// How ranks share the module.
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
    pub qkv_format: MaybeUninit<NVTE_QKV_Format>,
    /// Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    /// The numbers of keys before and after a query that it sees; -1 (default): all.
    pub window_size_left: i64,
    pub window_size_right: i64,
    /// Windows of masks that are not causal are aligned at the bottom right. Default: true.
    pub bottom_right_diagonal: MaybeUninit<bool>,
    pub softmax_type: MaybeUninit<NVTE_Softmax_Type>,
    /// Factor of the scores; 0 (default) stands for `1 / sqrt(head_dim_qk)`.
    pub softmax_scale: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    pub dtype: MaybeUninit<NVTEDType>,
    /// In modules with projections: tapes hold queries, keys and values, but not the attention's
    /// result and statistics, which the backward pass computes again, to the same bits. Default:
    /// false.
    pub checkpoint_core_attention: MaybeUninit<bool>,
    /// In self attention of modules with projections: normalizes each head of queries and keys, after
    /// or before the rotary embedding. Default: none.
    pub qk_norm_type: MaybeUninit<NVTEXQKNorm>,
    /// Default: 1e-6.
    pub qk_norm_epsilon: f32,
    /// Default: false.
    pub qk_norm_before_rope: MaybeUninit<bool>,
    /// How ranks share the module.
    pub parallel: NVTEXParallelConfig,
    /// How ranks that share each sequence do their attention. Default: automatic.
    pub context_parallel_kind: MaybeUninit<NVTEXContextParallelKind>,
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
#[derive(Clone, Copy)]
pub struct NVTEXMultiheadAttentionConfig {
    /// Bytes of this struct.
    pub struct_size: usize,
    /// Name, unique in its context; for null or an empty one a name is made up.
    pub name: *const c_char,
    pub hidden_size: usize,
    pub attention: NVTEXAttentionConfig,
    /// A norm in front of the first projection. Default: false. Its `hidden_size`, `name` and `dtype` are
    /// ignored.
    pub input_layernorm: MaybeUninit<bool>,
    pub norm: NVTEXNormConfig,
    /// Keys and values come from a second input. Default: false.
    pub cross_attention: MaybeUninit<bool>,
    /// Whether the projections have biases. Default: true.
    pub bias: MaybeUninit<bool>,
    /// Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    pub rotary_interleaved: MaybeUninit<bool>,
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
    pub norm_type: MaybeUninit<NVTE_Norm_Type>,
    /// `norm.epsilon`. Default: 1e-5.
    pub norm_epsilon: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `attention.dtype`.
    pub dtype: MaybeUninit<NVTEDType>,
    /// `attention.qkv_format`. Default: NVTE_SBHD.
    pub qkv_format: MaybeUninit<NVTE_QKV_Format>,
    /// `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    /// Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    pub attention_dropout: f32,
    /// How ranks share the module: `attention.parallel`.
    pub parallel: NVTEXParallelConfig,
    /// Zeros: room for what later versions add.
    pub reserved: [u64; 4],
}

/// A layer of a Transformer.
///
/// A field from `hidden_size` on is one of a part, or of several, for programs that need not name the parts. A part's own field
/// holds where the one here has its default; where both have another value they must be the same.
#[repr(C)]
#[derive(Clone, Copy)]
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
    pub decoder: MaybeUninit<bool>,
    pub inter_mask_type: MaybeUninit<NVTE_Mask_Type>,
    /// Residuals are the norms' results. Default: false.
    pub residual_post_layernorm: MaybeUninit<bool>,
    /// The layer has a norm at its end instead of the one before the self attention. Default: false.
    pub output_layernorm: MaybeUninit<bool>,
    /// Attention and MLP both read the layer's input, and their sum is added to it. This excludes
    /// `decoder`, `residual_post_layernorm` and `output_layernorm`. Default: false.
    pub parallel_attention_mlp: MaybeUninit<bool>,
    /// Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    pub rotary_interleaved: MaybeUninit<bool>,
    /// Elements of a row: `mlp.hidden_size`. Default: 0.
    pub hidden_size: usize,
    /// Elements after the activation of the MLP: `mlp.ffn_hidden_size`. Default: 0.
    pub ffn_hidden_size: usize,
    /// `attention.num_attention_heads`. Default: 0.
    pub num_attention_heads: usize,
    /// Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    pub num_gqa_groups: usize,
    /// `mlp.activation`. Default: GELU.
    pub activation: MaybeUninit<NVTE_Activation_Type>,
    /// Of all norms of rows: `mlp.norm.kind`. Default: LayerNorm.
    pub norm_type: MaybeUninit<NVTE_Norm_Type>,
    /// Of all norms of rows: `mlp.norm.epsilon`. Default: 1e-5.
    pub norm_epsilon: f32,
    /// Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `mlp.dtype`.
    pub dtype: MaybeUninit<NVTEDType>,
    /// `attention.qkv_format`. Default: NVTE_SBHD.
    pub qkv_format: MaybeUninit<NVTE_QKV_Format>,
    /// Of the self attention: `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    pub attn_mask_type: MaybeUninit<NVTE_Mask_Type>,
    /// Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    pub attention_dropout: f32,
    /// Whether the linear layers have biases: `mlp.bias`. Default: true.
    pub bias: MaybeUninit<bool>,
    /// Standard deviations of the initial weights: `mlp.init_std`, `mlp.output_init_std`. Defaults: 0.023.
    pub init_std: f32,
    pub output_init_std: f32,
    /// Seed of the initial weights: `mlp.seed`. Default: 0.
    pub seed: u64,
    /// Tapes leave out what is cheap to compute again: `mlp.checkpoint` and
    /// `attention.checkpoint_core_attention`. Default: false.
    pub checkpoint: MaybeUninit<bool>,
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

/// Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd` or `nvte_rmsnorm_fwd` with parameters.
///
/// Input and output: `[..., hidden_size]`. Parameters: `weight`, and with LayerNorm `bias`.
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

/// Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the
/// recipe allows it.
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

/// Creates a norm followed by a linear layer, an activation and a second linear layer.
///
/// Shapes: input and output `[..., hidden_size]`; a second output, if not null, takes the norm's
/// result, and its gradient counts. Sizes: as `nvtex_linear_create`.
///
/// Parameters: `layer_norm_weight`, `layer_norm_bias`, `fc1_weight`
/// `[ffn_hidden_size (gated: twice that), hidden_size]`, `fc1_bias`, `fc2_weight`
/// `[hidden_size, ffn_hidden_size]`, `fc2_bias`.
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
/// Shapes: inputs `[s, b, h, d]` (NVTE_SBHD), `[b, s, h, d]` (NVTE_BSHD) or `[t, h, d]` (NVTE_THD),
/// with `num_attention_heads` heads of queries and `num_gqa_groups` of keys and values. The output has
/// as many elements as there are rows of heads times `head_dim_v`.
///
/// Parameters: with a learnable softmax `softmax_offset`, Float32 `[num_attention_heads]`.
///
/// Notes: masks with padding take their lengths from the step. The tape refers to the output, too.
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

config!(NVTEXNormConfig {
    struct_size,
    name,
    kind,
    hidden_size,
    epsilon,
    zero_centered_gamma,
    dtype,
    sequence_parallel,
    reserved
});

config!(NVTEXLinearConfig {
    struct_size,
    name,
    in_features,
    out_features,
    bias,
    dtype,
    init_std,
    seed,
    parallel,
    reserved
});

config!(NVTEXLayerNormLinearConfig {
    struct_size,
    norm,
    linear,
    name,
    in_features,
    out_features,
    bias,
    dtype,
    init_std,
    seed,
    norm_type,
    norm_epsilon,
    parallel,
    reserved
});

config!(NVTEXGroupedLinearConfig {
    struct_size,
    num_gemms,
    linear,
    name,
    in_features,
    out_features,
    bias,
    dtype,
    init_std,
    seed,
    reserved
});

config!(NVTEXLayerNormMLPConfig {
    struct_size,
    name,
    norm,
    hidden_size,
    ffn_hidden_size,
    activation,
    clamp_limit,
    clamp_alpha,
    clamp_offset,
    bias,
    dtype,
    init_std,
    output_init_std,
    seed,
    checkpoint,
    parallel,
    reserved
});

config!(NVTEXAttentionConfig {
    struct_size,
    name,
    num_attention_heads,
    num_gqa_groups,
    head_dim_qk,
    head_dim_v,
    attention_dropout,
    qkv_format,
    attn_mask_type,
    window_size_left,
    window_size_right,
    bottom_right_diagonal,
    softmax_type,
    softmax_scale,
    dtype,
    checkpoint_core_attention,
    qk_norm_type,
    qk_norm_epsilon,
    qk_norm_before_rope,
    parallel,
    context_parallel_kind,
    reserved
});

config!(NVTEXMultiheadAttentionConfig {
    struct_size,
    name,
    hidden_size,
    attention,
    input_layernorm,
    norm,
    cross_attention,
    bias,
    rotary_interleaved,
    init_std,
    output_init_std,
    seed,
    num_attention_heads,
    num_gqa_groups,
    norm_type,
    norm_epsilon,
    dtype,
    qkv_format,
    attn_mask_type,
    attention_dropout,
    parallel,
    reserved
});

config!(NVTEXTransformerLayerConfig {
    struct_size,
    name,
    attention,
    mlp,
    hidden_dropout,
    decoder,
    inter_mask_type,
    residual_post_layernorm,
    output_layernorm,
    parallel_attention_mlp,
    rotary_interleaved,
    hidden_size,
    ffn_hidden_size,
    num_attention_heads,
    num_gqa_groups,
    activation,
    norm_type,
    norm_epsilon,
    dtype,
    qkv_format,
    attn_mask_type,
    attention_dropout,
    bias,
    init_std,
    output_init_std,
    seed,
    checkpoint,
    parallel,
    experts,
    reserved
});
