"""Runs operators of PyTorch and of NumPy on one thread of the CPU, for `cargo xtask bench --cpu-field`.

The first line of the output names the two libraries, `PyTorch VERSION<tab>NumPy VERSION`, with `-` for one that this
Python does not have. Then each line of the input is the key of a row, and is answered by a line
`MILLISECONDS<tab>MILLISECONDS`: the CPU time that a call of each takes, or `-` for what a library does not have.
"""

import os
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
except ImportError:
    torch = None

SAMPLE_SECONDS = 0.15
# A call that takes longer is measured once.
SLOW_SECONDS = 1.0


def torch_dtype(name):
    names = {"f32": "float32", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
    return getattr(torch, names[name])


def product(dtype, m, n, k, *epilogue):
    x = torch.randn(m, k).to(torch_dtype(dtype))
    weight = torch.randn(n, k).to(torch_dtype(dtype))
    if not epilogue:
        return lambda: F.linear(x, weight)
    bias = torch.randn(n).to(torch_dtype(dtype))
    return lambda: F.gelu(F.linear(x, weight, bias), approximate="tanh")


def layernorm(dtype, rows, cols):
    x = torch.randn(rows, cols).to(torch_dtype(dtype))
    gamma, beta = (torch.randn(cols).to(torch_dtype(dtype)) for _ in range(2))
    return lambda: F.layer_norm(x, (cols,), gamma, beta)


def softmax(dtype, matrices, seq):
    x = torch.randn(matrices, seq, seq).to(torch_dtype(dtype))
    return lambda: torch.softmax(x, -1)


def gelu(dtype, rows, cols):
    x = torch.randn(rows, cols).to(torch_dtype(dtype))
    return lambda: F.gelu(x, approximate="tanh")


def adam(dtype, tensors, numel):
    parameters = [torch.randn(numel).to(torch_dtype(dtype)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    try:
        optimizer = torch.optim.AdamW(parameters, fused=True)
        optimizer.step()
    except (RuntimeError, TypeError):
        # Versions that fuse it on a GPU alone.
        optimizer = torch.optim.AdamW(parameters, foreach=True)
    return optimizer.step


def attention(dtype, seq, heads, dim):
    q, k, v = (torch.randn(1, heads, seq, dim).to(torch_dtype(dtype)) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cast(dtype, rows, cols):
    x = torch.randn(rows, cols).to(torch.bfloat16)
    to = torch_dtype(dtype)
    return lambda: x.to(to)


def numpy_product(dtype, m, n, k, *epilogue):
    if dtype != "f32" or epilogue:
        return None
    random = np.random.default_rng(1)
    x, weight = (random.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (n, k)))
    return lambda: x @ weight.T


TORCH = dict(
    product=product, layernorm=layernorm, softmax=softmax, gelu=gelu, adam=adam, attention=attention, cast=cast
)
NUMPY = dict(product=numpy_product)


def made(library, table, key):
    """A function that measures a row once, or None."""
    name, *words = key.split()
    if library is None or name not in table:
        return None
    try:
        call = table[name](*(int(word) if word.isdigit() else word for word in words))
        if call is None:
            return None
        if (seconds := sample(call, 1)) > SLOW_SECONDS:
            return lambda: seconds
        seconds = sample(call, 1)
    except (AttributeError, RuntimeError, TypeError):
        # This version of the library does not have it.
        return None
    count = max(1, int(SAMPLE_SECONDS / max(seconds, 1e-7)))
    return lambda: sample(call, count)


def sample(call, count):
    """Seconds of CPU time that a call takes."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def main():
    names = [f"{name} {module.__version__}" if module else "-" for name, module in (("PyTorch", torch), ("NumPy", np))]
    print("\t".join(names), flush=True)
    last, rows = None, []
    for line in sys.stdin:
        key = line.strip()
        if key != last:
            last, rows = key, [made(torch, TORCH, key), made(np, NUMPY, key)]
        print("\t".join("-" if row is None else f"{row() * 1e3:.6f}" for row in rows), flush=True)


main()
