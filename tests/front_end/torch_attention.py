"""Cases of attention: layouts, masks, windows, biases, caches, FP8, and the layers built on it."""

from collections import OrderedDict

from torch_common import *

from harness import case
from transformer_engine.pytorch.attention.dot_product_attention import softmax as softmaxes
from transformer_engine.pytorch.attention.rope import (
    RotaryPositionEmbedding,
    apply_fused_qkv_rotary_pos_emb,
    apply_rotary_pos_emb,
)

FUSED = {"NVTE_UNFUSED_ATTN": "0", "NVTE_FLASH_ATTN": "0"}
UNFUSED = {"NVTE_FUSED_ATTN": "0", "NVTE_FLASH_ATTN": "0"}
DETERMINISTIC = dict(FUSED, NVTE_ALLOW_NONDETERMINISTIC_ALGO="0")
PACKINGS = ("separate", "qkv-3", "qkv-2", "kv-3", "kv-2")


def cumulative(lengths):
    return torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32, device="cuda")


def leaf(packing, shape, heads, groups, width, value_width, dtype, kv_shape=None):
    """The leaves of the inputs in a packing, and the keywords that pass them. Shapes come
    without heads and width."""
    kv_shape = kv_shape or shape
    if packing == "separate":
        leaves = [
            randn(*shape, heads, width, dtype=dtype),
            randn(*kv_shape, groups, width, dtype=dtype),
            randn(*kv_shape, groups, value_width, dtype=dtype),
        ]
        return leaves, dict(query_layer=leaves[0], key_layer=leaves[1], value_layer=leaves[2])
    dim = int(packing[-2:])
    if packing.startswith("qkv"):
        packed = (
            randn(*shape, 3, heads, width, dtype=dtype)
            if dim == -3
            else randn(*shape, heads, 3, width, dtype=dtype)
        )
        return [packed], dict(qkv_layer=packed, qkv_interleave_dim=dim)
    query = randn(*shape, heads, width, dtype=dtype)
    packed = (
        randn(*kv_shape, 2, groups, width, dtype=dtype)
        if dim == -3
        else randn(*kv_shape, groups, 2, width, dtype=dtype)
    )
    return [query, packed], dict(query_layer=query, kv_layer=packed, qkv_interleave_dim=dim)


