"""Cases of experts (routing, permutation), optimizers, fusible operations, quantizers and the
cross entropy."""

from torch_common import *

from harness import case
from transformer_engine.pytorch import ops
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.router import (
    fused_compute_score_for_moe_aux_loss,
    fused_moe_aux_loss,
    fused_topk_with_score_function,
)

SCORES = ("softmax", "sigmoid", "sqrtsoftplus")


def logits_of(tokens, experts, dtype):
    """Logits of which neither single ones nor sums of two are equal, so that the choice of experts
    and of their groups does not depend on the order of equal values."""
    order = torch.rand(tokens, experts, device="cuda").argsort(1).double()
    logits = 3 * torch.sinh((order - experts / 2 + 0.1) / (experts / 2))
    return logits.to(DTYPES[dtype]).requires_grad_()


@case(
    "router",
    dtype=("fp32", "bf16"),
    score=SCORES,
    experts=((8, 2), (64, 6), (128, 8), (256, 8), (60, 4)),
    pre=(True, False),
    scaling=(None, 2.5),
    when=lambda p: p.score == "softmax" or not p.pre,
)
def topk(p):
    logits = logits_of(133, p.experts[0], p.dtype)
    probs, routes = fused_topk_with_score_function(
        logits, p.experts[1], p.pre, None, None, p.scaling, p.score, None
    )
    backward(probs)
    return dict(results(None, probs, [logits]), routes=routes)


@case(
    "router",
    dtype=("fp32", "bf16"),
    score=SCORES,
    groups=((8, 4), (4, 2)),
    bias=(True, False),
    when=lambda p: p.score != "softmax" or not p.bias,
)
def grouped_topk(p):
    logits = logits_of(133, 64, p.dtype)
    bias = torch.rand(64, device="cuda") * 0.01 if p.bias else None
    probs, routes = fused_topk_with_score_function(
        logits, 8, False, p.groups[0], p.groups[1], None, p.score, bias
    )
    backward(probs)
    return dict(results(None, probs, [logits]), routes=routes)


@case("router", form=("bytemap", "bitmap_u8"), experts=(8, 60, 256), score=SCORES)
def map_formats(p):
    logits = logits_of(133, p.experts, "fp32")
    probs, routes = fused_topk_with_score_function(
        logits, 4, False, None, None, None, p.score, None, routing_map_format=p.form
    )
    aux_routes, scores = fused_compute_score_for_moe_aux_loss(
        logits, 4, p.score, routing_map_format=p.form
    )
    backward((probs, scores))
    return dict(results(None, (probs, scores), [logits]), routes=routes, aux_routes=aux_routes)


@case("router", index=("int32", "int64"), score=SCORES)
def dense_indices(p):
    logits = logits_of(133, 64, "fp32")
    indices = torch.empty(133, 6, dtype=getattr(torch, p.index), device="cuda")
    probs, routes = fused_topk_with_score_function(
        logits, 6, False, None, None, None, p.score, None, topk_indices=indices
    )
    backward(probs)
    return dict(results(None, probs, [logits]), routes=routes.sort(1).values)


@case(
    "router",
    mode=("two_kernel", "fused_atomic"),
    bins=(16, 256, 1000),
    experts=(64, 256),
    form=("bytemap", "bitmap_u8"),
)
def histogram(p):
    logits = (torch.randn(301, p.experts, device="cuda") * 2).requires_grad_()
    counts = torch.zeros(p.experts, p.bins, dtype=torch.int32, device="cuda")
    bounds = torch.tensor([-0.2, 1.2], device="cuda")
    bias = torch.rand(p.experts, device="cuda") * 0.01
    for _ in range(2):
        found = fused_topk_with_score_function(
            logits,
            8,
            False,
            None,
            None,
            2.5,
            "sigmoid",
            bias,
            routing_map_format=p.form,
            qb_histogram=counts,
            qb_bin_bounds=bounds,
            qb_histogram_mode=p.mode,
        )
    backward(found[0])
    return dict(results(None, found[0], [logits]), routes=found[1], counts=counts)


