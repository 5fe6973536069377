"""
Operators of libnvte.so for JAX: functions for `jit`, `grad` and `vmap`, on the CPU and on NVIDIA GPUs.

`linear` multiplies in FP8 with current scaling, or in the dtype of its input; `layernorm`, `rmsnorm`, `activation` and
`attention` have gradients, too; `quantize`, `dequantize` and `matmul` are what `linear` is made of.
"""

import ctypes
import functools
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["ACTIVATIONS", "activation", "attention", "dequantize", "layernorm", "linear", "matmul", "quantize", "rmsnorm"]

# In the order of the handlers' table. Those that end with `glu` have an input of twice the width.
ACTIVATIONS = ("gelu", "silu", "qgelu", "relu", "srelu", "geglu", "swiglu", "qgeglu", "reglu", "sreglu")
_OPERATORS = (
    "quantize", "dequantize", "matmul", "layernorm", "layernorm_grad", "rmsnorm", "rmsnorm_grad", "activation",
    "activation_grad", "attention", "attention_grad",
)
_MASKS = {"none": 0, "causal": 2}
# How many multiprocessors a normalization may keep busy; a GPU has fewer, and the CPU does not look at it.
_PROCESSORS = 132


def _register():
    """Loads the handlers, which `build.py` has compiled, and tells JAX their names."""
    path = Path(os.environ.get("NVTE_JAX_HANDLERS", Path(__file__).parent / "handlers.so"))
    if not path.is_file():
        raise ImportError(f"{path} is missing: run build.py --prefix DIR, with an installation of nvte in DIR")
    library = ctypes.cdll.LoadLibrary(str(path))
    for operator in _OPERATORS:
        for platform in ("cpu", "cuda"):
            handler = jax.ffi.pycapsule(getattr(library, f"nvte_jax_{operator}_{platform}"))
            jax.ffi.register_ffi_target(f"nvte_{operator}", handler, platform="CUDA" if platform == "cuda" else platform)
    return library


_library = _register()


def _call(operator, results, *arguments, **attributes):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    # Arrays that are mapped over are handled one after the other.
    call = jax.ffi.ffi_call(f"nvte_{operator}", shapes, vmap_method="sequential")
    return call(*arguments, **attributes)


def _matrix(x):
    return x.reshape(-1, x.shape[-1])


def quantize(x, dtype=jnp.float8_e4m3fn):
    """Casts a matrix to FP8 with one scale, from its own maximum: its codes, those of the transpose, and scale_inv."""
    rows, columns = x.shape
    one = ((1,), jnp.float32)
    codes, transposed, scale_inv, _, _ = _call("quantize", [((rows, columns), dtype), ((columns, rows), dtype), one, one, one], x)
    return codes, transposed, scale_inv


def dequantize(codes, scale_inv, dtype=jnp.float32):
    """The values that the codes stand for."""
    return _call("dequantize", [(codes.shape, dtype)], codes, scale_inv)[0]


def matmul(a, b, scale_inv_a=None, scale_inv_b=None, dtype=None):
    """`a @ b.T` of matrices `[m, k]` and `[n, k]`; FP8 codes have their scale_inv."""
    scales = () if scale_inv_a is None else (scale_inv_a, scale_inv_b)
    return _call("matmul", [((a.shape[0], b.shape[0]), dtype or a.dtype)], a, b, *scales)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _linear(x, weight, fp8):
    return _linear_forward(x, weight, fp8)[0]


def _linear_forward(x, weight, fp8):
    if not fp8:
        return matmul(x, weight), (x, weight)
    codes, transposed, scale = quantize(x)
    weight_codes, weight_transposed, weight_scale = quantize(weight)
    y = matmul(codes, weight_codes, scale, weight_scale, x.dtype)
    # Empty arrays carry the dtypes of the gradients.
    kept = (transposed, scale, weight_transposed, weight_scale, jnp.zeros(0, x.dtype), jnp.zeros(0, weight.dtype))
    return y, kept


def _linear_backward(fp8, kept, grad):
    if not fp8:
        x, weight = kept
        return matmul(grad, weight.T), matmul(grad.T, x.T)
    transposed, scale, weight_transposed, weight_scale, of_x, of_weight = kept
    codes, codes_transposed, grad_scale = quantize(grad, jnp.float8_e5m2)
    dx = matmul(codes, weight_transposed, grad_scale, weight_scale, of_x.dtype)
    dweight = matmul(codes_transposed, transposed, grad_scale, scale, of_weight.dtype)
    return dx, dweight


_linear.defvjp(_linear_forward, _linear_backward)


