"""Modules, and the types of their configs."""

# Generated from the C headers by tests/abi.rs.

from __future__ import annotations

from typing import Literal, TypedDict

from . import _abi
from ._core import Context, Module, Stream

DType = Literal["byte", "int16", "int32", "int64", "float32", "float16", "bfloat16", "float8e4m3", "float8e5m2", "float8e8m0", "float4e2m1"]
NormType = Literal["layernorm", "rmsnorm"]
ActivationType = Literal["gelu", "geglu", "glu", "silu", "swiglu", "relu", "reglu", "qgelu", "qgeglu", "srelu", "sreglu", "clamped_swiglu"]
QKVFormat = Literal["sbhd", "bshd", "thd", "bshd_2sbhd", "sbhd_2bshd", "thd_2bshd", "thd_2sbhd", "bhsd", "qkv_format_not_set"]
MaskType = Literal["no_mask", "padding_mask", "causal_mask", "padding_causal_mask", "causal_bottom_right_mask", "padding_causal_bottom_right_mask"]
SoftmaxType = Literal["vanilla_softmax", "off_by_one_softmax", "learnable_softmax"]
Status = Literal["ok", "invalid_argument", "unsupported", "device_error", "internal_error"]
RecipeKind = Literal["delayed_scaling", "current_scaling", "block_scaling", "mxfp8", "custom", "nvfp4"]
Format = Literal["e4m3", "e5m2", "hybrid"]
HistoryAlgo = Literal["max", "most_recent"]
Backward = Literal["quantized", "high_precision", "dequantized"]
Role = Literal["input", "weight", "grad_output"]
SlotScaling = Literal["high_precision", "delayed", "current", "block", "mxfp8", "nvfp4"]
Pass = Literal["forward", "backward"]
QKNorm = Literal["none", "l2", "rms", "layer"]
ContextParallelKind = Literal["automatic", "all_to_all", "all_gather", "ring"]
MoeScore = Literal["softmax", "softmax_of_all", "sigmoid", "sqrtsoftplus"]
Microbatch = Literal["none", "first", "later"]


class RoleOptions(TypedDict, total=False):
    """What a recipe says of one role."""

    power_2_scales: bool
    amax_epsilon: float
    block_dim: int


class RecipeConfig(TypedDict, total=False):
    """A recipe. `nvtex_recipe_config_init` sets the defaults."""

    kind: RecipeKind
    format: Format
    margin: float
    amax_history_len: int
    amax_algo: HistoryAlgo
    update_interval: int
    reduce_amax: bool
    input: RoleOptions
    weight: RoleOptions
    grad_output: RoleOptions
    split_accumulator_fprop: bool
    split_accumulator_dgrad: bool
    split_accumulator_wgrad: bool
    backward: Backward
    fp8_dpa: bool
    nvfp4_hadamard: bool
    nvfp4_stochastic_rounding: bool


class ContextConfig(TypedDict, total=False):
    """What a context gets from the program. All fields may be null or 0.

    The functions must not call functions of the same context, its modules, tapes and caches, not even those
    that destroy: such a call is an error. A C++ exception that leaves one of them becomes an error of the call
    that called it. They must end by returning or by an exception: `longjmp` out of them, and ending the thread
    in them, is undefined behaviour."""

    multiprocessor_count: int
    max_unused_bytes: int


class NormConfig(TypedDict, total=False):
    """Config of a norm, as a module or as the first part of one."""

    name: str
    kind: NormType
    hidden_size: int
    epsilon: float
    zero_centered_gamma: bool
    dtype: DType
    sequence_parallel: bool


class ParallelConfig(TypedDict, total=False):
    """How a module is spread over the ranks of its context's grid (`nvtex_context_set_grid`).

    Sizes in configs are those of the whole module. Parameters are parts of it, as `nvtex_module_parameter` says, with
    the initial values that they have in the whole; all ranks give the same seeds. Inputs and outputs are parts where this
    is said below, and gradients are complete: the library has summed what comes from the parts of other ranks.
    All ranks make the same calls in the same order, and bind the same gradients."""

    tensor_parallel_size: int
    sequence_parallel: bool
    context_parallel_size: int


class LinearConfig(TypedDict, total=False):
    """`y = x W^T + b`"""

    name: str
    in_features: int
    out_features: int
    bias: bool
    dtype: DType
    init_std: float
    seed: int
    parallel: ParallelConfig


class LayerNormLinearConfig(TypedDict, total=False):
    """`y = norm(x) W^T + b`. The norm's `hidden_size`, `name` and `dtype` are ignored.

    A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
    holds where the one here has its default; where both have another value they must be the same."""

    norm: NormConfig
    linear: LinearConfig
    name: str
    in_features: int
    out_features: int
    bias: bool
    dtype: DType
    init_std: float
    seed: int
    norm_type: NormType
    norm_epsilon: float
    parallel: ParallelConfig


class GroupedLinearConfig(TypedDict, total=False):
    """`y_e = x_e W_e^T + b_e`

    A field from `name` on is one of a part, or of several, for programs that need not name the parts. A part's own field
    holds where the one here has its default; where both have another value they must be the same."""

    num_gemms: int
    linear: LinearConfig
    name: str
    in_features: int
    out_features: int
    bias: bool
    dtype: DType
    init_std: float
    seed: int


class LayerNormMLPConfig(TypedDict, total=False):
    """`y = f(norm(x) W1^T + b1) W2^T + b2`. The norm's `hidden_size`, `name` and `dtype` are ignored."""

    name: str
    norm: NormConfig
    hidden_size: int
    ffn_hidden_size: int
    activation: ActivationType
    clamp_limit: float
    clamp_alpha: float
    clamp_offset: float
    bias: bool
    dtype: DType
    init_std: float
    output_init_std: float
    seed: int
    checkpoint: bool
    parallel: ParallelConfig