def attend(
    form="bshd",
    packing="separate",
    heads=4,
    groups=None,
    width=64,
    value_width=None,
    lengths=(96, 128),
    kv_lengths=None,
    padded=False,
    mask="causal",
    window=None,
    bias=None,
    dropout=0.0,
    dtype="bf16",
    rec=None,
    steps=1,
    training=True,
    gaps=0,
    softmax="vanilla",
    max_logit=False,
    slopes=False,
    bias_shape="1hss",
    bias_gradient=True,
    arbitrary=None,
    **more,
):
    """One attention, forward and backward. Only rows that belong to a sequence are compared: the
    others are undefined."""
    groups, value_width, kv_lengths = groups or heads, value_width or width, kv_lengths or lengths
    batch, longest, kv_longest = len(lengths), max(lengths), max(kv_lengths)
    ragged = form == "thd" or "padding" in mask
    module = (
        te.DotProductAttention(
            heads,
            width if width == value_width else (width, value_width),
            num_gqa_groups=groups,
            attention_dropout=dropout,
            qkv_format=form,
            attn_mask_type=mask,
            window_size=window,
            softmax_type=softmax,
            return_max_logit=max_logit,
            layer_number=1,
            attention_type="self" if lengths == kv_lengths else "cross",
        )
        .cuda()
        .train(training)
    )
    if softmax == "learnable":
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter))
    for _ in range(steps):
        module.zero_grad(set_to_none=True)
        keywords = dict(more)
        if form == "thd":
            gap = [gaps] * batch
            starts, kv_starts = np.add(lengths, gap), np.add(kv_lengths, gap)
            shape, kv_shape = (int(starts.sum()),), (int(kv_starts.sum()),)
            valid = torch.cat(
                [torch.arange(length + gaps, device="cuda") < length for length in lengths]
            )
            kv_valid = torch.cat(
                [torch.arange(length + gaps, device="cuda") < length for length in kv_lengths]
            )
            if gaps:
                keywords.update(
                    cu_seqlens_q_padded=cumulative(starts),
                    cu_seqlens_kv_padded=cumulative(kv_starts),
                    pad_between_seqs=True,
                )
        else:
            order = (lambda s: (batch, s)) if form == "bshd" else (lambda s: (s, batch))
            shape, kv_shape = order(longest), order(kv_longest)
            valid = (
                torch.arange(longest, device="cuda")[None]
                < torch.tensor(lengths, device="cuda")[:, None]
            )
            kv_valid = (
                torch.arange(kv_longest, device="cuda")[None]
                < torch.tensor(kv_lengths, device="cuda")[:, None]
            )
            if "padding" not in mask:
                valid, kv_valid = torch.ones_like(valid), torch.ones_like(kv_valid)
            if form == "sbhd":
                valid, kv_valid = valid.t(), kv_valid.t()
        leaves, passed = leaf(packing, shape, heads, groups, width, value_width, dtype, kv_shape)
        if ragged:
            keywords.update(
                cu_seqlens_q=cumulative(lengths),
                cu_seqlens_kv=cumulative(kv_lengths),
                max_seqlen_q=longest,
                max_seqlen_kv=kv_longest,
            )
        if bias == "alibi":
            keywords["core_attention_bias_type"] = "alibi"
            if slopes:
                keywords["alibi_slopes"] = torch.rand(heads, device="cuda")
        elif bias:
            sizes = {
                "1hss": (1, heads),
                "bhss": (batch, heads),
                "11ss": (1, 1),
                "b1ss": (batch, 1),
            }[bias_shape]
            added = randn(*sizes, longest, kv_longest, dtype=dtype, grad=bias_gradient)
            keywords.update(core_attention_bias_type=bias, core_attention_bias=added)
            leaves = leaves + [added]
        if arbitrary is not None:
            keywords["attention_mask"] = (
                torch.rand(*arbitrary, longest, kv_longest, device="cuda") < 0.3
            )
        with autocast(rec), torch.set_grad_enabled(training):
            outputs = module(**passed, **keywords)
        first = tensors_of(outputs)[0]
        rows = valid.reshape(*valid.shape, *[1] * (first.dim() - valid.dim()))
        if training:
            torch.autograd.backward([first], [torch.randn_like(first) * rows])
    named = results(module, [torch.where(rows, first, 0)] + tensors_of(outputs)[1:], [])
    for i, one in enumerate(leaves):
        if one.grad is not None:
            which = (
                valid if i == 0 and one.dim() == valid.dim() + 2 and packing != "qkv" else kv_valid
            )
            is_bias = bias not in (None, "alibi") and i == len(leaves) - 1
            named[f"d.leaf{i}"] = (
                one.grad
                if is_bias
                else torch.where(
                    which.reshape(*which.shape, *[1] * (one.dim() - which.dim())), one.grad, 0
                )
            )
    return named


MASKS = (
    "no_mask",
    "causal",
    "causal_bottom_right",
    "padding",
    "padding_causal",
    "padding_causal_bottom_right",
)


@case(
    "attention",
    environment=FUSED,
    form=("sbhd", "bshd"),
    packing=PACKINGS,
    mask=MASKS,
    dtype=("bf16", "fp16"),
    when=lambda p: p.dtype == "bf16" or p.mask in ("causal", "padding"),
)
def layouts(p):
    return attend(p.form, p.packing, mask=p.mask, dtype=p.dtype)


@case(
    "attention",
    environment=FUSED,
    packing=PACKINGS,
    mask=("padding", "padding_causal", "padding_causal_bottom_right"),
    gaps=(0, 8),
    dtype=("bf16", "fp16"),
)
def packed_sequences(p):
    return attend("thd", p.packing, mask=p.mask, gaps=p.gaps, lengths=(64, 17, 128), dtype=p.dtype)


