"""Scores a core under the other library's JAX front end, as score.py does under PyTorch."""

import contextlib
import functools
import os
import types

import harness

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
harness.without_frameworks()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import transformer_engine.jax as te  # noqa: E402
from flax.core import meta  # noqa: E402
from harness import seed_of  # noqa: E402
from transformer_engine.common import recipe as recipes  # noqa: E402
from transformer_engine.jax import attention as attn  # noqa: E402
from transformer_engine.jax import cpp_extensions as tex  # noqa: E402
from transformer_engine.jax.activation import activation as activate  # noqa: E402
from transformer_engine.jax.dense import dense, grouped_dense  # noqa: E402
from transformer_engine.jax.layernorm import layernorm  # noqa: E402
from transformer_engine.jax.layernorm_dense import layernorm_dense  # noqa: E402
from transformer_engine.jax.layernorm_mlp import layernorm_mlp  # noqa: E402
from transformer_engine.jax.quantize import (
    QuantizeLayout,
    QuantizerFactory,
    ScalingMode,
    noop_quantizer_set,
)  # noqa: E402
from transformer_engine.jax.router import (
    fused_moe_aux_loss,
    fused_topk_with_score_function,
)  # noqa: E402
from transformer_engine.jax.sharding import MeshResource, global_shard_guard  # noqa: E402
from transformer_engine.jax.softmax import SoftmaxFusionType, softmax  # noqa: E402

DTYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "fp32": jnp.float32}
ACTIVATIONS = (
    "gelu",
    "gelu+linear",
    "silu",
    "silu+linear",
    "relu",
    "relu+linear",
    "quick_gelu",
    "quick_gelu+linear",
    "squared_relu",
    "squared_relu+linear",
    "clamped_silu+clamped_linear",
)
KEY = None
# Repeating a whole case would compile it anew, so that the cases repeat their compiled steps.
case = functools.partial(harness.case, repeat=False)


def randn(*shape, dtype="bf16", scale=1.0):
    global KEY
    KEY, key = jax.random.split(KEY)
    return (jax.random.normal(key, shape, jnp.float32) * scale).astype(DTYPES[dtype])


def recipe(name):
    return {
        "none": lambda: None,
        "delayed": lambda: recipes.DelayedScaling(amax_history_len=4),
        "current": recipes.Float8CurrentScaling,
    }[name]()


def quantizers(name, sets=1):
    """Fresh quantizer sets of a recipe; made inside the traced function, since those of delayed
    scaling hold state."""
    if name == "none":
        return noop_quantizer_set if sets == 1 else (noop_quantizer_set,) * sets
    mode = {"delayed": "DELAYED_TENSOR_SCALING", "current": "CURRENT_TENSOR_SCALING"}[name]
    return QuantizerFactory.create_set(
        n_quantizer_sets=sets,
        scaling_mode=getattr(ScalingMode, mode),
        fwd_dtype=jnp.float8_e4m3fn,
        bwd_dtype=jnp.float8_e5m2,
        is_2x2x=True,
    )


def same(first, second):
    """Whether two results hold the same arrays, bit by bit."""
    return all(np.asarray(first[n]).tobytes() == np.asarray(second[n]).tobytes() for n in first)


def differentiated(function, *arguments, cleaned=lambda i, gradient: gradient):
    """The output and the gradients of a random weighted sum of it, computed twice.

    `cleaned` removes what is undefined from the gradient of an input.
    """
    shape = jax.eval_shape(function, *arguments)
    weight = randn(*shape.shape, dtype="fp32")

    def loss(*given):
        out = function(*given)
        return jnp.sum(out.astype(jnp.float32) * weight), out

    which = tuple(range(len(arguments)))
    step = jax.jit(jax.value_and_grad(loss, argnums=which, has_aux=True))
    found = []
    for _ in range(2):
        (_, out), gradients = step(*arguments)
        found.append({f"d.input{i}": cleaned(i, g) for i, g in enumerate(gradients)})
        found[-1]["out"] = out
    return dict(found[0], **{harness.REPEATED: same(*found)})


class Adapter:
    """What the harness needs of JAX."""

    def start(self, options):
        jnp.zeros(1).block_until_ready()

    def run(self, item):
        global KEY
        KEY = jax.random.PRNGKey(seed_of(item.id))
        np.random.seed(seed_of(item.id))
        with global_shard_guard(MeshResource()):
            found = item.function(types.SimpleNamespace(**item.params))
        named = {}
        for name, value in found.items():
            if not isinstance(value, bool):
                value = np.asarray(
                    value.astype(jnp.float32)
                    if jnp.issubdtype(value.dtype, jnp.floating)
                    else value
                )
            named[name] = value
        return named

    def clean(self):
        try:
            return float(jnp.ones(4).sum()) == 4
        except Exception:
            return False