class AttentionConfig(TypedDict, total=False):
    """`softmax(scale q k^T) v`, as `nvte_fused_attn_fwd_v2` has it."""

    name: str
    num_attention_heads: int
    num_gqa_groups: int
    head_dim_qk: int
    head_dim_v: int
    attention_dropout: float
    qkv_format: QKVFormat
    attn_mask_type: MaskType
    window_size_left: int
    window_size_right: int
    bottom_right_diagonal: bool
    softmax_type: SoftmaxType
    softmax_scale: float
    dtype: DType
    checkpoint_core_attention: bool
    qk_norm_type: QKNorm
    qk_norm_epsilon: float
    qk_norm_before_rope: bool
    parallel: ParallelConfig
    context_parallel_kind: ContextParallelKind


class MultiheadAttentionConfig(TypedDict, total=False):
    """Config of projections, attention, and a projection. The attention's `name` is ignored; if its
    `head_dim_qk` is 0 (default), it is `hidden_size / num_attention_heads`, and `head_dim_v` is the
    same.

    A field from `num_attention_heads` on is one of a part, or of several, for programs that need not name the parts. A part's own field
    holds where the one here has its default; where both have another value they must be the same."""

    name: str
    hidden_size: int
    attention: AttentionConfig
    input_layernorm: bool
    norm: NormConfig
    cross_attention: bool
    bias: bool
    rotary_interleaved: bool
    init_std: float
    output_init_std: float
    seed: int
    num_attention_heads: int
    num_gqa_groups: int
    norm_type: NormType
    norm_epsilon: float
    dtype: DType
    qkv_format: QKVFormat
    attn_mask_type: MaskType
    attention_dropout: float
    parallel: ParallelConfig


class MoeConfig(TypedDict, total=False):
    """Config of a layer of experts: `y = sum_k w_k f_k(x) + g(x)` for the experts k that a router chooses for the token x,
    each an MLP `f(x) = act(x W1^T + b1) W2^T + b2`, and an MLP g for all tokens."""

    name: str
    hidden_size: int
    ffn_hidden_size: int
    num_experts: int
    top_k: int
    dtype: DType
    router_dtype: DType
    activation: ActivationType
    clamp_limit: float
    clamp_alpha: float
    clamp_offset: float
    bias: bool
    score: MoeScore
    num_groups: int
    group_top_k: int
    expert_bias: bool
    scaling_factor: float
    balance_coefficient: float
    z_coefficient: float
    shared_ffn_hidden_size: int
    init_std: float
    output_init_std: float
    router_init_std: float
    seed: int
    expert_parallel_size: int
    capacity_factor: float
    tensor_parallel_size: int


class TransformerLayerConfig(TypedDict, total=False):
    """A layer of a Transformer.

    A field from `hidden_size` on is one of a part, or of several, for programs that need not name the parts. A part's own field
    holds where the one here has its default; where both have another value they must be the same."""

    name: str
    attention: AttentionConfig
    mlp: LayerNormMLPConfig
    hidden_dropout: float
    decoder: bool
    inter_mask_type: MaskType
    residual_post_layernorm: bool
    output_layernorm: bool
    parallel_attention_mlp: bool
    rotary_interleaved: bool
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_gqa_groups: int
    activation: ActivationType
    norm_type: NormType
    norm_epsilon: float
    dtype: DType
    qkv_format: QKVFormat
    attn_mask_type: MaskType
    attention_dropout: float
    bias: bool
    init_std: float
    output_init_std: float
    seed: int
    checkpoint: bool
    parallel: ParallelConfig


class EmbeddingConfig(TypedDict, total=False):
    """Config of an embedding."""

    name: str
    vocabulary_size: int
    hidden_size: int
    max_positions: int
    scale: float
    dtype: DType
    init_std: float
    position_init_std: float
    seed: int


class LMHeadConfig(TypedDict, total=False):
    """Config of the head of a language model."""

    name: str
    vocabulary_size: int
    hidden_size: int
    tied_to: Module
    dtype: DType
    init_std: float
    seed: int
    ignored_target: int
    label_smoothing: float
    z_loss: float
    workspace_limit: int


class LanguageModelConfig(TypedDict, total=False):
    """Config of a language model: an embedding, layers that are alike, a norm and a head in a row."""

    vocabulary_size: int
    max_positions: int
    num_layers: int
    layer: TransformerLayerConfig
    tied_embeddings: bool
    workspace_limit: int


class RotaryConfig(TypedDict, total=False):
    """Angles of rotary embeddings."""

    base: float
    offset: int
    interpolation_factor: float
    pretrained_length: int
    interleaved: bool


class Norm(Module):
    """
    Creates a LayerNorm or RMSNorm: `nvte_layernorm_fwd` or `nvte_rmsnorm_fwd` with parameters.

    Input and output: `[..., hidden_size]`. Parameters: `weight`, and with LayerNorm `bias`.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - kind: Default: LayerNorm.
    - hidden_size: Elements of a row.
    - epsilon: Default: 1e-5.
    - zero_centered_gamma: The weight is stored as its distance from 1.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    - sequence_parallel: Of a norm that is a module: the ranks that share weights share its rows, so that the gradients of its parameters are summed over them. Default: false.
    """

    _config = _abi.NVTEXNormConfig
    _init = "nvtex_norm_config_init"
    _create = "nvtex_norm_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        kind: NormType | None = None,
        hidden_size: int | None = None,
        epsilon: float | None = None,
        zero_centered_gamma: bool | None = None,
        dtype: DType | None = None,
        sequence_parallel: bool | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "kind": kind,
            "hidden_size": hidden_size,
            "epsilon": epsilon,
            "zero_centered_gamma": zero_centered_gamma,
            "dtype": dtype,
            "sequence_parallel": sequence_parallel,
        })


