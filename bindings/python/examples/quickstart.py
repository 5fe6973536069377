"""
A first look: a plain layer, fused modules, and FP8, with the time of each.

On a GPU it runs with PyTorch's tensors if PyTorch is installed, in BFloat16 and in the size of a large model; on a CPU
in float32 and small. `python3 quickstart.py [--steps N]`.
"""

import argparse
import time

import nvte

arguments = argparse.ArgumentParser()
arguments.add_argument("--steps", type=int, help="passes that are timed")
steps = arguments.parse_args().steps

on_gpu = nvte.backend_name() == "cuda"
if on_gpu:
    import torch

    length, batch, hidden, ffn_hidden, heads, dtype = 2048, 4, 4096, 16384, 32, "bfloat16"

    def numbers(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def wait():
        torch.cuda.synchronize()
else:
    import random

    length, batch, hidden, ffn_hidden, heads, dtype = 32, 2, 64, 256, 4, "float32"

    def numbers(*shape):
        source = random.Random(1)

        def fill(dims):
            return [fill(dims[1:]) if len(dims) > 1 else source.gauss(0, 1) for _ in range(dims[0])]

        return nvte.array(fill(shape))

    def wait():
        pass

steps = steps or (20 if on_gpu else 2)
context = nvte.Context()
x, dy = numbers(length, batch, hidden), numbers(length, batch, hidden)


def measure(title, layers, recipe=None):
    """Times forward and backward passes of modules in a row."""
    for layer in layers:
        layer.make_gradients(dtype)

    def step():
        tapes, y = [], x
        for layer in layers:
            if recipe is not None:
                with context.autocast(recipe):
                    y, tape = layer.forward(y)
            else:
                y, tape = layer.forward(y)
            tapes.append(tape)
        context.forward_update()
        grad = dy
        for layer, tape in zip(reversed(layers), reversed(tapes)):
            grad = layer.backward(tape, grad)
        context.backward_update()
        return y

    for _ in range(2):
        y = step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        y = step()
    wait()
    print(f"{title:50} {(time.perf_counter() - start) / steps * 1e3:8.2f} ms, output {tuple(y.shape)}")


print(f"nvte {nvte.version()} on {nvte.backend_name()}: {length} x {batch} tokens of {hidden}")

# 1. A plain MLP: a norm and two linear layers.
measure("Norm, Linear, Linear", [
    nvte.Norm(context, hidden_size=hidden, dtype=dtype),
    nvte.Linear(context, in_features=hidden, out_features=ffn_hidden, dtype=dtype),
    nvte.Linear(context, in_features=ffn_hidden, out_features=hidden, dtype=dtype),
])

# 2. Fused modules: the norm, both products and the activation in one module, and a whole layer of a Transformer.
mlp = nvte.LayerNormMLP(context, hidden_size=hidden, ffn_hidden_size=ffn_hidden, dtype=dtype)
measure("LayerNormMLP", [mlp])
layer = nvte.TransformerLayer(
    context, hidden_size=hidden, ffn_hidden_size=ffn_hidden, num_attention_heads=heads, dtype=dtype
)
measure("TransformerLayer", [layer])

# 3. FP8: the same modules in a region with a recipe.
for kind in ("delayed_scaling", "current_scaling", "block_scaling", "mxfp8"):
    recipe = nvte.Recipe(kind)
    measure(f"LayerNormMLP, {kind}", [mlp], recipe)
    measure(f"TransformerLayer, {kind}", [layer], recipe)
    print("  products of the MLP ran in", *mlp.precision("fc1_weight"))