@case(
    "norms",
    kind=("layernorm", "rmsnorm"),
    dtype=("bf16", "fp16", "fp32"),
    hidden=(64, 257, 1024, 8192),
    zero_centered=(False, True),
    recipe=("none",),
    when=lambda p: p.kind == "layernorm" or not p.zero_centered,
)
@case(
    "norms",
    kind=("layernorm", "rmsnorm"),
    dtype=("bf16",),
    hidden=(64, 1024),
    zero_centered=(False,),
    recipe=("delayed", "current"),
)
def norm(p):
    x, gamma, beta = (
        randn(2, 48, p.hidden, dtype=p.dtype),
        randn(p.hidden, dtype=p.dtype),
        randn(p.hidden, dtype=p.dtype),
    )
    beta = None if p.kind == "rmsnorm" else beta

    def function(x, gamma, beta=beta):
        quantizer = None if p.recipe == "none" else quantizers(p.recipe).x
        return layernorm(x, gamma, beta, p.kind, p.zero_centered, 1e-5, quantizer)

    return differentiated(function, *((x, gamma) if beta is None else (x, gamma, beta)))


@case(
    "dense",
    recipe=("none", "delayed", "current"),
    dtype=("bf16", "fp16", "fp32"),
    bias=(True, False),
    size=((64, 128, 192), (16, 1024, 48), (272, 80, 144)),
)
def product(p):
    x, w, b = (
        randn(p.size[0], p.size[1], dtype=p.dtype),
        randn(p.size[1], p.size[2], dtype=p.dtype, scale=0.05),
        randn(p.size[2], dtype=p.dtype),
    )

    def function(x, w, b=None):
        return dense(x, w, b, contracting_dims=((1,), (0,)), quantizer_set=quantizers(p.recipe))

    return differentiated(function, *((x, w, b) if p.bias else (x, w)))


@case("dense", recipe=("none", "delayed", "current"), bias=(True, False))
def three_dimensions(p):
    x, w, b = randn(4, 32, 128), randn(128, 2, 96, scale=0.05), randn(2, 96)

    def function(x, w, b=None):
        return dense(x, w, b, contracting_dims=((2,), (0,)), quantizer_set=quantizers(p.recipe))

    return differentiated(function, *((x, w, b) if p.bias else (x, w)))


@case(
    "dense",
    recipe=("none", "delayed", "current"),
    dtype=("bf16",),
    groups=((32, 64, 16, 16), (0, 96, 32, 0)),
    bias=(True, False),
)
def grouped(p):
    x, w, b = randn(128, 128), randn(4, 128, 192, scale=0.05), randn(4, 192)
    sizes = jnp.array(p.groups, jnp.int32)

    def function(x, w, b=None):
        if p.recipe == "none":
            return grouped_dense(x, w, sizes, bias=b)
        mode = {
            "delayed": ScalingMode.DELAYED_TENSOR_SCALING,
            "current": ScalingMode.CURRENT_TENSOR_SCALING,
        }[p.recipe]
        quantizer_set = QuantizerFactory.create_set(
            scaling_mode=mode,
            fwd_dtype=jnp.float8_e4m3fn,
            bwd_dtype=jnp.float8_e5m2,
            is_2x2x=True,
            n_groups=4,
        )
        return grouped_dense(x, w, sizes, bias=b, quantizer_set=quantizer_set)

    return differentiated(function, *((x, w, b) if p.bias else (x, w)))


@case(
    "dense",
    recipe=("none", "delayed", "current"),
    kind=("layernorm", "rmsnorm"),
    dtype=("bf16", "fp16"),
)
def after_norm(p):
    x, w, gamma, beta, b = (
        randn(64, 128, dtype=p.dtype),
        randn(128, 192, dtype=p.dtype, scale=0.05),
        randn(128, dtype=p.dtype),
        randn(128, dtype=p.dtype),
        randn(192, dtype=p.dtype),
    )

    def function(x, w, gamma, b):
        return layernorm_dense(
            x,
            w,
            gamma,
            beta if p.kind == "layernorm" else None,
            b,
            norm_type=p.kind,
            quantizer_set=quantizers(p.recipe),
        )

    return differentiated(function, x, w, gamma, b)