class Linear(Module):
    """
    Creates a linear layer, `y = x W^T + b`.

    Shapes: input `[..., in_features]`, output `[..., out_features]`. Under a recipe, features must be
    multiples of 16 (MXFP8: 32); rows may be any number.

    Parameters: `weight` `[out_features, in_features]`, `bias` `[out_features]`.

    Over several ranks the mode says what they share. Columns: the output is `[..., out_features / ranks]`, and parameters
    have that many rows. Rows: the input is `[..., in_features / ranks]`, as many columns has the weight, and the bias is
    whole. If ranks share rows (`sequence_parallel`), the input of a layer that shares outputs, and the output of one that
    shares inputs, have the rows of this rank, the other one has all rows.

    Notes: on CUDA the FP8 product of the weight's gradient is faster if rows are a multiple of 16, and
    with FP8 blocks the other products if rows are a multiple of 8. Otherwise a kernel of this library
    computes them, and a product with a bias takes `4 * rows * out_features` bytes more of the context's
    memory.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - in_features
    - out_features
    - bias: Default: true.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    - init_std: Standard deviation of the initial weight. Default: 0.023.
    - seed: Seed of the initial weight.
    - parallel: How ranks share the module.
    """

    _config = _abi.NVTEXLinearConfig
    _init = "nvtex_linear_config_init"
    _create = "nvtex_linear_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        in_features: int | None = None,
        out_features: int | None = None,
        bias: bool | None = None,
        dtype: DType | None = None,
        init_std: float | None = None,
        seed: int | None = None,
        parallel: ParallelConfig | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "in_features": in_features,
            "out_features": out_features,
            "bias": bias,
            "dtype": dtype,
            "init_std": init_std,
            "seed": seed,
            "parallel": parallel,
        })


class LayerNormLinear(Module):
    """
    Creates a norm followed by a linear layer, which gets its input in FP8 from the norm where the
    recipe allows it.

    As `nvtex_linear_create`; a second output, if not null, takes the norm's result, and its gradient
    counts. Parameters: `layer_norm_weight`, `layer_norm_bias`, `weight`, `bias`.

    Arguments that are None have the library's defaults:

    - norm
    - linear
    - name: `linear.name`.
    - in_features: `linear.in_features`. Default: 0.
    - out_features: `linear.out_features`. Default: 0.
    - bias: `linear.bias`. Default: true.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    - init_std: Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    - seed: Seed of the initial weight: `linear.seed`. Default: 0.
    - norm_type: `norm.kind`. Default: LayerNorm.
    - norm_epsilon: `norm.epsilon`. Default: 1e-5.
    - parallel: How ranks share the module: `linear.parallel`.
    """

    _config = _abi.NVTEXLayerNormLinearConfig
    _init = "nvtex_layernorm_linear_config_init"
    _create = "nvtex_layernorm_linear_create"

    def __init__(
        self,
        context: Context,
        *,
        norm: NormConfig | None = None,
        linear: LinearConfig | None = None,
        name: str | None = None,
        in_features: int | None = None,
        out_features: int | None = None,
        bias: bool | None = None,
        dtype: DType | None = None,
        init_std: float | None = None,
        seed: int | None = None,
        norm_type: NormType | None = None,
        norm_epsilon: float | None = None,
        parallel: ParallelConfig | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "norm": norm,
            "linear": linear,
            "name": name,
            "in_features": in_features,
            "out_features": out_features,
            "bias": bias,
            "dtype": dtype,
            "init_std": init_std,
            "seed": seed,
            "norm_type": norm_type,
            "norm_epsilon": norm_epsilon,
            "parallel": parallel,
        })


class GroupedLinear(Module):
    """
    Creates linear layers for rows that are sorted by layer, such as those of experts: the first
    `m_splits[0]` rows (of the step) go through the first layer, and so on.

    Shapes: input `[..., in_features]`, output `[..., out_features]`. Each split keeps the rules for
    rows of `nvtex_linear_create`. A part without rows gets gradients of 0.

    Parameters: for each part e `weight<e>` and `bias<e>`, as those of `nvtex_linear_create`. The name
    of a part for `nvtex_context_delayed_scaling` is the module's followed by `.<e>`.

    Over several ranks each has a part of every weight, as of `nvtex_linear_create`; rows and splits are the same on all
    of them (no `sequence_parallel`).

    Errors: splits that are not `num_gemms`, or do not sum to the rows.

    Arguments that are None have the library's defaults:

    - num_gemms: Parts, each with a weight of its own.
    - linear: Config of each part, with one name for all. Initial weights differ.
    - name: `linear.name`.
    - in_features: `linear.in_features`. Default: 0.
    - out_features: `linear.out_features`. Default: 0.
    - bias: `linear.bias`. Default: true.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `linear.dtype`.
    - init_std: Standard deviation of the initial weight: `linear.init_std`. Default: 0.023.
    - seed: Seed of the initial weight: `linear.seed`. Default: 0.
    """

    _config = _abi.NVTEXGroupedLinearConfig
    _init = "nvtex_grouped_linear_config_init"
    _create = "nvtex_grouped_linear_create"

    def __init__(
        self,
        context: Context,
        *,
        num_gemms: int | None = None,
        linear: LinearConfig | None = None,
        name: str | None = None,
        in_features: int | None = None,
        out_features: int | None = None,
        bias: bool | None = None,
        dtype: DType | None = None,
        init_std: float | None = None,
        seed: int | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "num_gemms": num_gemms,
            "linear": linear,
            "name": name,
            "in_features": in_features,
            "out_features": out_features,
            "bias": bias,
            "dtype": dtype,
            "init_std": init_std,
            "seed": seed,
        })


