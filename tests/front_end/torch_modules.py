"""Cases of the modules: linear layers, norms, multi-layer perceptrons, grouped layers, in every
recipe and type."""

from torch_common import *

from harness import case

ACTIVATIONS = (
    "gelu",
    "geglu",
    "glu",
    "qgelu",
    "qgeglu",
    "relu",
    "reglu",
    "srelu",
    "sreglu",
    "silu",
    "swiglu",
    "clamped_swiglu",
)


def fits(p):
    """FP8 wants a number of tokens that 8 divides; FP8 layers take the 16-bit types and FP32
    alike."""
    return p.recipe == "none" or p.tokens % 16 == 0


@case(
    "linear",
    when=fits,
    recipe=RECIPES,
    dtype=("bf16", "fp16", "fp32"),
    tokens=(0, 1, 16, 17, 48, 400),
    bias=(True, False),
    size=((128, 192), (528, 272)),
)
def step(p):
    module = vary(te.Linear(*p.size, bias=p.bias, params_dtype=DTYPES[p.dtype]))
    return train(module, lambda: [randn(p.tokens, p.size[0], dtype=p.dtype)], recipe(p.recipe))


@case(
    "linear",
    recipe=(
        "delayed_recent",
        "delayed_e4m3",
        "current_e4m3",
        "current_dequantized",
        "current_high",
        "block_high",
        "custom_delayed",
        "custom_current",
        "custom_block",
    ),
    dtype=("bf16", "fp16"),
    tokens=(16, 272),
)
def variants_of_recipes(p):
    module = vary(te.Linear(256, 384, params_dtype=DTYPES[p.dtype]))
    return train(module, lambda: [randn(p.tokens, 256, dtype=p.dtype)], recipe(p.recipe), steps=4)


@case("linear", recipe=RECIPES, tokens=(8, 24, 40), size=((64, 48), (1040, 80)))
def small_sizes(p):
    module = vary(te.Linear(*p.size, params_dtype=torch.bfloat16))
    return train(module, lambda: [randn(p.tokens, p.size[0])], recipe(p.recipe))


@case(
    "linear",
    recipe=RECIPES,
    option=(
        "return_bias",
        "parameters_split",
        "save_original_input",
        "three_dimensions",
        "strided",
        "no_input_gradient",
        "frozen_weight",
        "mixed_types",
    ),
)
def options(p):
    extra = {
        "return_bias": dict(return_bias=True),
        "parameters_split": dict(parameters_split={"q_": 64, "k_": 128}),
        "save_original_input": dict(save_original_input=True),
    }.get(p.option, {})
    if p.option == "save_original_input" and p.recipe == "delayed":
        raise Skip("the front end does not offer it with delayed scaling")
    module = vary(
        te.Linear(
            160,
            192,
            params_dtype=torch.float32 if p.option == "mixed_types" else torch.bfloat16,
            **extra,
        )
    )
    if p.option == "frozen_weight":
        module.weight.requires_grad_(False)
    if p.option == "three_dimensions":
        inputs = lambda: [randn(12, 4, 160)]
    elif p.option == "strided":
        inputs = lambda: [randn(160, 48, grad=False).t().requires_grad_()]
    elif p.option == "no_input_gradient":
        inputs = lambda: [randn(48, 160, grad=False)]
    else:
        inputs = lambda: [randn(48, 160)]
    if p.option == "mixed_types":
        with torch.autocast("cuda", torch.bfloat16):
            return train(module, inputs, recipe(p.recipe))
    return train(module, inputs, recipe(p.recipe))


@case(
    "linear",
    recipe=RECIPES,
    module=("Linear", "LayerNormLinear", "LayerNormMLP"),
    fused_accumulation=(False, True),
)
def microbatches(p):
    """Weights are quantized for the first of three microbatches and used again for the others;
    gradients accumulate."""
    if p.module == "LayerNormMLP":
        module = te.LayerNormMLP(
            128, 256, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=p.fused_accumulation
        )
    else:
        module = getattr(te, p.module)(
            128, 256, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=p.fused_accumulation
        )
    vary(module)
    if p.fused_accumulation:
        for parameter in (one for one in module.parameters() if one.dim() == 2):
            parameter.main_grad = torch.zeros(parameter.shape, device="cuda")
    rec = recipe(p.recipe)
    for micro in range(3):
        x = randn(64, 128)
        with autocast(rec):
            y = module(x, is_first_microbatch=micro == 0)
        backward(y)
    return results(module, y, [x])


