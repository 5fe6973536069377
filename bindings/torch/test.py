"""What the extension registers, as Python sees it: `test.py libnvte_torch.so`."""

import os
import sys

import torch

torch.ops.load_library(os.path.abspath(sys.argv[1]))
nvte = torch.ops.nvte
device = "cuda" if torch.cuda.is_available() and os.environ.get("NVTE_BACKEND") != "cpu" else "cpu"
failed = 0


def check(name, good, what=""):
    global failed
    print(f"LibTorch in Python: {name} ... {'ok' if good else f'FAILED {what}'}")
    failed += not good


def distance(a, b):
    return float((a - b).detach().double().norm() / b.detach().double().norm())


torch.manual_seed(3)
context = torch.classes.nvte.Context()
linear = nvte.linear(context, 64, 48, True, torch.float32, 1)
weight, bias = linear.parameters()
x = torch.randn(3, 32, 64, device=device, requires_grad=True)
results = []
for y in (linear.forward(x), torch.nn.functional.linear(x, weight, bias)):
    gradients = torch.autograd.grad(y.square().sum(), (x, weight, bias))
    results.append((y, *gradients))
# Tensor cores take float32 as TF32.
bound = 2e-3 if device == "cuda" else 1e-5
apart = max(distance(ours, theirs) for ours, theirs in zip(*results))
check("a linear layer and its gradients", apart < bound, apart)

layer = nvte.transformer_layer(context, 64, 128, 4, "swiglu", torch.bfloat16 if device == "cuda" else torch.float32, 2)
parameters = layer.parameters()
optimizer = torch.optim.AdamW(parameters, lr=3e-3)
x = torch.randn(32, 2, 64, device=device, dtype=parameters[0].dtype)
target = torch.sin(2 * x)
losses = []
# On a stream of its own, which the library must use, too.
if device == "cuda":
    torch.cuda.synchronize()
stream = torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else torch.no_grad()
with stream, torch.enable_grad():
    for _ in range(40):
        context.begin("delayed_scaling")
        y = layer.forward(x)
        context.end()
        context.forward_update()
        loss = (y - target).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        context.backward_update()
        optimizer.step()
        losses.append(float(loss.detach()))
first, last = losses[0], losses[-1]
check("training a layer in FP8 with torch.optim", last < 0.6 * first, f"{first} -> {last}")
try:
    linear.forward(torch.randn(4, 63, device=device))
    check("an error of the library is an exception", False)
except RuntimeError as error:
    check("an error of the library is an exception", "expected" in str(error), error)
sys.exit(failed != 0)