@case(
    "router",
    dtype=("fp32", "bf16"),
    counts=("int32", "int64", "float32"),
    experts=(8, 64, 256),
    total=("host", "device"),
)
def aux_loss(p):
    probs = torch.rand(515, p.experts, device="cuda").to(DTYPES[p.dtype]).requires_grad_()
    counts = torch.randint(0, 100, (p.experts,), device="cuda").to(getattr(torch, p.counts))
    total = 515 if p.total == "host" else torch.tensor(515, dtype=torch.int64, device="cuda")
    loss = fused_moe_aux_loss(probs, counts, total, p.experts, 4, 0.01)
    loss.backward()
    return results(None, loss.reshape(1), [probs])


def routes_of(tokens, experts, topk):
    chosen = torch.rand(tokens, experts, device="cuda").topk(topk, 1).indices
    return chosen, torch.zeros(tokens, experts, dtype=torch.int32, device="cuda").scatter_(
        1, chosen, 1
    )


@case(
    "permute",
    dtype=("bf16", "fp16", "fp32"),
    kind=("mask", "index"),
    experts=((8, 1), (8, 2), (64, 6)),
    hidden=(128, 1032),
    probs=(True, False),
)
def there_and_back(p):
    tokens, topk = 257, p.experts[1]
    chosen, mask = routes_of(tokens, *p.experts)
    x = randn(tokens, p.hidden, dtype=p.dtype)
    if p.kind == "mask":
        weights = (torch.rand(tokens, p.experts[0], device="cuda") * mask).requires_grad_()
        y, rows = te.moe_permute(x, mask, tokens * topk, map_type="mask")
    else:
        weights = torch.rand(tokens, topk, device="cuda").requires_grad_()
        y, rows = te.moe_permute(x, chosen.int(), 0, -1, map_type="index")
    back = te.moe_unpermute(
        y * 2,
        rows,
        merging_probs=weights if p.probs else None,
        restore_shape=x.shape,
        map_type=p.kind,
    )
    backward(back)
    return results(None, (y, back), [x, weights])


@case("permute", dtype=("bf16", "fp32"), experts=((8, 2), (64, 6)))
def with_probabilities(p):
    tokens, topk = 257, p.experts[1]
    _, mask = routes_of(tokens, *p.experts)
    x, probs = (
        randn(tokens, 256, dtype=p.dtype),
        (torch.rand(tokens, p.experts[0], device="cuda") * mask).requires_grad_(),
    )
    y, permuted, rows = te.moe_permute_with_probs(x, probs, mask, tokens * topk)
    back = te.moe_unpermute(y * permuted[:, None].to(y.dtype), rows, restore_shape=x.shape)
    backward(back)
    return results(None, (y, permuted, back), [x, probs])


@case(
    "permute",
    dtype=("bf16", "fp32"),
    experts=((8, 2), (64, 6)),
    align=(16, 32, 128),
    where=("cpu", "cuda"),
)
def padded(p):
    tokens = 257
    _, mask = routes_of(tokens, *p.experts)
    x, probs = (
        randn(tokens, 256, dtype=p.dtype),
        (torch.rand(tokens, p.experts[0], device="cuda") * mask).requires_grad_(),
    )
    y, permuted, rows, offsets, counts = te.moe_permute_and_pad_with_probs(
        x, probs, mask, mask.sum(0).to(p.where), p.align
    )
    back = te.moe_unpermute(
        y, rows, merging_probs=probs, restore_shape=x.shape, pad_offsets=offsets
    )
    backward(back)
    return dict(results(None, back, [x, probs]), counts=counts)