@case(
    "mlp",
    recipe=("none", "delayed", "current"),
    kind=("layernorm", "rmsnorm"),
    activation=ACTIVATIONS,
    bias=(True, False),
    when=lambda p: p.kind == "rmsnorm" or p.bias,
)
def layernorm_and_mlp(p):
    kinds = tuple(p.activation.split("+"))
    x, gamma = randn(64, 128), randn(128)
    first, second = randn(128, len(kinds), 256, scale=0.05), randn(256, 128, scale=0.05)
    biases = (randn(len(kinds), 256), randn(128)) if p.bias else (None, None)
    beta = randn(128) if p.kind == "layernorm" else None
    extra = dict(activation_params=dict(limit=5.0, alpha=1.5)) if "clamped" in p.activation else {}

    def function(x, gamma, first, second):
        return layernorm_mlp(
            x,
            gamma,
            beta,
            [first, second],
            list(biases),
            p.kind,
            activation_type=kinds,
            quantizer_sets=quantizers(p.recipe, 2),
            **extra,
        )

    return differentiated(function, x, gamma, first, second)


@case("activation", kind=ACTIVATIONS, dtype=("bf16", "fp16", "fp32"), recipe=("none",))
@case("activation", kind=ACTIVATIONS, dtype=("bf16",), recipe=("delayed", "current"))
def function(p):
    kinds = tuple(p.kind.split("+"))
    x = randn(48, len(kinds), 256, dtype=p.dtype)
    params = (
        tex.activation.ActivationParams.create(kinds, limit=5.0, alpha=1.5)
        if "clamped" in p.kind
        else None
    )

    def function(x):
        return activate(x, kinds, None if p.recipe == "none" else quantizers(p.recipe).x, params)

    return differentiated(function, x)


@case(
    "softmax",
    dtype=("bf16", "fp16"),
    kind=("SCALED", "SCALED_MASKED", "SCALED_UPPER_TRIANG_MASKED"),
    size=((64, 64), (128, 256), (1024, 1024)),
    when=lambda p: p.kind != "SCALED_UPPER_TRIANG_MASKED" or p.size[0] == p.size[1],
)
def fused(p):
    x = randn(2, 4, *p.size, dtype=p.dtype)
    mask = (
        jnp.asarray(np.random.rand(2, 1, *p.size) < 0.3, jnp.uint8)
        if p.kind == "SCALED_MASKED"
        else None
    )
    return differentiated(lambda x: softmax(x, mask, 0.5, getattr(SoftmaxFusionType, p.kind)), x)


def logits_of(tokens, experts, dtype):
    order = np.argsort(np.random.rand(tokens, experts), 1)
    return jnp.asarray((order - experts / 2) * (6.0 / experts), DTYPES[dtype])


@case(
    "router",
    score=("softmax", "sigmoid", "sqrtsoftplus"),
    dtype=("bf16", "fp32"),
    experts=((8, 2), (64, 6), (256, 8)),
    aux=(False, True),
    form=("bytemap", "bitmap_u8"),
    # The other library writes scores of float32 into the half as large array that the front end
    # allocates for logits of bfloat16, so that its results are no reference.
    when=lambda p: p.dtype == "fp32" or not p.aux,
)
def topk(p):
    logits = logits_of(129, p.experts[0], p.dtype)
    route = lambda x: fused_topk_with_score_function(
        x, p.experts[1], score_function=p.score, compute_aux_scores=p.aux, routing_map_format=p.form
    )
    return dict(
        differentiated(lambda x: route(x)[0], logits), routes=jax.jit(lambda x: route(x)[1])(logits)
    )


@case(
    "router",
    score=("softmax", "sigmoid"),
    groups=((8, 4), (4, 2)),
    bias=(True, False),
    when=lambda p: p.score != "softmax" or not p.bias,
)
def grouped_topk(p):
    logits = logits_of(129, 64, "fp32")
    bias = jnp.asarray(np.random.rand(64) * 0.01, jnp.float32) if p.bias else None
    return differentiated(
        lambda x: fused_topk_with_score_function(
            x, 8, False, p.groups[0], p.groups[1], 2.5, p.score, bias
        )[0],
        logits,
    )


@case("router", experts=(8, 64), dtype=("bf16", "fp32"))
def aux_loss(p):
    probs = jnp.asarray(np.random.rand(515, p.experts), DTYPES[p.dtype])
    counts = jnp.asarray(np.random.randint(0, 100, p.experts), jnp.int32)
    return differentiated(lambda x: fused_moe_aux_loss(x, counts, 4, 0.01), probs)