class LayerNormMLP(Module):
    """
    Creates a norm followed by a linear layer, an activation and a second linear layer.

    Shapes: input and output `[..., hidden_size]`; a second output, if not null, takes the norm's
    result, and its gradient counts. Sizes: as `nvtex_linear_create`.

    Parameters: `layer_norm_weight`, `layer_norm_bias`, `fc1_weight`
    `[ffn_hidden_size (gated: twice that), hidden_size]`, `fc1_bias`, `fc2_weight`
    `[hidden_size, ffn_hidden_size]`, `fc2_bias`.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - norm
    - hidden_size
    - ffn_hidden_size: Elements after the activation. With a gated activation W1 has twice as many rows, first those of the function f, then those of the gate.
    - activation: Default: GELU.
    - clamp_limit: Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    - clamp_alpha
    - clamp_offset
    - bias: Whether both linear layers have a bias. Default: true.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    - init_std: Standard deviations of the initial weights. Defaults: 0.023.
    - output_init_std
    - seed: Seed of the initial weights.
    - checkpoint: Tapes hold the input, but neither the norm's result nor the input and the result of the activation. The backward pass computes these again, to the same bits, from weights that tapes then hold for both passes. Default: false.
    - parallel: How ranks share the module.
    """

    _config = _abi.NVTEXLayerNormMLPConfig
    _init = "nvtex_layernorm_mlp_config_init"
    _create = "nvtex_layernorm_mlp_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        norm: NormConfig | None = None,
        hidden_size: int | None = None,
        ffn_hidden_size: int | None = None,
        activation: ActivationType | None = None,
        clamp_limit: float | None = None,
        clamp_alpha: float | None = None,
        clamp_offset: float | None = None,
        bias: bool | None = None,
        dtype: DType | None = None,
        init_std: float | None = None,
        output_init_std: float | None = None,
        seed: int | None = None,
        checkpoint: bool | None = None,
        parallel: ParallelConfig | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "norm": norm,
            "hidden_size": hidden_size,
            "ffn_hidden_size": ffn_hidden_size,
            "activation": activation,
            "clamp_limit": clamp_limit,
            "clamp_alpha": clamp_alpha,
            "clamp_offset": clamp_offset,
            "bias": bias,
            "dtype": dtype,
            "init_std": init_std,
            "output_init_std": output_init_std,
            "seed": seed,
            "checkpoint": checkpoint,
            "parallel": parallel,
        })


class Attention(Module):
    """
    Creates an attention of queries, keys and values, in high precision unless a recipe has `fp8_dpa`.

    Shapes: inputs `[s, b, h, d]` (NVTE_SBHD), `[b, s, h, d]` (NVTE_BSHD) or `[t, h, d]` (NVTE_THD),
    with `num_attention_heads` heads of queries and `num_gqa_groups` of keys and values. The output has
    as many elements as there are rows of heads times `head_dim_v`.

    Parameters: with a learnable softmax `softmax_offset`, Float32 `[num_attention_heads]`.

    Notes: masks with padding take their lengths from the step. The tape refers to the output, too.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - num_attention_heads
    - num_gqa_groups: Heads of keys and values. 0: as many as of queries.
    - head_dim_qk
    - head_dim_v: Elements of a head of values; 0 stands for `head_dim_qk`.
    - attention_dropout: Dropout of the probabilities, in passes with a tape. Default: 0.
    - qkv_format: NVTE_SBHD (default), NVTE_BSHD, or NVTE_THD (packed tokens, only with masks that have padding).
    - attn_mask_type: Default: NVTE_CAUSAL_MASK.
    - window_size_left: The numbers of keys before and after a query that it sees; -1 (default): all.
    - window_size_right
    - bottom_right_diagonal: Windows of masks that are not causal are aligned at the bottom right. Default: true.
    - softmax_type
    - softmax_scale: Factor of the scores; 0 (default) stands for `1 / sqrt(head_dim_qk)`.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs.
    - checkpoint_core_attention: In modules with projections: tapes hold queries, keys and values, but not the attention's result and statistics, which the backward pass computes again, to the same bits. Default: false.
    - qk_norm_type: In self attention of modules with projections: normalizes each head of queries and keys, after or before the rotary embedding. Default: none.
    - qk_norm_epsilon: Default: 1e-6.
    - qk_norm_before_rope: Default: false.
    - parallel: How ranks share the module.
    - context_parallel_kind: How ranks that share each sequence do their attention. Default: automatic.
    """

    _config = _abi.NVTEXAttentionConfig
    _init = "nvtex_attention_config_init"
    _create = "nvtex_attention_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        num_attention_heads: int | None = None,
        num_gqa_groups: int | None = None,
        head_dim_qk: int | None = None,
        head_dim_v: int | None = None,
        attention_dropout: float | None = None,
        qkv_format: QKVFormat | None = None,
        attn_mask_type: MaskType | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        bottom_right_diagonal: bool | None = None,
        softmax_type: SoftmaxType | None = None,
        softmax_scale: float | None = None,
        dtype: DType | None = None,
        checkpoint_core_attention: bool | None = None,
        qk_norm_type: QKNorm | None = None,
        qk_norm_epsilon: float | None = None,
        qk_norm_before_rope: bool | None = None,
        parallel: ParallelConfig | None = None,
        context_parallel_kind: ContextParallelKind | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "num_attention_heads": num_attention_heads,
            "num_gqa_groups": num_gqa_groups,
            "head_dim_qk": head_dim_qk,
            "head_dim_v": head_dim_v,
            "attention_dropout": attention_dropout,
            "qkv_format": qkv_format,
            "attn_mask_type": attn_mask_type,
            "window_size_left": window_size_left,
            "window_size_right": window_size_right,
            "bottom_right_diagonal": bottom_right_diagonal,
            "softmax_type": softmax_type,
            "softmax_scale": softmax_scale,
            "dtype": dtype,
            "checkpoint_core_attention": checkpoint_core_attention,
            "qk_norm_type": qk_norm_type,
            "qk_norm_epsilon": qk_norm_epsilon,
            "qk_norm_before_rope": qk_norm_before_rope,
            "parallel": parallel,
            "context_parallel_kind": context_parallel_kind,
        })