@case("permute", dtype=("bf16", "fp32"), probs=(True, False), chunks=(8, 64))
def sorted_chunks(p):
    sizes = torch.randint(0, 40, (p.chunks,), device="cuda", dtype=torch.int32)
    order = torch.randperm(p.chunks, device="cuda", dtype=torch.int32)
    tokens = int(sizes.sum())
    x, probs = randn(tokens, 264, dtype=p.dtype), torch.rand(tokens, device="cuda").requires_grad_()
    if p.probs:
        y = te.moe_sort_chunks_by_index_with_probs(x, probs, sizes, order)
    else:
        y = te.moe_sort_chunks_by_index(x, sizes, order)
    backward(y)
    return results(None, y, [x, probs])


@case("permute", recipe=FP8, kind=("mask", "index"))
def of_fp8(p):
    if p.recipe == "delayed":
        quantizer = te.Float8Quantizer(
            torch.full((1,), 4.0, device="cuda"),
            torch.zeros(1, device="cuda"),
            DType.kFloat8E4M3,
            columnwise=False,
        )
    elif p.recipe == "current":
        quantizer = te.Float8CurrentScalingQuantizer(
            DType.kFloat8E4M3, torch.device("cuda"), columnwise=False
        )
    else:
        quantizer = te.Float8BlockQuantizer(
            DType.kFloat8E4M3, rowwise=True, columnwise=False, block_scaling_dim=1
        )
    chosen, mask = routes_of(256, 8, 2)
    x = quantizer(randn(256, 512, grad=False))
    y, rows = te.moe_permute(x, mask if p.kind == "mask" else chosen.int(), 512, map_type=p.kind)
    return {"out": y}


@case(
    "cross_entropy",
    dtype=("bf16", "fp32"),
    vocabulary=(128, 1001, 32000),
    smoothing=(0.0, 0.1),
    reduce=(False, True),
    overwrite=(False, True),
)
def loss(p):
    logits = randn(2, 33, p.vocabulary, dtype=p.dtype)
    target = torch.randint(0, p.vocabulary, (2, 33), device="cuda")
    target[0, :5] = -100
    base = logits * 1 if p.overwrite else logits
    found = te.parallel_cross_entropy(
        base, target, p.smoothing, p.reduce, None, -100, overwrite_input=p.overwrite
    )
    backward(found.reshape(-1))
    return results(None, found, [logits])


SHAPES = ((1,), (77,), (33, 65), (1025, 129), (64, 64))


def parameters_of(dtype):
    return [torch.nn.Parameter(randn(*shape, dtype=dtype, grad=False)) for shape in SHAPES]


def optimize(optimizer, params, steps=4, scale=0.1, decoupled=None):
    for _ in range(steps):
        for one in params:
            gradient = torch.randn(one.shape, device="cuda") * scale
            if decoupled:
                one.decoupled_grad = gradient
            else:
                one.grad = gradient.to(one.dtype)
        optimizer.step()
    named = {f"w{i}": one.detach() for i, one in enumerate(params)}
    for i, one in enumerate(params):
        for name, value in optimizer.state[one].items():
            if isinstance(value, torch.Tensor):
                named[f"{name}{i}"] = value
    return named


@case(
    "optimizers",
    dtype=("fp32", "bf16", "fp16"),
    decoupled=(True, False),
    decay=(0.0, 0.1),
    correction=(True, False),
)
def adam(p):
    params = parameters_of(p.dtype)
    return optimize(
        te.optimizers.FusedAdam(
            params,
            lr=1e-2,
            weight_decay=p.decay,
            adam_w_mode=p.decoupled,
            bias_correction=p.correction,
        ),
        params,
    )


@case(
    "optimizers",
    dtype=("bf16", "fp16"),
    capturable=(True, False),
    master=("fp32", "fp16"),
    averages=("fp32", "fp16", "uint8", "bf16"),
)
def adam_with_master_weights(p):
    params = parameters_of(p.dtype)
    kinds = dict(DTYPES, uint8=torch.uint8)
    optimizer = te.optimizers.FusedAdam(
        params,
        lr=1e-2,
        weight_decay=0.1,
        master_weights=True,
        capturable=p.capturable,
        master_weight_dtype=kinds[p.master],
        exp_avg_dtype=kinds[p.averages],
        exp_avg_sq_dtype=kinds[p.averages],
    )
    return optimize(optimizer, params)