@case("others", dtype=("bf16", "fp32"), size=((3, 1000, 7), (2, 65536, 128)))
def topk_of_rows(p):
    x = (
        jnp.asarray(np.argsort(np.random.rand(p.size[0], p.size[1]), 1) % 65521, jnp.float32) / 1024
        if p.dtype == "fp32"
        else randn(*p.size[:2])
    )
    values, _ = jax.jit(lambda x: tex.topk(x, p.size[2]))(x)
    return {"values": jnp.sort(values, axis=-1)}


@case(
    "others",
    kind=("delayed", "current"),
    dtype=("bf16", "fp16", "fp32"),
    fp8=("e4m3fn", "e5m2"),
    layout=("ROWWISE", "ROWWISE_COLWISE"),
    shape=((64, 128), (3, 48, 272)),
)
def quantized(p):
    x = randn(*p.shape, dtype=p.dtype, scale=3.0)
    mode = {
        "delayed": ScalingMode.DELAYED_TENSOR_SCALING,
        "current": ScalingMode.CURRENT_TENSOR_SCALING,
    }[p.kind]

    def function(x):
        quantizer = QuantizerFactory.create(
            scaling_mode=mode,
            q_dtype=getattr(jnp, f"float8_{p.fp8}"),
            q_layout=getattr(QuantizeLayout, p.layout),
        )
        return jax.tree_util.tree_leaves(tex.quantize(x, quantizer))

    return {f"leaf{i}": leaf for i, leaf in enumerate(jax.jit(function)(x)) if leaf.size}