class MultiheadAttention(Module):
    """
    Creates projections to queries, keys and values, rotary embeddings, attention, and a projection of
    its output.

    Shapes: input and output `[s, b, hidden_size]` (NVTE_SBHD), `[b, s, hidden_size]` (NVTE_BSHD) or
    `[t, hidden_size]` (NVTE_THD, where `cu_seqlens_q` of the step says which tokens belong to a
    sequence, and the others get the bias). Cross attention has a second input `[s_kv, b, hidden_size]`,
    likewise.

    Parameters, each as those of `nvtex_linear_create` or `nvtex_layernorm_linear_create`: `qkv.` or
    `layernorm_qkv.`, of cross attention `query_layer.` or `layernorm_query.` and `key_value.`; then
    `q_norm.` and `k_norm.` as those of `nvtex_norm_create`, `core_attention.softmax_offset` (learnable
    softmax) and `proj.`. Rows of the first weight are, for each group of heads, those of its queries,
    its key and its value.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - hidden_size
    - attention
    - input_layernorm: A norm in front of the first projection. Default: false. Its `hidden_size`, `name` and `dtype` are ignored.
    - norm
    - cross_attention: Keys and values come from a second input. Default: false.
    - bias: Whether the projections have biases. Default: true.
    - rotary_interleaved: Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    - init_std: Standard deviations of the initial weights, of the first projections and of the last. Default: 0.023.
    - output_init_std
    - seed: Seed of the initial weights.
    - num_attention_heads: `attention.num_attention_heads`. Default: 0.
    - num_gqa_groups: Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    - norm_type: `norm.kind`. Default: LayerNorm.
    - norm_epsilon: `norm.epsilon`. Default: 1e-5.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `attention.dtype`.
    - qkv_format: `attention.qkv_format`. Default: NVTE_SBHD.
    - attn_mask_type: `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    - attention_dropout: Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    - parallel: How ranks share the module: `attention.parallel`.
    """

    _config = _abi.NVTEXMultiheadAttentionConfig
    _init = "nvtex_multihead_attention_config_init"
    _create = "nvtex_multihead_attention_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        hidden_size: int | None = None,
        attention: AttentionConfig | None = None,
        input_layernorm: bool | None = None,
        norm: NormConfig | None = None,
        cross_attention: bool | None = None,
        bias: bool | None = None,
        rotary_interleaved: bool | None = None,
        init_std: float | None = None,
        output_init_std: float | None = None,
        seed: int | None = None,
        num_attention_heads: int | None = None,
        num_gqa_groups: int | None = None,
        norm_type: NormType | None = None,
        norm_epsilon: float | None = None,
        dtype: DType | None = None,
        qkv_format: QKVFormat | None = None,
        attn_mask_type: MaskType | None = None,
        attention_dropout: float | None = None,
        parallel: ParallelConfig | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "hidden_size": hidden_size,
            "attention": attention,
            "input_layernorm": input_layernorm,
            "norm": norm,
            "cross_attention": cross_attention,
            "bias": bias,
            "rotary_interleaved": rotary_interleaved,
            "init_std": init_std,
            "output_init_std": output_init_std,
            "seed": seed,
            "num_attention_heads": num_attention_heads,
            "num_gqa_groups": num_gqa_groups,
            "norm_type": norm_type,
            "norm_epsilon": norm_epsilon,
            "dtype": dtype,
            "qkv_format": qkv_format,
            "attn_mask_type": attn_mask_type,
            "attention_dropout": attention_dropout,
            "parallel": parallel,
        })


class TransformerLayer(Module):
    """
    Creates a layer of a Transformer: attention and an MLP, each with a norm before and a residual
    around it.

    What it computes: with D = dropout, `y = x + D(attention(norm(x)))`, for a decoder then
    `y = y + D(cross_attention(norm(y), memory))`, and `y + D(mlp(norm(y)))`. With parallel parts it is
    `x + D(attention(norm(x)) + mlp(norm'(x)))`.

    Inputs: as `nvtex_multihead_attention_create`; of a decoder a second one.

    With `experts` the MLP is a layer of experts. Its losses and the numbers of tokens that have chosen each expert are the
    second and third output, and the second `grad_outputs` is the gradient of the losses, as for `nvtex_moe_create`.

    Parameters: those of `nvtex_multihead_attention_create` behind `self_attention.` and
    `inter_attention.`, those of `nvtex_layernorm_mlp_create` behind `layernorm_mlp.`, and
    `layernorm.weight`, `layernorm.bias`. With `experts` those of its norm and of `nvtex_moe_create` stand behind
    `layernorm_moe.` in place of those of the MLP.

    Notes: without dropout residuals are added by products, and their gradients by norms.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - attention: The self attention, as for `nvtex_multihead_attention_create`.
    - mlp: The MLP, as for `nvtex_layernorm_mlp_create`. It also gives sizes, norms, bias, deviations and seed of the whole layer.
    - hidden_dropout: Dropout of what is added to the residuals, in passes with a tape. Default: 0.
    - decoder: Adds attention to a second input, without a mask unless `inter_mask_type` says so. Default: false.
    - inter_mask_type
    - residual_post_layernorm: Residuals are the norms' results. Default: false.
    - output_layernorm: The layer has a norm at its end instead of the one before the self attention. Default: false.
    - parallel_attention_mlp: Attention and MLP both read the layer's input, and their sum is added to it. This excludes `decoder`, `residual_post_layernorm` and `output_layernorm`. Default: false.
    - rotary_interleaved: Rotary embeddings rotate neighbours, not the halves of a head. Default: false.
    - hidden_size: Elements of a row: `mlp.hidden_size`. Default: 0.
    - ffn_hidden_size: Elements after the activation of the MLP: `mlp.ffn_hidden_size`. Default: 0.
    - num_attention_heads: `attention.num_attention_heads`. Default: 0.
    - num_gqa_groups: Heads of keys and values: `attention.num_gqa_groups`. Default: 0, as many as of queries.
    - activation: `mlp.activation`. Default: GELU.
    - norm_type: Of all norms of rows: `mlp.norm.kind`. Default: LayerNorm.
    - norm_epsilon: Of all norms of rows: `mlp.norm.epsilon`. Default: 1e-5.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters, inputs and outputs: `mlp.dtype`.
    - qkv_format: `attention.qkv_format`. Default: NVTE_SBHD.
    - attn_mask_type: Of the self attention: `attention.attn_mask_type`. Default: NVTE_CAUSAL_MASK.
    - attention_dropout: Dropout of the probabilities, in passes with a tape: `attention.attention_dropout`. Default: 0.
    - bias: Whether the linear layers have biases: `mlp.bias`. Default: true.
    - init_std: Standard deviations of the initial weights: `mlp.init_std`, `mlp.output_init_std`. Defaults: 0.023.
    - output_init_std
    - seed: Seed of the initial weights: `mlp.seed`. Default: 0.
    - checkpoint: Tapes leave out what is cheap to compute again: `mlp.checkpoint` and `attention.checkpoint_core_attention`. Default: false.
    - parallel: How ranks share the layer: `mlp.parallel` and `attention.parallel`.
    """

    _config = _abi.NVTEXTransformerLayerConfig
    _init = "nvtex_transformer_layer_config_init"
    _create = "nvtex_transformer_layer_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        attention: AttentionConfig | None = None,
        mlp: LayerNormMLPConfig | None = None,
        hidden_dropout: float | None = None,
        decoder: bool | None = None,
        inter_mask_type: MaskType | None = None,
        residual_post_layernorm: bool | None = None,
        output_layernorm: bool | None = None,
        parallel_attention_mlp: bool | None = None,
        rotary_interleaved: bool | None = None,
        hidden_size: int | None = None,
        ffn_hidden_size: int | None = None,
        num_attention_heads: int | None = None,
        num_gqa_groups: int | None = None,
        activation: ActivationType | None = None,
        norm_type: NormType | None = None,
        norm_epsilon: float | None = None,
        dtype: DType | None = None,
        qkv_format: QKVFormat | None = None,
        attn_mask_type: MaskType | None = None,
        attention_dropout: float | None = None,
        bias: bool | None = None,
        init_std: float | None = None,
        output_init_std: float | None = None,
        seed: int | None = None,
        checkpoint: bool | None = None,
        parallel: ParallelConfig | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "attention": attention,
            "mlp": mlp,
            "hidden_dropout": hidden_dropout,
            "decoder": decoder,
            "inter_mask_type": inter_mask_type,
            "residual_post_layernorm": residual_post_layernorm,
            "output_layernorm": output_layernorm,
            "parallel_attention_mlp": parallel_attention_mlp,
            "rotary_interleaved": rotary_interleaved,
            "hidden_size": hidden_size,
            "ffn_hidden_size": ffn_hidden_size,
            "num_attention_heads": num_attention_heads,
            "num_gqa_groups": num_gqa_groups,
            "activation": activation,
            "norm_type": norm_type,
            "norm_epsilon": norm_epsilon,
            "dtype": dtype,
            "qkv_format": qkv_format,
            "attn_mask_type": attn_mask_type,
            "attention_dropout": attention_dropout,
            "bias": bias,
            "init_std": init_std,
            "output_init_std": output_init_std,
            "seed": seed,
            "checkpoint": checkpoint,
            "parallel": parallel,
        })