def linear(x, weight, bias=None, fp8=True):
    """`x @ weight.T + bias` for `[..., k]` and `[n, k]`: in FP8, gradients in E5M2, or in the dtype of x."""
    y = _linear(_matrix(x), weight, fp8).reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layernorm(x, gamma, beta, epsilon):
    return _layernorm_forward(x, gamma, beta, epsilon)[0]


def _layernorm_forward(x, gamma, beta, epsilon):
    rows = ((x.shape[0],), jnp.float32)
    results = [(x.shape, x.dtype), rows, rows]
    z, mu, rsigma = _call("layernorm", results, x, gamma, beta, epsilon=np.float32(epsilon), processors=np.int64(_PROCESSORS))
    return z, (x, mu, rsigma, gamma)


def _layernorm_backward(epsilon, kept, dz):
    x, mu, rsigma, gamma = kept
    results = [(x.shape, x.dtype), (gamma.shape, gamma.dtype), (gamma.shape, gamma.dtype)]
    return tuple(_call("layernorm_grad", results, dz, x, mu, rsigma, gamma, processors=np.int64(_PROCESSORS)))


_layernorm.defvjp(_layernorm_forward, _layernorm_backward)


def layernorm(x, gamma, beta, epsilon=1e-5):
    """LayerNorm over the last dimension."""
    return _layernorm(_matrix(x), gamma, beta, epsilon).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rmsnorm(x, gamma, epsilon):
    return _rmsnorm_forward(x, gamma, epsilon)[0]


def _rmsnorm_forward(x, gamma, epsilon):
    results = [(x.shape, x.dtype), ((x.shape[0],), jnp.float32)]
    z, rsigma = _call("rmsnorm", results, x, gamma, epsilon=np.float32(epsilon), processors=np.int64(_PROCESSORS))
    return z, (x, rsigma, gamma)


def _rmsnorm_backward(epsilon, kept, dz):
    x, rsigma, gamma = kept
    results = [(x.shape, x.dtype), (gamma.shape, gamma.dtype)]
    return tuple(_call("rmsnorm_grad", results, dz, x, rsigma, gamma, processors=np.int64(_PROCESSORS)))


_rmsnorm.defvjp(_rmsnorm_forward, _rmsnorm_backward)


def rmsnorm(x, gamma, epsilon=1e-5):
    """RMSNorm over the last dimension."""
    return _rmsnorm(_matrix(x), gamma, epsilon).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _activation(x, kind):
    return _activation_forward(x, kind)[0]


def _activation_forward(x, kind):
    width = x.shape[1] // 2 if ACTIVATIONS[kind].endswith("glu") else x.shape[1]
    return _call("activation", [((x.shape[0], width), x.dtype)], x, kind=np.int64(kind))[0], x


def _activation_backward(kind, x, grad):
    return tuple(_call("activation_grad", [(x.shape, x.dtype)], grad, x, kind=np.int64(kind)))


_activation.defvjp(_activation_forward, _activation_backward)


def activation(x, name):
    """One of ACTIVATIONS; gated ones multiply `f` of the first half of each row by its second half."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {name!r}")
    y = _activation(_matrix(x), ACTIVATIONS.index(name))
    return y.reshape(*x.shape[:-1], y.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _attention(q, k, v, mask, window, scale):
    return _attention_forward(q, k, v, mask, window, scale)[0]


def _attention_forward(q, k, v, mask, window, scale):
    batch, length, heads, _ = q.shape
    results = [((batch, length, heads, v.shape[-1]), q.dtype), ((batch, heads, length, 1), jnp.float32)]
    o, stats = _call("attention", results, q, k, v, mask=np.int64(mask), window=np.int64(window), scale=np.float32(scale))
    return o, (q, k, v, o, stats)


def _attention_backward(mask, window, scale, kept, grad):
    q, k, v, _, _ = kept
    results = [(x.shape, x.dtype) for x in (q, k, v)]
    return tuple(_call("attention_grad", results, *kept, grad, mask=np.int64(mask), window=np.int64(window), scale=np.float32(scale)))


_attention.defvjp(_attention_forward, _attention_backward)


def attention(q, k, v, mask="causal", window=None, scale=None):
    """
    `softmax(scale q k^T) v` for `[b, s, h, d]`; k and v may have fewer heads.

    `mask` is "none" or "causal"; with a causal mask `window` is how many keys before its own place a query sees.
    """
    if mask not in _MASKS:
        raise ValueError(f"mask: expected one of {', '.join(_MASKS)}, got {mask!r}")
    if window is not None and (mask != "causal" or window < 0):
        raise ValueError(f"window: expected a number of keys under a causal mask, got {window} under {mask!r}")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return _attention(q, k, v, _MASKS[mask], -1 if window is None else window, float(scale))