MASKS = (
    "NO_MASK",
    "CAUSAL_MASK",
    "PADDING_MASK",
    "PADDING_CAUSAL_MASK",
    "CAUSAL_BOTTOM_RIGHT_MASK",
    "PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)


def attend(
    layout="BSHD_BSHD_BSHD",
    mask="CAUSAL_MASK",
    heads=4,
    groups=None,
    width=64,
    value_width=None,
    dtype="bf16",
    length=128,
    kv_length=None,
    window=None,
    bias=None,
    dropout=0.0,
    softmax_type="VANILLA_SOFTMAX",
    training=True,
    max_logit=False,
):
    groups, value_width, kv_length, batch = (
        groups or heads,
        value_width or width,
        kv_length or length,
        2,
    )
    packed_sequences = "T" in layout.split("_")[0][:1]
    lengths = np.array([length, length * 5 // 8]) if "PADDING" in mask else np.array([length] * 2)
    kv_lengths = (
        np.array([kv_length, kv_length * 5 // 8])
        if "PADDING" in mask
        else np.array([kv_length] * 2)
    )
    if packed_sequences:  # Every row holds three sequences and padding at its end.
        parts = np.array([length // 4, length // 2, length // 8])
        ids = np.concatenate(
            [np.repeat(np.arange(1, 4), parts), np.zeros(length - parts.sum(), int)]
        )
        positions = np.concatenate(
            [np.arange(n) for n in parts] + [np.zeros(length - parts.sum(), int)]
        )
        ids, positions = (
            jnp.asarray(np.tile(one, (batch, 1)), jnp.int32) for one in (ids, positions)
        )
        descriptor = attn.SequenceDescriptor.from_segment_ids_and_pos(ids, positions)
        valid = kv_valid = ids > 0
        segments = 4
    else:
        descriptor = attn.SequenceDescriptor.from_seqlens(
            (jnp.asarray(lengths, jnp.int32), jnp.asarray(kv_lengths, jnp.int32))
        )
        valid = jnp.arange(length)[None] < lengths[:, None]
        kv_valid = jnp.arange(kv_length)[None] < kv_lengths[:, None]
        segments = 1
    if layout in ("BS3HD", "T3HD"):
        tensors = (randn(batch, length, 3, heads, width, dtype=dtype),)
    elif layout in ("BSHD_BS2HD", "THD_T2HD"):
        tensors = (
            randn(batch, length, heads, width, dtype=dtype),
            randn(batch, kv_length, 2, groups, width, dtype=dtype),
        )
    else:
        tensors = (
            randn(batch, length, heads, width, dtype=dtype),
            randn(batch, kv_length, groups, width, dtype=dtype),
            randn(batch, kv_length, groups, value_width, dtype=dtype),
        )
    added = randn(1, heads, length, kv_length, dtype=dtype) if bias else None
    offset = randn(1, heads, 1, 1, dtype="fp32") if softmax_type == "LEARNABLE_SOFTMAX" else None
    seed = jax.random.split(jax.random.PRNGKey(3), 1) if dropout else None

    def function(*given):
        given = list(given)
        shift = given.pop() if offset is not None else None
        plus = given.pop() if bias else None
        out = attn.fused_attn(
            tuple(given),
            plus,
            descriptor,
            seed,
            attn.AttnBiasType.POST_SCALE_BIAS if bias else attn.AttnBiasType.NO_BIAS,
            getattr(attn.AttnMaskType, mask),
            getattr(attn.QKVLayout, layout),
            getattr(attn.AttnSoftmaxType, softmax_type),
            width**-0.5,
            dropout,
            training,
            segments,
            window,
            softmax_offset=shift,
            return_max_logit=max_logit,
        )
        out, logit = out if max_logit else (out, None)
        out = jnp.where(valid[:, :, None, None], out, 0)
        return (
            jnp.concatenate([out.ravel(), logit.ravel().astype(out.dtype)])
            if max_logit and not training
            else out
        )

    given = tensors + ((added,) if bias else ()) + ((offset,) if offset is not None else ())
    if not training:
        return {"out": jax.jit(function)(*given)}

    def cleaned(i, gradient):
        if i >= len(tensors):
            return gradient
        rows = valid if i == 0 else kv_valid
        return jnp.where(rows.reshape(rows.shape + (1,) * (gradient.ndim - 2)), gradient, 0)

    return differentiated(function, *given, cleaned=cleaned)


@case(
    "attention",
    layout=("BS3HD", "BSHD_BS2HD", "BSHD_BSHD_BSHD"),
    mask=MASKS,
    dtype=("bf16", "fp16"),
    when=lambda p: p.dtype == "bf16" or p.mask == "CAUSAL_MASK",
)
def layouts(p):
    return attend(p.layout, p.mask, dtype=p.dtype)


@case(
    "attention",
    layout=("T3HD", "THD_T2HD", "THD_THD_THD"),
    mask=("PADDING_MASK", "PADDING_CAUSAL_MASK"),
    dtype=("bf16", "fp16"),
)
def packed(p):
    return attend(p.layout, p.mask, dtype=p.dtype)


@case(
    "attention",
    option=(
        "gqa",
        "gqa_packed",
        "cross",
        "window",
        "bias",
        "wide",
        "mla",
        "off_by_one",
        "learnable",
        "long",
    ),
    mask=("NO_MASK", "CAUSAL_MASK", "PADDING_CAUSAL_MASK"),
    when=lambda p: p.option != "window" or "CAUSAL" in p.mask,
)
def options(p):
    extra = {
        "gqa": dict(groups=2),
        "gqa_packed": dict(groups=2, layout="BSHD_BS2HD"),
        "cross": dict(kv_length=256),
        "window": dict(window=(32, 0)),
        "bias": dict(bias=True),
        "wide": dict(width=128),
        "mla": dict(width=128, value_width=64),
        "off_by_one": dict(softmax_type="OFF_BY_ONE_SOFTMAX"),
        "learnable": dict(softmax_type="LEARNABLE_SOFTMAX"),
        "long": dict(length=1024),
    }[p.option]
    return attend(mask=p.mask, **extra)


@case("attention", mask=("NO_MASK", "CAUSAL_MASK", "PADDING_MASK"), max_logit=(False, True))
def inference(p):
    return attend(mask=p.mask, training=False, max_logit=p.max_logit)


@case("attention", compare="statistics", mask=("NO_MASK", "CAUSAL_MASK"), dropout=(0.1,))
def with_dropout(p):
    return attend(mask=p.mask, dropout=p.dropout, length=512, heads=8)


def apply_module(module, x, name, *arguments, steps=2, **keywords):
    """Initializes a flax module and takes steps in which the scaling state moves on."""
    rec = recipe(name)
    with (
        te.autocast(enabled=rec is not None, recipe=rec, mesh_resource=MeshResource())
        if rec is not None
        else contextlib.nullcontext()
    ):
        keys = {"params": jax.random.PRNGKey(1), "dropout": jax.random.PRNGKey(2)}
        init = jax.jit(lambda *given: module.init(*given, **keywords))
        variables = meta.unbox(init(keys, x, *arguments))
        moving = {
            key: value
            for key, value in variables.items()
            if key in ("params", te.NVTE_FP8_COLLECTION_NAME)
        }
        still = {
            key: value
            for key, value in variables.items()
            if key not in moving and "axes" not in key
        }

        def loss(moving, x, weight):
            out = module.apply(
                {**moving, **still},
                x,
                *arguments,
                rngs={"dropout": jax.random.PRNGKey(4)},
                **keywords,
            )
            out = out[0] if isinstance(out, tuple) else out
            return (
                jnp.sum(out.astype(jnp.float32) * weight[tuple(slice(0, n) for n in out.shape)]),
                out,
            )

        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        for _ in range(steps):
            weight = randn(*x.shape[:-1], 1024, dtype="fp32")
            (_, out), (gradients, dx) = step(moving, x, weight)
            (_, again), (_, dx_again) = step(moving, x, weight)
            if te.NVTE_FP8_COLLECTION_NAME in gradients:
                moving = dict(
                    moving, **{te.NVTE_FP8_COLLECTION_NAME: gradients[te.NVTE_FP8_COLLECTION_NAME]}
                )
    named = {"out": out, "d.input0": dx}
    named[harness.REPEATED] = same(named, {"out": again, "d.input0": dx_again})
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        named["d." + jax.tree_util.keystr(path)] = leaf
    return named


@case(
    "flax",
    recipe=("none", "delayed", "current"),
    dtype=("bf16", "fp32"),
    module=(
        "LayerNorm",
        "DenseGeneral",
        "LayerNormDenseGeneral",
        "LayerNormMLP_gelu",
        "LayerNormMLP_swiglu",
    ),
)
def modules(p):
    dtype = DTYPES[p.dtype]
    module = {
        "LayerNorm": lambda: te.flax.LayerNorm(dtype=dtype),
        "DenseGeneral": lambda: te.flax.DenseGeneral(features=192, use_bias=True, dtype=dtype),
        "LayerNormDenseGeneral": lambda: te.flax.LayerNormDenseGeneral(
            features=192, use_bias=True, dtype=dtype
        ),
        "LayerNormMLP_gelu": lambda: te.flax.LayerNormMLP(
            intermediate_dim=256, activations=("gelu",), use_bias=True, dtype=dtype
        ),
        "LayerNormMLP_swiglu": lambda: te.flax.LayerNormMLP(
            intermediate_dim=256,
            activations=("silu", "linear"),
            layernorm_type="rmsnorm",
            dtype=dtype,
        ),
    }[p.module]()
    return apply_module(module, randn(2, 48, 128, dtype=p.dtype), p.recipe)


@case(
    "flax",
    recipe=("none", "delayed", "current"),
    kind=("gpt", "llama", "post_norm", "no_mask", "decoder"),
)
def transformer(p):
    extra = {
        "gpt": dict(use_bias=True),
        "llama": dict(
            num_gqa_groups=2,
            layernorm_type="rmsnorm",
            mlp_activations=("silu", "linear"),
            enable_rotary_pos_emb=True,
        ),
        "post_norm": dict(apply_residual_connection_post_layernorm=True),
        "no_mask": dict(self_attn_mask_type="no_mask"),
        "decoder": dict(layer_type=te.flax.TransformerLayerType.DECODER),
    }[p.kind]
    module = te.flax.TransformerLayer(
        hidden_size=256,
        mlp_hidden_size=512,
        num_attention_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        enable_relative_embedding=False,
        dtype=jnp.bfloat16,
        **extra,
    )
    return apply_module(
        module,
        randn(2, 64, 256),
        p.recipe,
        *((randn(2, 64, 256),) if p.kind == "decoder" else ()),
        deterministic=True,
    )


@case("flax", recipe=("none", "delayed", "current"), option=("plain", "gqa", "rope", "padding"))
def multihead(p):
    extra = {
        "plain": {},
        "gqa": dict(num_gqa_groups=2),
        "rope": dict(enable_rotary_pos_emb=True),
        "padding": dict(attn_mask_type="padding_causal"),
    }[p.option]
    module = te.flax.MultiHeadAttention(
        head_dim=64, num_attention_heads=4, attention_dropout=0.0, dtype=jnp.bfloat16, **extra
    )
    x = randn(2, 64, 256)
    mask = None
    if p.option == "padding":
        alive = jnp.arange(64)[None] < jnp.array([64, 40])[:, None]
        mask = ~(
            alive[:, None, :, None] & alive[:, None, None, :] & jnp.tril(jnp.ones((64, 64), bool))
        )
    return apply_module(module, x, p.recipe, x, mask, deterministic=True)


if __name__ == "__main__":
    harness.main(Adapter())