@case("optimizers", option=("remainders", "decoupled_grad", "saved", "closure"))
def adam_options(p):
    params = parameters_of("bf16")
    extra = {
        "remainders": dict(store_param_remainders=True),
        "decoupled_grad": dict(use_decoupled_grad=True),
    }.get(p.option, {})
    make = lambda: te.optimizers.FusedAdam(params, lr=1e-2, master_weights=True, **extra)
    optimizer = make()
    found = optimize(optimizer, params, decoupled=p.option == "decoupled_grad")
    if p.option == "saved":
        state = optimizer.state_dict()
        optimizer = make()
        optimizer.load_state_dict(state)
        found = optimize(optimizer, params, steps=1)
    if p.option == "closure":
        optimizer.step(lambda: torch.zeros(1))
    return found


@case("optimizers", captured=(True,), dtype=("bf16", "fp32"))
def adam_in_a_graph(p):
    found = []
    for captured in (False, True):
        torch.manual_seed(5)
        params = parameters_of(p.dtype)
        for one in params:
            one.grad = torch.randn_like(one)
        optimizer = te.optimizers.FusedAdam(
            params, lr=1e-2, capturable=True, master_weights=p.dtype != "fp32"
        )
        optimizer.step()
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            for _ in range(2):
                graph.replay()
        else:
            for _ in range(2):
                optimizer.step()
        found.append({f"w{i}": one.detach().clone() for i, one in enumerate(params)})
    return dict(found[1], **{"captured equals eager": same(*found)})


@case(
    "optimizers",
    dtype=("fp32", "bf16", "fp16"),
    momentum=(0.0, 0.9),
    nesterov=(True, False),
    decay=(0.0, 0.1),
    after=(True, False),
    when=lambda p: p.momentum > 0 or not p.nesterov,
)
def sgd(p):
    params = parameters_of(p.dtype)
    return optimize(
        te.optimizers.FusedSGD(
            params,
            lr=0.1,
            momentum=p.momentum,
            nesterov=p.nesterov,
            weight_decay=p.decay,
            wd_after_momentum=p.after,
        ),
        params,
    )


@case(
    "optimizers",
    source=("fp32", "bf16", "fp16"),
    target=("fp32", "bf16", "fp16"),
    bad=(None, float("inf"), float("nan")),
)
def scaled(p):
    sources = [randn(*shape, dtype=p.source, grad=False) for shape in SHAPES]
    if p.bad is not None:
        sources[3].view(-1)[4097] = p.bad
    targets = [torch.zeros(one.shape, dtype=DTYPES[p.target], device="cuda") for one in sources]
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    te.optimizers.multi_tensor_applier(
        te.optimizers.multi_tensor_scale, flag, [sources, targets], 0.25
    )
    named = {"flag": flag}
    return (
        dict(named, **{f"t{i}": one for i, one in enumerate(targets)}) if p.bad is None else named
    )


@case(
    "optimizers",
    dtype=("fp32", "bf16", "fp16"),
    each=(True, False),
    kind=("l2norm", "unscale_l2norm", "scale_tensor"),
)
def norms(p):
    tensors = [randn(*shape, dtype=p.dtype, grad=False) for shape in SHAPES]
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    factor = torch.full((1,), 0.5, device="cuda")
    if p.kind == "l2norm":
        found = te.optimizers.multi_tensor_applier(
            te.optimizers.multi_tensor_l2norm, flag, [tensors], p.each
        )
    elif p.kind == "unscale_l2norm":
        found = te.optimizers.multi_tensor_applier(
            te.optimizers.multi_tensor_unscale_l2norm, flag, [tensors], factor, p.each
        )
    else:
        targets = [torch.zeros_like(one) for one in tensors]
        te.optimizers.multi_tensor_applier(
            te.optimizers.multi_tensor_scale_tensor, flag, [tensors, targets], factor
        )
        return {f"t{i}": one for i, one in enumerate(targets)}
    return {f"norm{i}": one.reshape(-1) for i, one in enumerate(tensors_of(found)) if one.numel()}