@case(
    "attention",
    environment=FUSED,
    form=("sbhd", "bshd", "thd"),
    groups=(1, 2, 4, 8),
    width=(32, 64, 128),
    mask=("causal", "padding_causal"),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def grouped_queries(p):
    return attend(p.form, heads=8, groups=p.groups, width=p.width, mask=p.mask)


@case(
    "attention",
    environment=FUSED,
    form=("sbhd", "bshd", "thd"),
    width=((8, 8), (80, 80), (96, 96), (192, 128), (128, 64), (256, 256), (64, 128), (192, 192)),
    mask=("no_mask", "causal", "padding_causal"),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def widths(p):
    return attend(p.form, heads=2, width=p.width[0], value_width=p.width[1], mask=p.mask)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd", "thd"),
    lengths=((1, 1), (7, 3), (128, 128), (200, 333), (512, 511), (1024, 900)),
    mask=("no_mask", "causal", "padding", "padding_causal"),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def lengths(p):
    return attend(p.form, lengths=p.lengths, mask=p.mask)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "thd"),
    kv_lengths=((256, 192), (64, 33), (1024, 640)),
    mask=MASKS,
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def cross(p):
    return attend(p.form, lengths=(64, 48), kv_lengths=p.kv_lengths, mask=p.mask)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd", "thd"),
    window=((16, 0), (64, 0), (0, 0), (16, 16), (-1, 0)),
    mask=(
        "causal",
        "causal_bottom_right",
        "no_mask",
        "padding_causal",
        "padding_causal_bottom_right",
        "padding",
    ),
    when=lambda p: (p.form != "thd" or "padding" in p.mask)
    and (p.window[1] == 0) == ("causal" in p.mask),
)
def windows(p):
    return attend(p.form, lengths=(192, 256), window=p.window, mask=p.mask)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd"),
    mask=("no_mask", "causal", "padding"),
    shape=("1hss", "bhss", "11ss", "b1ss"),
    gradient=(True, False),
)
def added_bias(p):
    return attend(
        p.form,
        mask=p.mask,
        bias="post_scale_bias",
        bias_shape=p.shape,
        bias_gradient=p.gradient,
        lengths=(128, 128),
    )


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd", "thd"),
    mask=("causal", "padding_causal", "causal_bottom_right"),
    slopes=(False, True),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def linear_bias(p):
    return attend(p.form, mask=p.mask, bias="alibi", slopes=p.slopes)


@case(
    "attention",
    environment=FUSED,
    compare="statistics",
    form=("bshd", "sbhd", "thd"),
    mask=("no_mask", "causal", "padding_causal"),
    dropout=(0.1, 0.5),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def with_dropout(p):
    return attend(p.form, heads=8, lengths=(512, 512), mask=p.mask, dropout=p.dropout)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd", "thd"),
    softmax=("off-by-one", "learnable"),
    mask=("causal", "no_mask", "padding_causal"),
    window=(None, (32, 0)),
    when=lambda p: (p.form != "thd" or "padding" in p.mask)
    and (p.window is None or "causal" in p.mask),
)
def sinks(p):
    return attend(p.form, softmax=p.softmax, mask=p.mask, window=p.window)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd", "thd"),
    mask=("causal", "padding_causal"),
    width=(64, 128),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def largest_logit(p):
    return attend(p.form, mask=p.mask, width=p.width, max_logit=True)