@case("linear", recipe=RECIPES, module=("Linear", "LayerNormLinear", "LayerNormMLP"))
def delayed_weight_gradient(p):
    size = (128, 256)
    module = vary(
        getattr(te, p.module)(*size, params_dtype=torch.bfloat16, delay_wgrad_compute=True)
    )
    rec, x = recipe(p.recipe), randn(64, 128)
    with autocast(rec):
        y = module(x)
    backward(y)
    module.backward_dw()
    return results(module, y, [x])


@case(
    "linear",
    recipe=RECIPES,
    dtype=("bf16", "fp16"),
    module=("Linear", "LayerNormLinear", "LayerNormMLP"),
    tokens=(16, 80),
)
def inference(p):
    module = vary(getattr(te, p.module)(256, 320, params_dtype=DTYPES[p.dtype])).eval()
    return train(
        module,
        lambda: [randn(p.tokens, 256, dtype=p.dtype, grad=False)],
        recipe(p.recipe),
        grad=False,
    )


@case("linear", recipe=FP8, module=("Linear", "LayerNormLinear"))
def fp8_between_layers(p):
    """The first layer's output and the second layer's gradient stay in FP8."""
    if p.recipe != "delayed":
        raise Skip("outputs in FP8 belong to delayed scaling")
    first, second = vary(te.Linear(128, 256, params_dtype=torch.bfloat16)), vary(
        te.Linear(256, 128, params_dtype=torch.bfloat16)
    )
    rec = recipe(p.recipe)
    for _ in range(3):
        x = randn(64, 128)
        with autocast(rec):
            y = second(first(x, fp8_output=True), fp8_grad=True)
        backward(y)
    return results(torch.nn.Sequential(first, second), y, [x])


@case("linear", recipe=RECIPES, large=((1024, 2048, 4096), (4096, 1024, 1024)))
def large(p):
    tokens, rows, columns = p.large
    module = vary(te.Linear(rows, columns, params_dtype=torch.bfloat16))
    return train(module, lambda: [randn(tokens, rows)], recipe(p.recipe))


@case(
    "layernorm_linear",
    recipe=RECIPES,
    dtype=("bf16", "fp16", "fp32"),
    norm=("LayerNorm", "RMSNorm"),
    zero_centered=(False, True),
    tokens=(16, 80),
    hidden=(128, 336),
)
def step(p):
    module = vary(
        te.LayerNormLinear(
            p.hidden,
            192,
            normalization=p.norm,
            zero_centered_gamma=p.zero_centered,
            params_dtype=DTYPES[p.dtype],
        )
    )
    return train(module, lambda: [randn(p.tokens, p.hidden, dtype=p.dtype)], recipe(p.recipe))


@case(
    "layernorm_linear",
    recipe=RECIPES,
    norm=("LayerNorm", "RMSNorm"),
    option=("return_layernorm_output", "no_bias", "split", "odd_tokens"),
)
def options(p):
    if p.option == "odd_tokens" and p.recipe != "none":
        raise Skip("FP8 wants a number of tokens that 8 divides")
    extra = {
        "return_layernorm_output": dict(return_layernorm_output=True),
        "no_bias": dict(bias=False),
        "split": dict(parameters_split=("query", "key", "value")),
    }.get(p.option, {})
    module = vary(
        te.LayerNormLinear(256, 384, normalization=p.norm, params_dtype=torch.bfloat16, **extra)
    )
    return train(
        module, lambda: [randn(37 if p.option == "odd_tokens" else 48, 256)], recipe(p.recipe)
    )


def activation_parameters(name):
    return dict(activation_params=dict(limit=5.0, alpha=1.5)) if name == "clamped_swiglu" else {}