UNARY = ("GELU", "QGELU", "ReLU", "SReLU", "SiLU")
GATED = ("GEGLU", "GLU", "QGEGLU", "ReGLU", "SReGLU", "SwiGLU", "ClampedSwiGLU", "SiTUGLU")


@case(
    "operations",
    name="activation",
    kind=UNARY + GATED,
    dtype=("bf16", "fp16", "fp32"),
    cached=(False,),
)
@case("operations", name="activation", kind=UNARY + GATED, dtype=("bf16",), cached=(True,))
def activation(p):
    module = ops.Sequential(getattr(ops, p.kind)(cache_quantized_input=p.cached))
    return train(
        module,
        lambda: [randn(37 if not p.cached else 48, 256, dtype=p.dtype)],
        recipe("current") if p.cached else None,
    )


@case(
    "operations",
    kind=("ScaledSwiGLU", "ScaledClampedQGeGLU", "ScaledSiTUGLU", "ScaledSReLU", "ScaledTanhSReLU"),
    dtype=("bf16", "fp32"),
    interleave=(None, 32),
    when=lambda p: p.interleave is None or "GLU" in p.kind,
)
def scaled_activation(p):
    extra = (
        {"glu_interleave_size": p.interleave}
        if "GLU" in p.kind
        else {"tanh_clamp_scale": 3.0} if "Tanh" in p.kind else {}
    )
    module = ops.Sequential(getattr(ops, p.kind)(**extra))
    return train(
        module,
        lambda: [
            randn(48, 256, dtype=p.dtype),
            torch.rand(48, device="cuda").to(DTYPES[p.dtype]).requires_grad_(),
        ],
    )


def chain(kind, dtype=torch.bfloat16):
    common = dict(dtype=dtype, device="cuda")
    return {
        "linear": lambda: [ops.Linear(256, 320, **common)],
        "linear_no_bias": lambda: [ops.Linear(256, 320, bias=False, **common)],
        "basic_linear": lambda: [ops.BasicLinear(256, 320, **common)],
        "linear_gelu": lambda: [ops.Linear(256, 320, **common), ops.GELU()],
        "mlp": lambda: [
            ops.LayerNorm(256, **common),
            ops.Linear(256, 512, **common),
            ops.GELU(),
            ops.Linear(512, 256, **common),
        ],
        "gated_mlp": lambda: [
            ops.RMSNorm(256, **common),
            ops.Linear(256, 1024, bias=False, **common),
            ops.SwiGLU(),
            ops.Linear(512, 256, bias=False, **common),
        ],
        "quantized_mlp": lambda: [
            ops.LayerNorm(256, **common),
            ops.Quantize(forward=True),
            ops.Linear(256, 512, **common),
            ops.ReLU(),
            ops.Quantize(forward=True, backward=True),
            ops.Linear(512, 256, **common),
        ],
        "linear_dropout": lambda: [ops.Linear(256, 320, **common), ops.Dropout(0.0)],
        "l2norm": lambda: [ops.L2Normalization()],
        "scale": lambda: [ops.Linear(256, 320, **common), ops.ConstantScale(0.5)],
        "reshape_bias": lambda: [ops.Reshape((-1, 128)), ops.Bias(128, **common)],
        "identity": lambda: [ops.Identity()],
    }[kind]()


CHAINS = (
    "linear",
    "linear_no_bias",
    "basic_linear",
    "linear_gelu",
    "mlp",
    "gated_mlp",
    "quantized_mlp",
    "linear_dropout",
    "l2norm",
    "scale",
    "reshape_bias",
    "identity",
)