class Moe(Module):
    """
    Creates a layer of experts (a mixture of experts): a router, an MLP for each expert, and one for all tokens.

    What it computes: the router's products give logits, from which `nvte_fused_topk_with_score_function_forward_v2`
    chooses experts and their weights. Rows of tokens are copied to those of their experts, go through products of groups
    (`nvte_grouped_gemm`), and are summed with their weights in Float32, in the order of the choices, rounded once. Without
    `capacity_factor` no choice is dropped: there is memory for `top_k` rows of each token. The same bits come out in every
    run.

    With `capacity_factor` an expert takes so many choices, in the order of ranks and then of tokens. Later ones are
    dropped: they add 0 to the output, and 0 to the gradients of the token and of their weights, while the weights of the
    token's other experts stay as they are. The third output counts all choices: those of an expert beyond its capacity
    were dropped.

    Shapes: input and output `[..., hidden_size]`. A second output, Float32 `[2]`, takes the losses of balance and of the
    size of the logits; a third, Int64 `[num_experts]`, the number of tokens that have chosen each expert. Both may be
    null.

    Gradients: backward passes add those of both losses, whether the losses were asked for or not: each times its element of
    the second `grad_outputs`, Float32 `[2]`, and times 1 without it.

    Parameters: `router.weight` `[num_experts, hidden_size]`, `router.expert_bias` `[num_experts]` (Float32, without
    gradient), `experts.fc1_weight` `[num_experts, ffn_hidden_size (gated: twice that), hidden_size]`, `experts.fc1_bias`,
    `experts.fc2_weight` `[num_experts, hidden_size, ffn_hidden_size]`, `experts.fc2_bias`, and the same of `shared.`
    without the first dimension.

    Recipes: the products of experts follow the recipe, those of the router do not. Delayed and current scaling have one
    scale for the rows of all experts, and one for their weights; FP8 blocks and MXFP8 pad the rows of each expert to a
    multiple of 128, one scale to 16. NVFP4 and weights in FP8 alone are refused.

    Over several ranks (`expert_parallel_size`) each has `num_experts / ranks` experts, in the order of the ranks, and
    tokens of its own, any number. Rows travel to the ranks of their experts and back. The gradients of experts are
    complete, over the tokens of all ranks; others are those of the own tokens. The mean of the losses over the ranks is
    that of all their tokens, as NVTEX_GRADIENTS_MEAN takes it: where gradients are sums over ranks, give `1 / ranks` as the
    gradient of the losses, or divide their factors. The host waits for the numbers of rows, so that a graph cannot
    capture it.

    With `capacity_factor` sizes are fixed, and nothing waits: under NCCL a graph can capture passes over ranks, too. All
    ranks then have the same number of tokens in a pass. Each pair exchanges a slot for each of their tokens, in which a token
    travels once for all of its experts of a rank. That rank sums their results with their weights, rounds the sum to
    `dtype`, and sends it back, where the sums of all ranks are added in Float32 and rounded once more. The same choices are
    dropped as by one rank that has all tokens.

    Ranks of tensor parallelism (`tensor_parallel_size`) have the same tokens and choices, and parts of each expert: rows of
    W1 and columns of W2. Their results are parts of a sum over these ranks, which one all-reduce of the output makes, and one
    of the gradient of the input; another one sums the gradients of weights of experts, 4 bytes a choice. The router and
    the second biases are whole on each rank, and their gradients the same. Sizes that the ranks do not divide are refused.

    Notes: without other ranks nothing waits for the device, and graphs can capture passes. On CUDA the products need compute
    capability 9.0.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - hidden_size
    - ffn_hidden_size: Elements of an expert after its activation. With a gated activation W1 has twice as many rows, first those of the function, then those of the gate.
    - num_experts
    - top_k: Experts of a token.
    - dtype: Float16 or BFloat16, on the CPU backend also Float32 (default), of experts, inputs and outputs.
    - router_dtype: Of the router: Float32 (default) or `dtype`. Its products stay in it whatever the recipe says; logits are Float32.
    - activation: Default: SWIGLU.
    - clamp_limit: Constants of CLAMPED_SWIGLU. Defaults: 7, 1.702, 1.
    - clamp_alpha
    - clamp_offset
    - bias: Whether experts and the shared MLP have biases. Default: false.
    - score: Default: NVTEX_MOE_SCORE_SOFTMAX.
    - num_groups: Experts come in groups of neighbours, of which only the best `group_top_k` are chosen from; the score of a group is the sum of its best `top_k / group_top_k`. 0 (default): there are none.
    - group_top_k
    - expert_bias: A bias of each expert that is added to its score for the choice alone; not with a softmax. The program moves it, by what the third output says. Default: false.
    - scaling_factor: Factor of the weights of experts. Default: 1.
    - balance_coefficient: Factor c of the loss of balance, `c E / (k T^2) sum_e n_e sum_t s_te`: of T tokens n_e have chosen expert e, to which token t gives the score s_te, divided by those of all experts. Default: 0.
    - z_coefficient: Factor c of the loss of the size of the logits, `c / T sum_t log(sum_e exp(x_te))^2`. Default: 0.
    - shared_ffn_hidden_size: Elements of the MLP for all tokens after its activation. 0 (default): there is none.
    - init_std: Standard deviations of the initial weights: of first and last products, and of the router. Defaults: 0.023.
    - output_init_std
    - router_init_std
    - seed: Seed of the initial weights.
    - expert_parallel_size: Ranks that share the experts: 1 (default): none; 0: those of NVTEX_GRID_EP; or the number of these. Each has `num_experts` divided by their number, and tokens of its own.
    - capacity_factor: An expert takes at most `ceil(capacity_factor * top_k * T / num_experts)` choices, computed in double, of the T tokens of all ranks that share the experts: with 1 as many as if all experts had the same number. Choices beyond are dropped. 0 (default): none is.
    - tensor_parallel_size: Ranks that divide each expert and the shared MLP, as they divide an MLP (`NVTEXParallelConfig`): 1 (default): none; 0: those of NVTEX_GRID_TP; or the number of these. They have the same tokens, or, in a layer of a Transformer with `mlp.parallel.sequence_parallel`, parts of them; each has the router.
    """

    _config = _abi.NVTEXMoeConfig
    _init = "nvtex_moe_config_init"
    _create = "nvtex_moe_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        hidden_size: int | None = None,
        ffn_hidden_size: int | None = None,
        num_experts: int | None = None,
        top_k: int | None = None,
        dtype: DType | None = None,
        router_dtype: DType | None = None,
        activation: ActivationType | None = None,
        clamp_limit: float | None = None,
        clamp_alpha: float | None = None,
        clamp_offset: float | None = None,
        bias: bool | None = None,
        score: MoeScore | None = None,
        num_groups: int | None = None,
        group_top_k: int | None = None,
        expert_bias: bool | None = None,
        scaling_factor: float | None = None,
        balance_coefficient: float | None = None,
        z_coefficient: float | None = None,
        shared_ffn_hidden_size: int | None = None,
        init_std: float | None = None,
        output_init_std: float | None = None,
        router_init_std: float | None = None,
        seed: int | None = None,
        expert_parallel_size: int | None = None,
        capacity_factor: float | None = None,
        tensor_parallel_size: int | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "hidden_size": hidden_size,
            "ffn_hidden_size": ffn_hidden_size,
            "num_experts": num_experts,
            "top_k": top_k,
            "dtype": dtype,
            "router_dtype": router_dtype,
            "activation": activation,
            "clamp_limit": clamp_limit,
            "clamp_alpha": clamp_alpha,
            "clamp_offset": clamp_offset,
            "bias": bias,
            "score": score,
            "num_groups": num_groups,
            "group_top_k": group_top_k,
            "expert_bias": expert_bias,
            "scaling_factor": scaling_factor,
            "balance_coefficient": balance_coefficient,
            "z_coefficient": z_coefficient,
            "shared_ffn_hidden_size": shared_ffn_hidden_size,
            "init_std": init_std,
            "output_init_std": output_init_std,
            "router_init_std": router_init_std,
            "seed": seed,
            "expert_parallel_size": expert_parallel_size,
            "capacity_factor": capacity_factor,
            "tensor_parallel_size": tensor_parallel_size,
        })