@case(
    "layernorm_mlp",
    recipe=RECIPES,
    dtype=("bf16",),
    activation=ACTIVATIONS,
    norm=("LayerNorm", "RMSNorm"),
    bias=(True, False),
)
@case(
    "layernorm_mlp",
    recipe=("none", "delayed"),
    dtype=("fp16", "fp32"),
    activation=ACTIVATIONS,
    norm=("LayerNorm",),
    bias=(True,),
)
def step(p):
    module = vary(
        te.LayerNormMLP(
            128,
            320,
            normalization=p.norm,
            activation=p.activation,
            bias=p.bias,
            params_dtype=DTYPES[p.dtype],
            **activation_parameters(p.activation),
        )
    )
    return train(module, lambda: [randn(80, 128, dtype=p.dtype)], recipe(p.recipe))


@case(
    "layernorm_mlp",
    recipe=RECIPES,
    activation=("gelu", "swiglu"),
    option=("checkpoint", "return_layernorm_output", "return_bias", "large"),
)
def options(p):
    extra = {
        "checkpoint": dict(checkpoint=True),
        "return_layernorm_output": dict(return_layernorm_output=True),
        "return_bias": dict(return_bias=True),
    }.get(p.option, {})
    sizes = (1024, 4096) if p.option == "large" else (256, 512)
    module = vary(
        te.LayerNormMLP(*sizes, activation=p.activation, params_dtype=torch.bfloat16, **extra)
    )
    return train(module, lambda: [randn(64, sizes[0])], recipe(p.recipe))


@case(
    "norms",
    norm=("LayerNorm", "RMSNorm"),
    dtype=("bf16", "fp16", "fp32"),
    zero_centered=(False, True),
    hidden=(1, 8, 17, 64, 128, 768, 1000, 1024, 2304, 4096, 8192, 12288, 30000),
)
def step(p):
    module = vary(
        getattr(te, p.norm)(p.hidden, dtype=DTYPES[p.dtype], zero_centered_gamma=p.zero_centered)
    )
    return train(module, lambda: [randn(37, p.hidden, dtype=p.dtype)])


@case(
    "norms",
    norm=("LayerNorm", "RMSNorm"),
    rows=(0, 1, 2, 129, 4100),
    hidden=(96, 1024),
    sm_margin=(0, 16),
)
def rows(p):
    module = vary(getattr(te, p.norm)(p.hidden, dtype=torch.bfloat16, sm_margin=p.sm_margin))
    return train(module, lambda: [randn(p.rows, p.hidden)])


@case("norms", norm=("LayerNorm", "RMSNorm"), shape=((3, 5, 64), (64, 32)), eps=(1e-5, 1e-2))
def shapes(p):
    inner = p.shape[-1] if len(p.shape) == 3 else (2, 32)
    module = vary(getattr(te, p.norm)(inner, eps=p.eps, dtype=torch.float32))
    outer = p.shape if len(p.shape) == 3 else (7, 2, 32)
    return train(module, lambda: [randn(*outer, dtype="fp32")])


SPLITS = {
    "even": (32, 32, 32, 32),
    "uneven": (16, 80, 48, 112),
    "empty": (0, 64, 0, 32),
    "one": (128,),
}


def grouped_inputs(splits, where, width, dtype):
    tokens = sum(splits)
    return lambda: [
        randn(tokens, width, dtype=dtype),
        torch.tensor(splits, dtype=torch.int64, device=where),
    ]


@case(
    "grouped_linear",
    recipe=RECIPES,
    dtype=("bf16", "fp16"),
    splits=tuple(SPLITS),
    bias=(True, False),
    where=("cpu", "cuda"),
    path=("discrete", "grouped"),
    when=lambda p: p.path == "discrete" or p.where == "cuda",
)
@case(
    "grouped_linear",
    recipe=("none",),
    dtype=("fp32",),
    splits=tuple(SPLITS),
    bias=(True, False),
    where=("cpu",),
    path=("discrete",),
)
def step(p):
    splits = SPLITS[p.splits]
    module = vary(
        te.GroupedLinear(
            len(splits),
            128,
            192,
            bias=p.bias,
            params_dtype=DTYPES[p.dtype],
            use_grouped_tensor=p.path == "grouped",
        )
    )
    return train(module, grouped_inputs(splits, p.where, 128, p.dtype), recipe(p.recipe))