@case("operations", kind=CHAINS, recipe=RECIPES, dtype=("bf16", "fp16"))
def sequence(p):
    module = vary(ops.Sequential(*chain(p.kind, DTYPES[p.dtype])))
    return train(module, lambda: [randn(64, 256, dtype=p.dtype)], recipe(p.recipe))


@case("operations", kind=("mlp", "gated_mlp", "quantized_mlp"), recipe=FP8)
def quantized_weights(p):
    rec = recipe(p.recipe)
    with te.quantized_model_init(enabled=True, recipe=rec):
        module = ops.Sequential(*chain(p.kind))
    return train(module, lambda: [randn(64, 256)], rec)


@case("operations", kind=CHAINS, recipe=("none", "current"))
def inference(p):
    return train(
        vary(ops.Sequential(*chain(p.kind))),
        lambda: [randn(64, 256, grad=False)],
        recipe(p.recipe),
        grad=False,
    )


@case("operations", recipe=RECIPES, in_place=(False, True))
def residual(p):
    module = vary(
        ops.Sequential(
            ops.MakeExtraOutput(in_place=False),
            ops.Linear(256, 256, dtype=torch.bfloat16, device="cuda"),
            ops.AddExtraInput(in_place=p.in_place),
        )
    )
    extra = lambda: (randn(64, 256) * 1 if p.in_place else randn(64, 256))
    return train(module, lambda: [randn(64, 256), extra()], recipe(p.recipe))


@case("operations", compare="statistics", dropout=(0.1, 0.5), dtype=("bf16", "fp32"))
def dropout(p):
    return train(ops.Sequential(ops.Dropout(p.dropout)), lambda: [randn(1024, 256, dtype=p.dtype)])


@case("operations", recipe=RECIPES, splits=((32, 64, 0, 32), (32, 32, 32, 32)), bias=(True, False))
def grouped_linear(p):
    module = vary(
        ops.Sequential(
            ops.GroupedLinear(4, 128, 192, bias=p.bias, dtype=torch.bfloat16, device="cuda")
        )
    )
    return train(
        module,
        lambda: [randn(128, 128), torch.tensor(p.splits, dtype=torch.int64, device="cuda")],
        recipe(p.recipe),
    )


@case("operations", recipe=RECIPES, kind=("mlp", "gated_mlp"))
def captured(p):
    found = []
    for captured in (False, True):
        torch.manual_seed(7)
        module = vary(ops.Sequential(*chain(p.kind)))
        rec = recipe(p.recipe)
        call = (
            te.make_graphed_callables(
                module, (randn(64, 256),), enabled=rec is not None, recipe=rec
            )
            if captured
            else module
        )
        for step in range(2):
            module.zero_grad(set_to_none=True)
            torch.manual_seed(100 + step)
            x = randn(64, 256)
            with autocast(rec):
                y = call(x)
            backward(y)
        found.append({name: value.clone() for name, value in results(module, y, [x]).items()})
    return dict(found[1], **{"captured equals eager": same(*found)})


def parts_of(tensor):
    """The stored fields of a quantized tensor: data and scales of both directions."""
    fields = (
        "_data",
        "_transpose",
        "_scale_inv",
        "_rowwise_data",
        "_columnwise_data",
        "_rowwise_scale_inv",
        "_columnwise_scale_inv",
    )
    return {
        name.strip("_"): value
        for name in fields
        if isinstance(value := getattr(tensor, name, None), torch.Tensor)
    }