class Embedding(Module):
    """
    Creates an embedding: `y = scale * weight[token]`, plus `position_weight[position]` if there are positions.

    Inputs: tokens `[..., s]`, and, if the module has positions, those of the tokens; Int32 or Int64, both the same.
    Without the second input (null) a token's position is its place in the last dimension. Output:
    `[..., s, hidden_size]`. Tokens that are not in the vocabulary, and positions that are not in the table, have rows
    of zeros and no gradient.

    Parameters: `weight` `[vocabulary_size, hidden_size]`, `position_weight` `[max_positions, hidden_size]`. Their
    gradients are sums in a fixed order.

    Over several ranks tokens are those of all of them. The output is whole, or has the rows of this rank if ranks share
    rows (`sequence_parallel`): an equal share of the first dimension.

    Errors: a last dimension of more than `max_positions` tokens without positions.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - vocabulary_size: Tokens that there are: rows of the weight.
    - hidden_size
    - max_positions: Rows of a learned table of positions. 0 (default): there is none.
    - scale: Factor of the rows of tokens. Default: 1.
    - dtype: Float32 (default), Float16 or BFloat16, of parameters and outputs.
    - init_std: Standard deviations of the initial tables of tokens and of positions. Defaults: 0.023.
    - position_init_std
    - seed: Seed of the initial tables.
    """

    _config = _abi.NVTEXEmbeddingConfig
    _init = "nvtex_embedding_config_init"
    _create = "nvtex_embedding_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        vocabulary_size: int | None = None,
        hidden_size: int | None = None,
        max_positions: int | None = None,
        scale: float | None = None,
        dtype: DType | None = None,
        init_std: float | None = None,
        position_init_std: float | None = None,
        seed: int | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "vocabulary_size": vocabulary_size,
            "hidden_size": hidden_size,
            "max_positions": max_positions,
            "scale": scale,
            "dtype": dtype,
            "init_std": init_std,
            "position_init_std": position_init_std,
            "seed": seed,
        })