@case("grouped_linear", recipe=("none",), dtype=("bf16",), odd=(True,))
def odd_splits(p):
    module = vary(
        te.GroupedLinear(4, 128, 192, params_dtype=DTYPES[p.dtype], use_grouped_tensor=False)
    )
    return train(module, grouped_inputs((7, 0, 33, 1), "cpu", 128, p.dtype), recipe(p.recipe))


@case("grouped_linear", recipe=RECIPES, fused_accumulation=(True, False), late=(True, False))
def microbatches(p):
    splits = SPLITS["uneven"]
    module = vary(
        te.GroupedLinear(
            4,
            128,
            256,
            params_dtype=torch.bfloat16,
            fuse_wgrad_accumulation=p.fused_accumulation,
            delay_wgrad_compute=p.late,
            use_grouped_tensor=False,
        )
    )
    if p.fused_accumulation:
        for parameter in (one for one in module.parameters() if one.dim() == 2):
            parameter.main_grad = torch.zeros(parameter.shape, device="cuda")
    rec = recipe(p.recipe)
    for micro in range(3):
        inputs = grouped_inputs(splits, "cpu", 128, "bf16")()
        with autocast(rec):
            y = module(*inputs, is_first_microbatch=micro == 0)
        backward(y)
        if p.late:
            module.backward_dw()
    return results(module, y, inputs)


@case("grouped_linear", recipe=RECIPES, splits=((3, 29, 0, 17), (1, 1, 1, 1), (100, 5, 64, 31)))
def padding(p):
    """Pads every group to what FP8 wants, multiplies, and removes the padding."""
    pad, unpad = te.Fp8Padding(4), te.Fp8Unpadding(4)
    module = vary(
        te.GroupedLinear(
            4, 128, 192, bias=False, params_dtype=torch.bfloat16, use_grouped_tensor=False
        )
    )
    rec = recipe(p.recipe)
    for _ in range(3):
        x = randn(sum(p.splits), 128)
        with autocast(rec):
            padded, sizes = pad(x, list(p.splits))
            y = unpad(module(padded, torch.tensor(sizes, dtype=torch.int64)), list(p.splits))
        backward(y)
    return results(module, y, [x])


@case("grouped_linear", recipe=RECIPES, splits=tuple(SPLITS))
def buffers_of_the_caller(p):
    splits = SPLITS[p.splits]
    module = vary(
        te.GroupedLinear(
            len(splits), 128, 192, bias=False, params_dtype=torch.bfloat16, use_grouped_tensor=False
        )
    )
    out, dgrad = torch.zeros(sum(splits), 192, dtype=torch.bfloat16, device="cuda"), torch.zeros(
        sum(splits), 128, dtype=torch.bfloat16, device="cuda"
    )
    return train(
        module,
        grouped_inputs(splits, "cpu", 128, "bf16"),
        recipe(p.recipe),
        steps=1,
        out=out.detach(),
        dgrad_out=dgrad.detach(),
    )


@case(
    "grouped_linear",
    environment={"NVTE_GROUPED_LINEAR_SINGLE_PARAM": "1"},
    recipe=RECIPES,
    splits=tuple(SPLITS),
    bias=(True, False),
)
def single_parameter(p):
    """All weights in one parameter, and sizes on the device."""
    splits = SPLITS[p.splits]
    module = te.GroupedLinear(
        len(splits),
        128,
        192,
        bias=p.bias,
        params_dtype=torch.bfloat16,
        single_grouped_weight=True,
        use_grouped_tensor=True,
    )
    return train(module, grouped_inputs(splits, "cuda", 128, "bf16"), recipe(p.recipe))