@case(
    "attention",
    environment=FUSED,
    form=("bshd", "sbhd", "thd"),
    mask=MASKS,
    training=(False,),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def inference(p):
    return attend(p.form, mask=p.mask, training=p.training)


@case(
    "attention",
    environment=DETERMINISTIC,
    form=("bshd", "sbhd", "thd"),
    mask=("no_mask", "causal", "padding_causal"),
    groups=(4, 2),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def deterministic(p):
    return attend(p.form, mask=p.mask, groups=p.groups, lengths=(512, 300))


@case(
    "attention",
    form=("bshd",),
    mask=MASKS + ("arbitrary",),
    dtype=("bf16", "fp32"),
    groups=(4, 2),
    environment=UNFUSED,
)
def without_fusion(p):
    return attend(
        p.form,
        mask=p.mask,
        dtype=p.dtype,
        groups=p.groups,
        lengths=(128, 128),
        arbitrary=(2, 1) if p.mask == "arbitrary" else None,
    )


@case(
    "attention_fp8",
    environment=FUSED,
    form=("sbhd", "bshd", "thd"),
    packing=PACKINGS,
    mask=("no_mask", "causal", "padding", "padding_causal"),
    when=lambda p: p.form != "thd" or "padding" in p.mask,
)
def layouts(p):
    return attend(
        p.form,
        p.packing,
        width=128,
        mask=p.mask,
        lengths=(128, 256),
        rec=recipe("delayed_dpa"),
        steps=3,
    )


@case(
    "attention_fp8",
    environment=FUSED,
    form=("sbhd", "bshd"),
    groups=(2, 8),
    width=(64, 128),
    mask=("no_mask", "causal"),
    dtype=("bf16", "fp16"),
)
def sizes(p):
    return attend(
        p.form,
        heads=8,
        groups=p.groups,
        width=p.width,
        mask=p.mask,
        lengths=(512, 512),
        dtype=p.dtype,
        rec=recipe("delayed_dpa"),
        steps=3,
    )


@case("attention_fp8", environment=FUSED, training=(False,), mask=("no_mask", "causal", "padding"))
def inference(p):
    return attend(
        "bshd", width=128, mask=p.mask, training=p.training, rec=recipe("delayed_dpa"), steps=3
    )


@case("attention_fp8", environment=FUSED, option=("dropout", "cross", "fp8_output"))
def options(p):
    extra = {
        "dropout": dict(dropout=0.1),
        "cross": dict(kv_lengths=(256, 256)),
        "fp8_output": dict(fp8_output=True),
    }[p.option]
    found = attend(
        "bshd",
        width=128,
        mask="no_mask",
        lengths=(128, 128),
        rec=recipe("delayed_dpa"),
        steps=2,
        training=p.option != "fp8_output",
        **extra,
    )
    if p.option == "dropout":
        return {
            name: (value.float().norm() > 0).reshape(1).float()
            for name, value in found.items()
            if name.startswith(("out", "d."))
        }
    return found


@case(
    "attention_layers",
    recipe=RECIPES + ("delayed_dpa", "delayed_mha"),
    form=("sbhd", "bshd", "thd"),
    fused=(True, False),
    norm=(True, False),
    groups=(4, 2),
    when=lambda p: p.norm or p.groups == 4,
)
def multihead(p):
    module = vary(
        te.MultiheadAttention(
            256,
            4,
            attention_dropout=0.0,
            num_gqa_groups=p.groups,
            fuse_qkv_params=p.fused,
            input_layernorm=p.norm,
            qkv_format=p.form,
            attn_mask_type="padding_causal" if p.form == "thd" else "causal",
            params_dtype=torch.bfloat16,
        )
    )
    shape = {"sbhd": (128, 2, 256), "bshd": (2, 128, 256), "thd": (256, 256)}[p.form]
    extra = (
        dict(
            cu_seqlens_q=cumulative((96, 160)),
            cu_seqlens_kv=cumulative((96, 160)),
            max_seqlen_q=160,
            max_seqlen_kv=160,
        )
        if p.form == "thd"
        else {}
    )
    # The softmax does not depend on the bias of the keys: its gradient is rounding noise.
    return train(module, lambda: [randn(*shape)], recipe(p.recipe), skip=("key_bias",), **extra)


@case(
    "attention_layers",
    recipe=("none", "delayed", "current"),
    option=(
        "cross",
        "rope",
        "rope_interleaved",
        "qk_l2",
        "qk_rms",
        "qk_layernorm_before_rope",
        "not_interleaved",
        "padding",
        "window",
        "sink",
        "return_bias",
        "alibi",
    ),
)
def multihead_options(p):
    extra, call = {}, {}
    if p.option.startswith("rope") or p.option.endswith("rope"):
        call["rotary_pos_emb"] = RotaryPositionEmbedding(
            64, interleaved=p.option == "rope_interleaved"
        )(128).cuda()
        extra["rotary_pos_interleaved"] = p.option == "rope_interleaved"
    extra.update(
        {
            "cross": dict(attention_type="cross", attn_mask_type="no_mask"),
            "qk_l2": dict(qk_norm_type="L2Normalization"),
            "qk_rms": dict(qk_norm_type="RMSNorm"),
            "qk_layernorm_before_rope": dict(qk_norm_type="LayerNorm", qk_norm_before_rope=True),
            "not_interleaved": dict(qkv_weight_interleaved=False),
            "padding": dict(attn_mask_type="padding"),
            "window": dict(window_size=(32, 0)),
            "sink": dict(softmax_type="learnable"),
            "return_bias": dict(return_bias=True),
        }.get(p.option, {})
    )
    if p.option == "cross":
        call["encoder_output"] = randn(192, 2, 256)
    if p.option == "alibi":
        call["core_attention_bias_type"] = "alibi"
    if p.option == "padding":
        call["attention_mask"] = (
            torch.arange(128, device="cuda")[None]
            >= torch.tensor([128, 75], device="cuda")[:, None]
        )[:, None, None]
    module = vary(
        te.MultiheadAttention(
            256,
            4,
            attention_dropout=0.0,
            fuse_qkv_params=True,
            params_dtype=torch.bfloat16,
            **extra,
        )
    )
    return train(module, lambda: [randn(128, 2, 256)], recipe(p.recipe), skip=("key_bias",), **call)


@case(
    "attention_layers",
    recipe=RECIPES + ("delayed_dpa", "delayed_mha"),
    dtype=("bf16", "fp16"),
    kind=("gpt", "llama", "parallel", "post_norm", "output_norm", "decoder", "no_mask"),
)
def transformer(p):
    extra = {
        "gpt": {},
        "llama": dict(num_gqa_groups=2, normalization="RMSNorm", activation="swiglu", bias=False),
        "parallel": dict(parallel_attention_mlp=True),
        "post_norm": dict(apply_residual_connection_post_layernorm=True),
        "output_norm": dict(output_layernorm=True),
        "decoder": dict(layer_type="decoder"),
        "no_mask": dict(self_attn_mask_type="no_mask"),
    }[p.kind]
    module = vary(
        te.TransformerLayer(
            256,
            768,
            4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            fuse_qkv_params=True,
            params_dtype=DTYPES[p.dtype],
            **extra,
        )
    )
    call = {"encoder_output": randn(64, 2, 256, dtype=p.dtype)} if p.kind == "decoder" else {}
    if p.kind == "llama":
        call["rotary_pos_emb"] = RotaryPositionEmbedding(64)(128).cuda()
    return train(module, lambda: [randn(128, 2, 256, dtype=p.dtype)], recipe(p.recipe), **call)


@case("attention_layers", recipe=("none",), dtype=("fp32",), kind=("gpt",))
def transformer_fp32(p):
    module = vary(
        te.TransformerLayer(
            256, 768, 4, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=DTYPES[p.dtype]
        )
    )
    return train(
        module, lambda: [randn(128, 2, 256, dtype=p.dtype)], recipe(p.recipe), skip=("key_bias",)
    )


@case(
    "attention_layers", compare="statistics", recipe=("none", "delayed", "current"), dropout=(0.1,)
)
def transformer_dropout(p):
    module = te.TransformerLayer(
        256,
        768,
        4,
        hidden_dropout=p.dropout,
        attention_dropout=p.dropout,
        fuse_qkv_params=True,
        params_dtype=torch.bfloat16,
    )
    found = train(module, lambda: [randn(256, 4, 256)], recipe(p.recipe))
    return {name: value for name, value in found.items() if name in ("out0", "d.input0")}


def cache_run(
    form,
    paged,
    width=64,
    groups=4,
    heads=4,
    layers=1,
    dtype="bf16",
    rec=None,
    mask="padding_causal",
    page=16,
):
    """Prefill and three decoding steps of a changing batch: sequences end, new ones come."""
    most, longest, context = 4, 128, 64
    params = te.InferenceParams(
        most,
        longest,
        num_heads_kv=groups,
        head_dim_k=width,
        dtype=DTYPES[dtype],
        is_paged=paged,
        max_ctx_len=context,
        qkv_format=form,
        **(dict(page_size=page, total_num_pages=most * longest // page) if paged else {}),
    )
    modules = [
        te.DotProductAttention(
            heads,
            width,
            num_gqa_groups=groups,
            qkv_format=form,
            attn_mask_type=mask,
            layer_number=n + 1,
        )
        .cuda()
        .eval()
        for n in range(layers)
    ]
    for n in range(layers):
        params.allocate_memory(n + 1)
    held, named = {}, {}
    script = [{0: 17, 1: 33, 2: 5}, {0: 1, 1: 1, 2: 1}, {0: 1, 2: 1, 3: 20}, {0: 1, 2: 1, 3: 1}]
    for step, lengths in enumerate(script):
        held = {one: held.get(one, 0) + new for one, new in lengths.items()}
        params.pre_step(OrderedDict(lengths))
        new, longest_new, batch = list(lengths.values()), context, len(lengths)
        valid = (
            torch.arange(longest_new, device="cuda")[None]
            < torch.tensor(new, device="cuda")[:, None]
        )
        if form == "thd":
            shape, valid = (sum(new),), torch.ones(sum(new), dtype=torch.bool, device="cuda")
        else:
            shape = (batch, longest_new) if form == "bshd" else (longest_new, batch)
            valid = valid if form == "bshd" else valid.t()
        starts = torch.zeros(most + 1, dtype=torch.int32, device="cuda")
        starts[: batch + 1] = cumulative(new)
        starts[batch + 1 :] = starts[batch]
        kv_starts = torch.zeros(most + 1, dtype=torch.int32, device="cuda")
        kv_starts[: batch + 1] = cumulative([held[one] for one in lengths])
        kv_starts[batch + 1 :] = kv_starts[batch]
        for n, module in enumerate(modules):
            q, k, v = (
                randn(*shape, heads, width, dtype=dtype, grad=False),
                randn(*shape, groups, width, dtype=dtype, grad=False),
                randn(*shape, groups, width, dtype=dtype, grad=False),
            )
            with torch.no_grad(), autocast(rec):
                y = module(
                    q,
                    k,
                    v,
                    cu_seqlens_q=starts,
                    cu_seqlens_kv=kv_starts,
                    max_seqlen_q=longest_new,
                    max_seqlen_kv=longest,
                    attn_mask_type=mask,
                    inference_params=params,
                )
            named[f"out{step}.{n}"] = torch.where(
                valid.reshape(*valid.shape, *[1] * (y.dim() - valid.dim())), y, 0
            )
    return named


@case(
    "caches",
    form=("bshd", "sbhd", "thd"),
    paged=(False, True),
    dtype=("bf16", "fp16"),
    groups=(4, 2),
    width=(64, 128),
    environment=FUSED,
)
def fused(p):
    return cache_run(p.form, p.paged, p.width, p.groups, dtype=p.dtype)


@case(
    "caches",
    form=("bshd", "sbhd", "thd"),
    paged=(False, True),
    page=(16, 64),
    layers=(2,),
    environment=FUSED,
)
def layers(p):
    return cache_run(p.form, p.paged, layers=p.layers, page=p.page)


@case("caches", form=("bshd", "sbhd", "thd"), paged=(False, True), environment=UNFUSED)
def unfused(p):
    return cache_run(p.form, p.paged)


@case("caches", form=("bshd", "sbhd"), paged=(False, True), recipe=("none", "delayed", "current"))
def generation(p):
    """A stack of layers reads a prompt and then single tokens."""
    layers = [
        te.TransformerLayer(
            256,
            512,
            4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            layer_number=n + 1,
            attn_input_format=p.form,
            self_attn_mask_type="padding_causal",
            params_dtype=torch.bfloat16,
        ).eval()
        for n in range(2)
    ]
    batch, prompt = 8, 16
    params = te.InferenceParams(
        batch,
        64,
        num_heads_kv=4,
        head_dim_k=64,
        dtype=torch.bfloat16,
        is_paged=p.paged,
        max_ctx_len=prompt,
        qkv_format=p.form,
        **(dict(page_size=16, total_num_pages=batch * 4) if p.paged else {}),
    )
    rope, named, held = RotaryPositionEmbedding(64)(64).cuda(), {}, 0
    for step, new in enumerate((prompt, 1, 1)):
        held += new
        params.pre_step(OrderedDict((one, new) for one in range(batch)))
        x = randn(*((batch, new) if p.form == "bshd" else (new, batch)), 256, grad=False)
        starts = cumulative([new] * batch)
        with torch.no_grad(), autocast(recipe(p.recipe)):
            for layer in layers:
                x = layer(
                    x,
                    self_attn_mask_type="padding_causal",
                    inference_params=params,
                    rotary_pos_emb=rope,
                    cu_seqlens_q=starts,
                    cu_seqlens_kv=cumulative([held] * batch),
                    max_seqlen_q=new,
                    max_seqlen_kv=64,
                )
        named[f"out{step}"] = x
    return named


@case(
    "rope",
    form=("sbhd", "bshd"),
    dtype=("bf16", "fp16", "fp32"),
    interleaved=(False, True),
    fused=(False, True),
    percent=(1.0, 0.5),
    starts=(False, True),
)
def apply(p):
    freqs = RotaryPositionEmbedding(64, rotary_percent=p.percent, interleaved=p.interleaved)(
        160
    ).cuda()
    x = randn(*((96, 3) if p.form == "sbhd" else (3, 96)), 4, 64, dtype=p.dtype)
    start = torch.tensor([0, 5, 33], dtype=torch.int32, device="cuda") if p.starts else None
    y = apply_rotary_pos_emb(
        x,
        freqs,
        tensor_format=p.form,
        interleaved=p.interleaved,
        fused=p.fused,
        start_positions=start,
    )
    backward(y)
    return results(None, y, [x])


@case("rope", dtype=("bf16", "fp32"), interleaved=(False, True), starts=(False, True), ranks=(1, 2))
def packed_sequences(p):
    freqs = RotaryPositionEmbedding(64, interleaved=p.interleaved)(256).cuda()
    lengths = (32, 8, 64)
    x = randn(sum(lengths) // p.ranks, 4, 64, dtype=p.dtype)
    start = torch.tensor([0, 5, 33], dtype=torch.int32, device="cuda") if p.starts else None
    y = apply_rotary_pos_emb(
        x,
        freqs,
        tensor_format="thd",
        interleaved=p.interleaved,
        fused=True,
        cu_seqlens=cumulative(lengths),
        start_positions=start,
        cp_size=p.ranks,
        cp_rank=p.ranks - 1,
    )
    backward(y)
    return results(None, y, [x])


@case(
    "rope", form=("sbhd", "bshd"), dtype=("bf16", "fp32"), interleaved=(False, True), groups=(4, 2)
)
def of_joined_qkv(p):
    q_freqs, k_freqs = (
        RotaryPositionEmbedding(64, interleaved=p.interleaved)(96).cuda() for _ in range(2)
    )
    split = [4 // p.groups * 64, 64, 64]
    qkv = randn(*((96, 3) if p.form == "sbhd" else (3, 96)), p.groups, sum(split), dtype=p.dtype)
    found = apply_fused_qkv_rotary_pos_emb(
        qkv, q_freqs, k_freqs, split, tensor_format=p.form, interleaved=p.interleaved
    )
    backward(found)
    return results(None, found, [qkv])


@case("rope", form=("sbhd", "bshd"), strided=(True,))
def of_views(p):
    freqs = RotaryPositionEmbedding(64)(96).cuda()
    base = randn(*((96, 3) if p.form == "sbhd" else (3, 96)), 4, 3, 64)
    y = apply_rotary_pos_emb(base[..., 1, :], freqs, tensor_format=p.form, fused=True)
    backward(y)
    return results(None, y, [base])


@case(
    "softmax",
    dtype=("bf16", "fp16"),
    mask=("no_mask", "causal", "causal_bottom_right", "padding", "arbitrary"),
    size=((32, 32), (128, 256), (64, 64), (256, 1024), (40, 24)),
    scale=(None, 0.125),
    when=lambda p: p.mask != "causal" or p.size[0] == p.size[1],
)
def fused(p):
    module = softmaxes.FusedScaleMaskSoftmax(
        lambda scores, mask: scores.masked_fill(mask, -10000.0)
    )
    x = randn(2, 4, *p.size, dtype=p.dtype)
    mask = None
    if p.mask in ("padding", "arbitrary"):
        mask = torch.rand(2, 1, *p.size, device="cuda") < 0.3
    y = module(x, mask, p.mask, p.scale)
    backward(y)
    return results(None, y, [x])


@case(
    "softmax",
    dtype=("bf16", "fp16"),
    kind=("scaled", "masked", "upper_triangle", "aligned_causal"),
    size=(16, 64, 200, 1024, 4096),
)
def kernels(p):
    x = (
        randn(4, 32, p.size, dtype=p.dtype)
        if p.kind == "upper_triangle"
        else randn(2, 2, 32, p.size, dtype=p.dtype)
    )
    if p.kind == "upper_triangle":
        x = randn(4, min(p.size, 1024), min(p.size, 1024), dtype=p.dtype)
        y = softmaxes.scaled_upper_triang_masked_softmax_forward(x, 0.5)
    elif p.kind == "scaled":
        y = softmaxes.scaled_softmax_forward(x, 0.5)
    elif p.kind == "masked":
        y = softmaxes.scaled_masked_softmax_forward(
            x, torch.rand(2, 1, 32, p.size, device="cuda") < 0.4, 0.5
        )
    else:
        y = softmaxes.scaled_aligned_causal_masked_softmax_forward(x, 0.5)
    backward(y)
    return results(None, y, [x])