class LMHead(Module):
    """
    Creates the head of a language model: logits `x W^T`, and their mean cross entropy against targets, as
    `nvtex_linear_cross_entropy` computes it without ever having all logits in memory. It stays in high precision
    whatever the recipe is.

    Inputs: hidden states `[..., hidden_size]`; targets, Int32 or Int64, one for each row; and a factor of the loss
    for its gradients, Float32 `[1]` on the device (null: 1), such as that of loss scaling. Outputs, each of which may
    be null: the mean loss `[1]` without the factor, the losses of the rows, both Float32, and all logits
    `[..., vocabulary_size]`. Without targets there are only logits.

    Passes: a forward pass with a tape computes all gradients, since the logits exist only then. It writes that of the
    weight to where it is bound, or adds it; one that is set to zeros is so before the forward pass, and a tape that
    is used twice adds nothing. The backward pass takes no gradient of its outputs; it gives that of the hidden states.
    Where the weight is that of an embedding, the embedding's backward pass adds to what this module has written.

    Over several ranks the hidden states are whole, or have the rows of this rank if ranks share rows
    (`sequence_parallel`); targets and losses are those of all rows on each rank, and logits are
    `[all rows, vocabulary_size / ranks]`.

    Parameters: `weight` `[vocabulary_size, hidden_size]`; none if it is an embedding's, which lists it.

    Arguments that are None have the library's defaults:

    - name: Name, unique in its context; for null or an empty one a name is made up.
    - vocabulary_size: Rows of the weight.
    - hidden_size
    - tied_to: An embedding of the same context whose weight is this module's, too; then sizes and dtype are those of the embedding, and `vocabulary_size` and `hidden_size` are 0 or the same. Null (default): the module has a weight of its own.
    - dtype: Float32 (default), Float16 or BFloat16, of the parameter and the hidden states.
    - init_std: Standard deviation of the initial weight. Default: 0.023.
    - seed: Seed of the initial weight.
    - ignored_target: The target of tokens that do not count. Default: -100.
    - label_smoothing: The part of a target's weight that is spread over the whole vocabulary, 0 to 1. Default: 0.
    - z_loss: Factor of the square of the logsumexp, which is added to the loss. Default: 0.
    - workspace_limit: Bytes that logits may take at a time. 0 (default): 500 MB. Over several ranks each has all of its own logits in memory.
    """

    _config = _abi.NVTEXLMHeadConfig
    _init = "nvtex_lm_head_config_init"
    _create = "nvtex_lm_head_create"

    def __init__(
        self,
        context: Context,
        *,
        name: str | None = None,
        vocabulary_size: int | None = None,
        hidden_size: int | None = None,
        tied_to: Module | None = None,
        dtype: DType | None = None,
        init_std: float | None = None,
        seed: int | None = None,
        ignored_target: int | None = None,
        label_smoothing: float | None = None,
        z_loss: float | None = None,
        workspace_limit: int | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "name": name,
            "vocabulary_size": vocabulary_size,
            "hidden_size": hidden_size,
            "tied_to": tied_to,
            "dtype": dtype,
            "init_std": init_std,
            "seed": seed,
            "ignored_target": ignored_target,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "workspace_limit": workspace_limit,
        })


class LanguageModel(Module):
    """
    Creates a language model: what `nvtex_embedding_create`, `nvtex_transformer_layer_create`, `nvtex_norm_create` and
    `nvtex_lm_head_create` make, in a row as `nvtex_sequential_create` puts them.

    Inputs: tokens, positions (null without `max_positions`, or for places in the last dimension), targets, factor of
    the loss. Outputs: the mean loss, losses of rows, logits; each may be null.

    Parameters: `0.weight`, `0.position_weight`, those of layer i behind `<i + 1>.`, those of the norm behind
    `<num_layers + 1>.`, and without `tied_embeddings` the weight of the head behind `<num_layers + 2>.`.

    Errors: those of the parts.

    Arguments that are None have the library's defaults:

    - vocabulary_size
    - max_positions: Rows of a learned table of positions. 0 (default): there is none, for steps with `rotary_frequencies`.
    - num_layers
    - layer: Each of the layers. Its sizes, dtype, norm, seed, deviations and ranks are those of the whole model: seeds of the parts follow from it and differ, and the deviation of what is added to residuals (`output_init_std`, also of `experts`) is divided by `sqrt(2 num_layers)`. It is no decoder, and has no name. Default of `qkv_format` here: NVTE_BSHD, for tokens `[batch, length]`.
    - tied_embeddings: The head has the weight of the embedding. Default: true.
    - workspace_limit: Bytes that logits may take at a time, as of NVTEXLMHeadConfig.
    """

    _config = _abi.NVTEXLanguageModelConfig
    _init = "nvtex_language_model_config_init"
    _create = "nvtex_language_model_create"

    def __init__(
        self,
        context: Context,
        *,
        vocabulary_size: int | None = None,
        max_positions: int | None = None,
        num_layers: int | None = None,
        layer: TransformerLayerConfig | None = None,
        tied_embeddings: bool | None = None,
        workspace_limit: int | None = None,
        stream: Stream = None,
    ) -> None:
        self._make(context, stream, {
            "vocabulary_size": vocabulary_size,
            "max_positions": max_positions,
            "num_layers": num_layers,
            "layer": layer,
            "tied_embeddings": tied_embeddings,
            "workspace_limit": workspace_limit,
        })


__all__ = ["Norm", "Linear", "LayerNormLinear", "GroupedLinear", "LayerNormMLP", "Attention", "MultiheadAttention", "TransformerLayer", "Moe", "Embedding", "LMHead", "LanguageModel"]