def build(name, **extra):
    """A small module of every kind and a function that makes its inputs."""
    common = dict(params_dtype=torch.bfloat16, **extra)
    if name == "Linear":
        return vary(te.Linear(256, 256, **common)), lambda: [randn(64, 256)]
    if name == "LayerNormLinear":
        return vary(te.LayerNormLinear(256, 256, **common)), lambda: [randn(64, 256)]
    if name == "LayerNormMLP":
        return vary(te.LayerNormMLP(256, 512, **common)), lambda: [randn(64, 256)]
    if name == "LayerNormMLP_swiglu":
        return vary(
            te.LayerNormMLP(
                256, 512, activation="swiglu", normalization="RMSNorm", bias=False, **common
            )
        ), lambda: [randn(64, 256)]
    if name == "MultiheadAttention":
        return vary(
            te.MultiheadAttention(
                256, 4, attention_dropout=0.0, input_layernorm=True, fuse_qkv_params=True, **common
            )
        ), lambda: [randn(32, 2, 256)]
    if name == "TransformerLayer":
        return vary(
            te.TransformerLayer(
                256,
                512,
                4,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                fuse_qkv_params=True,
                **common,
            )
        ), lambda: [randn(32, 2, 256)]
    if name == "TransformerLayer_llama":
        return vary(
            te.TransformerLayer(
                256,
                512,
                4,
                num_gqa_groups=2,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                fuse_qkv_params=True,
                normalization="RMSNorm",
                activation="swiglu",
                bias=False,
                **common,
            )
        ), lambda: [randn(32, 2, 256)]
    if name == "GroupedLinear":
        return with_splits(
            vary(te.GroupedLinear(4, 256, 256, **common)), (16, 32, 0, 48)
        ), lambda: [randn(96, 256)]
    raise ValueError(name)


def with_splits(layer, splits):
    """A grouped layer as a module of one argument."""

    class WithSplits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, **keywords):
            return self.layer(x, torch.tensor(splits, dtype=torch.int64), **keywords)

    return WithSplits()


MODULES = (
    "Linear",
    "LayerNormLinear",
    "LayerNormMLP",
    "LayerNormMLP_swiglu",
    "MultiheadAttention",
    "TransformerLayer",
    "TransformerLayer_llama",
    "GroupedLinear",
)
MORE_RECIPES = RECIPES + ("delayed_dpa", "delayed_mha")


def attends(p):
    return not p.recipe.endswith(("_dpa", "_mha")) or p.module.startswith(
        ("Multihead", "Transformer")
    )


@case("recompute", module=MODULES, recipe=MORE_RECIPES, reentrant=(True, False), when=attends)
def equals_plain(p):
    """A step with recomputation gives the bits of the step without."""
    found = []
    for recompute in (False, True):
        torch.manual_seed(7)
        module, inputs = build(p.module)
        rec = recipe(p.recipe)
        for step in range(2):
            module.zero_grad(set_to_none=True)
            torch.manual_seed(100 + step)
            x = inputs()
            with autocast(rec):
                y = (
                    te.checkpoint(module, *x, use_reentrant=p.reentrant)
                    if recompute
                    else module(*x)
                )
            backward(y)
        found.append(results(module, y, x))
    return dict(found[1], **{"recomputed equals plain": same(*found)})


@case("recompute", recipe=("none", "delayed", "current"), dropout=(0.1,))
def of_attention_with_dropout(p):
    found = []
    for recompute in (False, True):
        torch.manual_seed(7)
        layer = te.TransformerLayer(
            256,
            512,
            4,
            hidden_dropout=p.dropout,
            attention_dropout=p.dropout,
            params_dtype=torch.bfloat16,
        )
        x = randn(64, 2, 256)
        with autocast(recipe(p.recipe)):
            y = layer(x, checkpoint_core_attention=recompute)
        torch.manual_seed(8)
        backward(y)
        found.append(results(layer, y, [x]))
    return {"recomputed equals plain": same(*found)}