@case(
    "quantizers",
    dtype=("bf16", "fp16", "fp32"),
    kind=("delayed", "current", "current_pow2", "block1d", "block2d", "block_fp32_scales"),
    fp8=("E4M3", "E5M2"),
    shape=((64, 128), (128, 256), (272, 400), (3, 32, 48), (16, 16)),
    columnwise=(True, False),
)
def cast(p):
    kind = getattr(DType, f"kFloat8{p.fp8}")
    amax = torch.zeros(1, device="cuda")
    if p.kind == "delayed":
        quantizer = te.Float8Quantizer(
            torch.full((1,), 3.0, device="cuda"), amax, kind, columnwise=p.columnwise
        )
    elif p.kind.startswith("current"):
        quantizer = te.Float8CurrentScalingQuantizer(
            kind,
            torch.device("cuda"),
            columnwise=p.columnwise,
            force_pow_2_scales=p.kind.endswith("pow2"),
        )
    else:
        quantizer = te.Float8BlockQuantizer(
            kind,
            rowwise=True,
            columnwise=p.columnwise,
            block_scaling_dim=2 if p.kind == "block2d" else 1,
            force_pow_2_scales=p.kind != "block_fp32_scales",
        )
    x = randn(*p.shape, dtype=p.dtype, grad=False, scale=3.0)
    made = quantizer(x)
    named = {
        "dequantized": made.dequantize().clone(),
        "amax": amax,
        **{k: v.clone() for k, v in parts_of(made).items()},
    }
    if p.kind == "block2d":  # Neither library writes the columns that pad the scales.
        blocks = [-(-size // 128) for size in (x.numel() // x.shape[-1], x.shape[-1])]
        for name, columns in (("rowwise", blocks[1]), ("columnwise", blocks[0])):
            if f"{name}_scale_inv" in named:
                named[f"{name}_scale_inv"] = named[f"{name}_scale_inv"][:, :columns].clone()
    quantizer.update_quantized(x * 0.5, made)
    named["updated"] = made.dequantize().clone()
    return named


@case(
    "quantizers",
    kind=("delayed", "current", "block2d"),
    operation=("view", "copy", "add", "detach_clone", "pickle", "multiply"),
)
def tensor_operations(p):
    if p.kind == "delayed":
        quantizer = te.Float8Quantizer(
            torch.full((1,), 3.0, device="cuda"), torch.zeros(1, device="cuda"), DType.kFloat8E4M3
        )
    elif p.kind == "current":
        quantizer = te.Float8CurrentScalingQuantizer(DType.kFloat8E4M3, torch.device("cuda"))
    else:
        quantizer = te.Float8BlockQuantizer(DType.kFloat8E4M3, rowwise=True, columnwise=True)
    x = quantizer(randn(128, 256, grad=False))
    if p.operation == "view":
        return {"out": x.view(2, 64, 256).dequantize()}
    if p.operation == "copy":
        x.copy_(randn(128, 256, grad=False))
        return {"out": x.dequantize()}
    if p.operation == "add":
        return {"out": x + 1}
    if p.operation == "detach_clone":
        return {"out": x.detach().clone().dequantize()}
    if p.operation == "multiply":
        return {"out": torch.matmul(x, randn(256, 64, grad=False))}
    import io

    stream = io.BytesIO()
    torch.save(x, stream)
    stream.seek(0)
    return {"out": torch.load(stream, weights_only=False).dequantize()}


@case("others", size=((64, 48), (128, 8)))
def interleave(p):
    x = randn(*p.size, grad=False)
    return {"out": te.deinterleave_glu_tensor(te.interleave_glu_tensor(x, 4), 4)}


@case(
    "newton_schulz", environment={"NEWTON_SCHULZ": "1"}, shape=((128, 128), (64, 256)), steps=(5,)
)
def one_rank(p):
    """Orthogonalization on a group of one process, in a worker of its own: an initialized group
    changes other cases."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group(
            "nccl", init_method=f"file://{folder('groups')}/{os.getpid()}", rank=0, world_size=1
        )
    from transformer_engine.pytorch.optimizers.newton_schulz import get_coefficients

    context = te.CusolverMpCtx(dist.group.WORLD)
    x = randn(*p.shape, dtype="fp32", grad=False)
    te.newton_schulz(x, context, p.steps, get_coefficients(p.steps))
    context.destroy()
    return {"out": x}
