"""What the PyTorch cases share: types, recipes, training steps, and the results that are
compared."""

import os

import numpy as np
import torch
import transformer_engine.pytorch as te
from transformer_engine.common import recipe as recipes
from transformer_engine.pytorch.custom_recipes import quantizer_factories as factories

from harness import Skip, seed_of

# Without it the front end refuses to load the scaling state in a checkpoint, which is a pickle.
os.environ.setdefault("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
RECIPES = ("none", "delayed", "current", "block")
FP8 = ("delayed", "current", "block")
OPTIONS = None


def recipe(name):
    """The recipe of that name, made anew, or None for no quantization."""
    made = {
        "none": lambda: None,
        "delayed": lambda: recipes.DelayedScaling(amax_history_len=4, amax_compute_algo="max"),
        "delayed_recent": lambda: recipes.DelayedScaling(
            amax_history_len=2, amax_compute_algo="most_recent", margin=1
        ),
        "delayed_e4m3": lambda: recipes.DelayedScaling(
            fp8_format=recipes.Format.E4M3, amax_history_len=4
        ),
        "delayed_dpa": lambda: recipes.DelayedScaling(amax_history_len=4, fp8_dpa=True),
        "delayed_mha": lambda: recipes.DelayedScaling(
            amax_history_len=4, fp8_dpa=True, fp8_mha=True
        ),
        "current": recipes.Float8CurrentScaling,
        "current_e4m3": lambda: recipes.Float8CurrentScaling(fp8_format=recipes.Format.E4M3),
        "current_dequantized": lambda: recipes.Float8CurrentScaling(
            backward_override="dequantized"
        ),
        "current_high": lambda: recipes.Float8CurrentScaling(backward_override="high_precision"),
        "block": recipes.Float8BlockScaling,
        "block_high": lambda: recipes.Float8BlockScaling(backward_override="high_precision"),
        "custom_delayed": lambda: recipes.CustomRecipe(qfactory=factories.delayed_scaling_factory),
        "custom_current": lambda: recipes.CustomRecipe(qfactory=factories.current_scaling_factory),
        "custom_block": lambda: recipes.CustomRecipe(
            qfactory=factories.float8_block_scaling_factory
        ),
    }
    return made[name]()


def randn(*shape, dtype="bf16", grad=True, scale=1.0):
    tensor = (torch.randn(*shape, device="cuda") * scale).to(DTYPES.get(dtype, dtype))
    return tensor.requires_grad_(grad)


def vary(module):
    """Moves the one-dimensional parameters (gains, biases) away from the ones and zeros that
    they start with."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1 and type(parameter.data) is torch.Tensor:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


def autocast(rec):
    return te.autocast(enabled=rec is not None, recipe=rec)


def tensors_of(result):
    flat = result if isinstance(result, (tuple, list)) else [result]
    return [item for item in flat if isinstance(item, torch.Tensor)]


def state_of(module):
    """Scales and amax histories of delayed scaling."""
    found = {}
    for name, part in module.named_modules():
        meta = getattr(part, "fp8_meta", None)
        if not isinstance(meta, dict):
            continue
        for key in ("scaling_fwd", "scaling_bwd"):
            scaling = meta.get(key)
            for field in ("scale", "amax_history"):
                value = getattr(scaling, field, None)
                if isinstance(value, torch.Tensor):
                    found[f"{name}.{key}.{field}"] = value.clone()
    return found


def results(module, outputs, inputs, skip=()):
    """Outputs, gradients of inputs and of parameters, and the scaling state, by name."""
    named = {f"out{i}": tensor.detach() for i, tensor in enumerate(tensors_of(outputs))}
    for i, tensor in enumerate(inputs):
        if isinstance(tensor, torch.Tensor) and tensor.grad is not None:
            named[f"d.input{i}"] = tensor.grad
    if module is not None:
        for name, parameter in module.named_parameters():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None and not any(word in name for word in skip):
                named[f"d.{name}"] = gradient
        named.update(state_of(module))
    return named


def backward(outputs):
    """Sends a random gradient into every output that has one."""
    wanted = [
        tensor
        for tensor in tensors_of(outputs)
        if tensor.requires_grad and tensor.grad_fn is not None
    ]
    torch.autograd.backward(wanted, [torch.randn_like(tensor) for tensor in wanted])


def train(module, make_inputs, rec=None, steps=None, skip=(), grad=True, **keywords):
    """Runs forward and backward steps on new inputs and returns the results of the last one."""
    steps = steps or (3 if rec is not None and rec.delayed() else 1)
    for step in range(steps):
        module.zero_grad(set_to_none=True)
        inputs = make_inputs()
        with autocast(rec), torch.set_grad_enabled(grad):
            outputs = module(*inputs, **keywords)
        if grad:
            backward(outputs)
    return results(module, outputs, inputs, skip)


def same(first, second):
    """Whether two results hold the same tensors, bit by bit."""
    return first.keys() == second.keys() and all(
        first[name].shape == second[name].shape
        and torch.equal(bits(first[name]), bits(second[name]))
        for name in first
    )


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def to_numpy(value):
    if hasattr(value, "dequantize") and not type(value) in (torch.Tensor, torch.nn.Parameter):
        value = value.dequantize()
    value = value.detach()
    if (
        value.dtype in (torch.bfloat16, torch.float16)
        or value.dtype.is_floating_point
        and value.element_size() == 1
    ):
        value = value.float()
    return value.cpu().numpy()


class Adapter:
    """What the harness needs of PyTorch."""

    def start(self, options):
        global OPTIONS
        OPTIONS = options
        torch.zeros(1, device="cuda")

    def run(self, item):
        import types

        from transformer_engine.pytorch.quantization import FP8GlobalStateManager

        FP8GlobalStateManager.reset()
        np.random.seed(seed_of(item.id))
        torch.manual_seed(seed_of(item.id))
        found = item.function(types.SimpleNamespace(**item.params))
        torch.cuda.synchronize()
        return {
            name: value if isinstance(value, bool) else to_numpy(value)
            for name, value in found.items()
        }

    def clean(self):
        """Whether the worker can go on: an error on the GPU stays with its process."""
        try:
            torch.cuda.synchronize()
            return (
                bool(torch.ones(1, device="cuda").sum().item() == 1)
                and not torch.cuda.is_current_stream_capturing()
            )
        except Exception:
            return False


def folder(name):
    path = os.path.join(OPTIONS.folder, name)
    os.makedirs(path, exist_ok=True)
    return path


__all__ = [name for name in dir() if not name.startswith("_")]