@case("graphs", module=MODULES, recipe=MORE_RECIPES, cached=(False, True), when=attends)
def equals_eager(p):
    """Captured steps give the bits of eager steps, with weights quantized every time or cached
    over microbatches."""
    if p.cached and p.recipe == "none":
        raise Skip("there is nothing to cache")
    found = []
    for captured in (False, True):
        torch.manual_seed(7)
        module, inputs = build(p.module)
        rec = recipe(p.recipe)
        call = module
        if captured:
            call = te.make_graphed_callables(
                module,
                tuple(inputs()),
                enabled=rec is not None,
                recipe=rec,
                cache_quantized_params=p.cached,
            )
        for step in range(4):
            if step % 2 == 0:
                for parameter in module.parameters():
                    parameter.grad = None
            torch.manual_seed(
                100 + step
            )  # Replays may advance the generator in other strides than eager steps.
            x = inputs()
            extra = {"is_first_microbatch": step % 2 == 0} if p.cached else {}
            with autocast(rec):
                y = call(*x, **extra)
            torch.manual_seed(200 + step)
            backward(y)
        found.append(
            {
                name: value.clone()
                for name, value in results(module, y, x).items()
                if ".amax_history" not in name
            }
        )
    return dict(found[1], **{"captured equals eager": same(*found)})


@case(
    "graphs",
    recipe=("none", "current", "block"),
    capture=("forward", "forward_and_backward"),
    module=MODULES,
)
def of_torch(p):
    """Capture by torch.cuda.graph, replayed on other inputs."""
    module, inputs = build(p.module)
    rec = recipe(p.recipe)
    x = inputs()[0]
    dy = torch.randn_like(x)

    def step():
        with autocast(rec), torch.set_grad_enabled(p.capture != "forward"):
            y = module(x)
        if p.capture != "forward":
            y.backward(dy)
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            x.grad = None
            module.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    x.grad = None
    module.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    captured = {name: value.clone() for name, value in results(module, y, [x]).items()}
    x.grad = None
    module.zero_grad(set_to_none=True)
    eager = results(module, step(), [x])
    return dict(captured, **{"captured equals eager": same(captured, eager)})


@case("graphs", recipe=RECIPES, layers=(3,))
def of_several_layers(p):
    found = []
    for captured in (False, True):
        torch.manual_seed(7)
        layers = [build("TransformerLayer")[0] for _ in range(p.layers)]
        rec = recipe(p.recipe)
        calls = layers
        if captured:
            samples = tuple((randn(32, 2, 256),) for _ in layers)
            calls = te.make_graphed_callables(
                tuple(layers), samples, enabled=rec is not None, recipe=rec
            )
        for step in range(3):
            for layer in layers:
                layer.zero_grad(set_to_none=True)
            torch.manual_seed(100 + step)
            x = randn(32, 2, 256)
            with autocast(rec):
                y = x
                for call in calls:
                    y = call(y)
            torch.manual_seed(200 + step)
            backward(y)
        found.append(
            {
                k: v.clone()
                for k, v in results(torch.nn.ModuleList(layers), y, [x]).items()
                if ".amax_history" not in k
            }
        )
    return dict(found[1], **{"captured equals eager": same(*found)})


@case(
    "compile",
    recipe=("none", "current", "block", "delayed"),
    module=("Linear", "LayerNormLinear", "LayerNormMLP", "TransformerLayer"),
    timeout=150,
    repeat=False,
    when=lambda p: p.module == "Linear" or p.recipe in ("none", "current"),
)
def step(p):
    torch._dynamo.reset()
    module, inputs = build(p.module)
    rec = recipe(p.recipe)

    def call(x):
        with autocast(rec):
            return torch.nn.functional.relu(module(x)) * 2

    compiled = torch.compile(call)
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        x = inputs()
        y = compiled(*x)
        backward(y)
    return results(module, y, x)


@case("compile", recipe=("none", "current"), timeout=150, repeat=False)
def attention(p):
    torch._dynamo.reset()
    module = te.DotProductAttention(4, 64, attn_mask_type="causal", qkv_format="bshd").cuda()
    linear = vary(te.Linear(256, 768, params_dtype=torch.bfloat16))
    rec = recipe(p.recipe)

    def call(x):
        with autocast(rec):
            q, k, v = linear(x).reshape(2, 64, 12, 64).chunk(3, 2)
            return module(q, k, v)

    compiled = torch.compile(call)
    x = randn(2, 64, 256)
    y = compiled(x)
    backward(y)
    return results(linear, y, [x])


@case("quantized_weights", module=MODULES, recipe=FP8, preserve=(False, True))
def step(p):
    rec = recipe(p.recipe)
    with te.quantized_model_init(
        enabled=True, recipe=rec, preserve_high_precision_init_val=p.preserve
    ):
        module, inputs = build(p.module)
    named = train(module, inputs, rec, steps=2)
    for name, parameter in module.named_parameters():
        named[f"w.{name}"] = parameter.detach()
        if p.preserve and hasattr(parameter, "get_high_precision_init_val"):
            named[f"initial.{name}"] = parameter.get_high_precision_init_val()
            parameter.clear_high_precision_init_val()
    return named


@case(
    "quantized_weights",
    module=("Linear", "LayerNormMLP", "TransformerLayer"),
    recipe=FP8,
    master=(True,),
)
def trained_by_fused_adam(p):
    rec = recipe(p.recipe)
    with te.quantized_model_init(enabled=True, recipe=rec):
        module, inputs = build(p.module)
    optimizer = te.optimizers.FusedAdam(
        module.parameters(), lr=1e-2, master_weights=p.master, master_weight_dtype=torch.float32
    )
    for _ in range(3):
        optimizer.zero_grad()
        x = inputs()
        with autocast(rec):
            y = module(*x)
        backward(y)
        optimizer.step()
    named = results(module, y, x)
    named.update({f"w.{name}": parameter.detach() for name, parameter in module.named_parameters()})
    return named


@case("quantized_weights", module=("Linear", "TransformerLayer"), recipe=FP8)
def inference(p):
    rec = recipe(p.recipe)
    with torch.no_grad(), te.quantized_model_init(enabled=True, recipe=rec):
        module, inputs = build(p.module)
    return train(module.eval(), lambda: [t.detach() for t in inputs()], rec, grad=False)


@case("quantized_weights", recipe=("delayed",), old_names=(True,))
def older_names(p):
    with te.fp8_model_init(enabled=True):
        module = te.Linear(128, 128, params_dtype=torch.bfloat16)
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe(p.recipe)):
        x = randn(32, 128)
        y = module(x)
    backward(y)
    return results(module, y, [x])


def checkpoint_file(where, p):
    return os.path.join(where, f"checkpoint-{p.module}-{p.recipe}-{p.quantized}.pt")


def continued(module, p):
    """One more step of a loaded module, from inputs that do not depend on what came before."""
    torch.manual_seed(31)
    _, inputs = build(p.module)
    return train(module, inputs, recipe(p.recipe), steps=1)


CHECKPOINTS = dict(
    module=MODULES,
    recipe=MORE_RECIPES,
    quantized=(False, True),
    when=lambda p: attends(p) and (not p.quantized or p.recipe in FP8),
)


def made_for_checkpoint(p):
    rec = recipe(p.recipe)
    with te.quantized_model_init(enabled=p.quantized, recipe=rec):
        return build(p.module)


@case("checkpoint", **CHECKPOINTS)
def saved_and_loaded(p):
    """Trains, saves, loads into a new module and continues: the continued step equals that of
    the module that went on."""
    module, inputs = made_for_checkpoint(p)
    train(module, inputs, recipe(p.recipe), steps=2)
    torch.save(module.state_dict(), checkpoint_file(folder("checkpoints"), p))
    other, _ = made_for_checkpoint(p)
    other.load_state_dict(torch.load(checkpoint_file(folder("checkpoints"), p), weights_only=False))
    loaded = continued(other, p)
    went_on = continued(module, p)
    same_outputs = {k: v for k, v in loaded.items() if k.startswith("out")}, {
        k: v for k, v in went_on.items() if k.startswith("out")
    }
    return dict(loaded, **{"loaded equals continued": same(*same_outputs)})


@case("exchange", **CHECKPOINTS)
def loaded_from_the_other_core(p):
    import torch_common

    path = checkpoint_file(os.path.join(torch_common.OPTIONS.exchange, "checkpoints"), p)
    if not os.path.exists(path):
        raise Skip("the other core saved no checkpoint of this case")
    module, _ = made_for_checkpoint(p)
    module.load_state_dict(torch.load(path, weights_only=False))
    return continued(module, p)
