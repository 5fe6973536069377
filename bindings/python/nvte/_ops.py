"""Operators: casts to FP8 and back, matrix products, norms."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

from . import _abi
from ._library import call
from ._tensor import Array, Stream, Tensor, as_tensor, cleared, empty, like, stream_of

_MODES = {
    "tensor": _abi.NVTE_DELAYED_TENSOR_SCALING, "mxfp8": _abi.NVTE_MXFP8_1D_SCALING,
    "block_1d": _abi.NVTE_BLOCK_SCALING_1D, "block_2d": _abi.NVTE_BLOCK_SCALING_2D}

# Multiprocessors that normalizations may keep busy: their sums depend on it.
_MULTIPROCESSORS = 132
_WORKSPACE_BYTES = 32 << 20


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    rows = 1
    for dim in shape[:-1]:
        rows *= dim
    return rows, shape[-1]


def _scale_shape(mode: int, shape: Sequence[int], columnwise: bool) -> tuple[int, ...]:
    lines, length, line_padding, block_padding, transposes, block_major, _ = _abi.SCALING_MODES[mode]
    if not length:
        return (1,)
    rows, columns = _matrix(shape)
    if columnwise:
        rows, columns = columns, rows

    def parts(count: int, size: int, padding: int) -> int:
        return -(-(-(-count // size)) // padding) * padding

    scales = parts(rows, lines, line_padding), parts(columns, length, block_padding)
    return scales[::-1] if block_major or (columnwise and not transposes) else scales


class Quantized(Tensor):
    """
    A tensor in FP8 with its scales. `rowwise` and `scale_inv` are its elements and their scales, `columnwise` and
    `columnwise_scale_inv` those of the copy for products that sum over rows, or None.
    """

    def __init__(self, shape: Sequence[int], dtype: str, scaling: str, columnwise: bool, stream: int | None = None) -> None:
        mode = _MODES[scaling]
        rowwise = empty(shape, dtype)
        super().__init__(rowwise.data, shape, dtype, rowwise, mode)
        self.scaling = scaling
        kind = "float32" if _abi.SCALING_MODES[mode][6] == 4 else "float8e8m0"
        self.rowwise = rowwise
        self.scale_inv = cleared(_scale_shape(mode, shape, False), kind, stream)
        self._attach(_abi.kNVTERowwiseScaleInv, self.scale_inv)
        self.columnwise = self.columnwise_scale_inv = self.scale = self.amax = None
        if scaling == "tensor":
            self.scale, self.amax = (cleared((1,), "float32", stream) for _ in range(2))
            self._attach(_abi.kNVTEScale, self.scale)
            self._attach(_abi.kNVTEAmax, self.amax)
        if columnwise:
            rows, columns = _matrix(shape)
            transposes = _abi.SCALING_MODES[mode][4]
            self.columnwise = empty((columns, *shape[:-1]) if transposes else shape, dtype)
            self._attach(_abi.kNVTEColumnwiseData, self.columnwise)
            self.columnwise_scale_inv = (
                self.scale_inv if scaling == "tensor" else cleared(_scale_shape(mode, shape, True), kind, stream))
            self._attach(_abi.kNVTEColumnwiseScaleInv, self.columnwise_scale_inv)

    def __repr__(self) -> str:
        return f"nvte.Quantized(shape={self.shape}, dtype={self.dtype!r}, scaling={self.scaling!r})"


class _Config:
    """A config of a cast."""

    def __init__(self, **attributes: bool) -> None:
        self._as_parameter_ = call("nvte_create_quantization_config")
        for name, value in attributes.items():
            number = getattr(_abi, f"kNVTEQuantizationConfig{name}")
            flag = ctypes.c_bool(value)
            call("nvte_set_quantization_config_attribute", self._as_parameter_, number, ctypes.byref(flag), 1)

    def __enter__(self) -> _Config:
        return self

    def __exit__(self, *_: Any) -> None:
        call("nvte_destroy_quantization_config", self._as_parameter_)


def quantize(
    x: Array,
    dtype: str = "float8e4m3",
    scaling: str = "tensor",
    *,
    scale: float | None = None,
    columnwise: bool = False,
    power_2_scales: bool = False,
    stream: Stream = None,
) -> Quantized:
    """
    Casts a matrix to FP8.

    `scaling` is "tensor" (one scale: `scale`, or without it the one that maps the largest magnitude to the largest
    number of the type), "block_1d" (1 x 128), "block_2d" (128 x 128) or "mxfp8" (32). `columnwise` also makes the copy
    that products need that sum over rows.
    """
    if scaling not in _MODES:
        raise ValueError(f"quantize: scaling: expected one of {', '.join(_MODES)}, got {scaling!r}")
    if scale is not None and scaling != "tensor":
        raise ValueError("quantize: scale: blocks have scales of their own")
    source, where = as_tensor(x), stream_of(stream, x)
    if len(source.shape) < 2:
        raise ValueError(f"quantize: expected at least 2 dimensions, got shape {source.shape}")
    result = Quantized(source.shape, dtype, scaling, columnwise, where)
    with _Config(ForcePow2Scales=power_2_scales) as config:
        if scaling == "tensor" and scale is None:
            call("nvte_compute_amax", source, result, where)
            call("nvte_compute_scale_from_amax", result, config, where)
        elif scaling == "tensor":
            value = ctypes.c_float(scale)
            call("nvtex_memcpy_to_device", result.scale.data, ctypes.byref(value), 4, where)
        call("nvte_quantize_v2", source, result, config, where)
    return result


def dequantize(x: Quantized, dtype: str = "float32", *, out: Array | None = None, stream: Stream = None) -> Array:
    """Casts a tensor in FP8 back."""
    out = empty(x.shape, dtype) if out is None else out
    call("nvte_dequantize", x, as_tensor(out), stream_of(stream, out))
    return out


_workspaces: dict = {}


def _workspace(stream: int | None) -> Tensor:
    """Scratch memory for products of a stream, which run one after the other."""
    if stream not in _workspaces:
        _workspaces[stream] = empty((_WORKSPACE_BYTES,), "byte")
    return _workspaces[stream]


def gemm(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Array | None = None,
    accumulate: bool = False,
    split_accumulator: bool = True,
    dtype: str | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """
    The product of two matrices, ``op(a) @ op(b) + bias``, where `op` transposes or not.

    Operands in FP8 come from `quantize`. An operand whose rows are summed over (`a` with `transpose_a`, `b` without
    `transpose_b`) needs ``columnwise=True`` there. The result has `dtype`, by default that of `a`, and of FP8
    operands Float32. With `accumulate` it is added to `out`.
    """
    left, right, where = as_tensor(a), as_tensor(b), stream_of(stream, a, b, out)
    if len(left.shape) != 2 or len(right.shape) != 2:
        raise ValueError(f"gemm: expected two matrices, got shapes {left.shape} and {right.shape}")
    rows, inner = left.shape[::-1] if transpose_a else left.shape
    other, columns = right.shape[::-1] if transpose_b else right.shape
    if inner != other:
        raise ValueError(f"gemm: expected equal inner dimensions, got {inner} and {other}")
    if out is None:
        if accumulate:
            raise ValueError("gemm: accumulate: expected out")
        quantized = isinstance(left, Quantized)
        out = like(a, (rows, columns), dtype or ("float32" if quantized else None))
    # The C function has the operands in the order of BLAS: what stands on the right here comes first.
    missing = Tensor(None, (0,), "float32", None)
    call(
        "nvte_cublas_gemm", right, left, as_tensor(out),
        as_tensor(bias) if bias is not None else missing, missing, transpose_b, transpose_a,
        False, _workspace(where), accumulate, split_accumulator, 0, where)
    return out


def _with_workspace(name: str, before: Sequence[Any], after: Sequence[Any]) -> None:
    """Calls a function twice: first it says how much scratch memory it needs."""
    workspace = Tensor(None, (0,), "byte", None)
    call(name, *before, workspace, *after)
    shape = call("nvte_tensor_shape", workspace)
    dims = shape.data[: shape.ndim]
    nbytes = dims[0] if dims else 0
    if nbytes:
        workspace = empty(dims, "byte")
    call(name, *before, workspace, *after)


def layernorm(
    x: Array,
    gamma: Array,
    beta: Array,
    epsilon: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out: Array | None = None,
    stream: Stream = None,
) -> tuple[Array, Tensor, Tensor]:
    """Normalizes rows ``[n, h]`` to mean 0 and variance 1. Returns the result, and the means and inverse deviations
    that `layernorm_backward` needs."""
    source, where = as_tensor(x), stream_of(stream, x)
    out = like(x, source.shape) if out is None else out
    mu, rsigma = empty(source.shape[:1]), empty(source.shape[:1])
    _with_workspace(
        "nvte_layernorm_fwd",
        [source, as_tensor(gamma), as_tensor(beta), epsilon, as_tensor(out), mu,
         rsigma],
        [_MULTIPROCESSORS, zero_centered_gamma, where])
    return out, mu, rsigma


def layernorm_backward(
    dy: Array,
    x: Array,
    mu: Array,
    rsigma: Array,
    gamma: Array,
    *,
    zero_centered_gamma: bool = False,
    stream: Stream = None,
) -> tuple[Array, Array, Array]:
    """The gradients of x, gamma and beta."""
    weight = as_tensor(gamma)
    dx = like(x, as_tensor(x).shape)
    dgamma, dbeta = like(gamma, weight.shape), like(gamma, weight.shape)
    inputs = [as_tensor(array) for array in (dy, x, mu, rsigma, gamma, dx, dgamma, dbeta)]
    _with_workspace("nvte_layernorm_bwd", inputs, [_MULTIPROCESSORS, zero_centered_gamma, stream_of(stream, x)])
    return dx, dgamma, dbeta


def rmsnorm(
    x: Array,
    gamma: Array,
    epsilon: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out: Array | None = None,
    stream: Stream = None,
) -> tuple[Array, Tensor]:
    """Divides rows ``[n, h]`` by their root mean square. Returns the result, and the inverse of these roots for
    `rmsnorm_backward`."""
    source, where = as_tensor(x), stream_of(stream, x)
    out = like(x, source.shape) if out is None else out
    rsigma = empty(source.shape[:1])
    _with_workspace(
        "nvte_rmsnorm_fwd",
        [source, as_tensor(gamma), epsilon, as_tensor(out), rsigma],
        [_MULTIPROCESSORS, zero_centered_gamma, where])
    return out, rsigma


def rmsnorm_backward(
    dy: Array, x: Array, rsigma: Array, gamma: Array, *, zero_centered_gamma: bool = False, stream: Stream = None
) -> tuple[Array, Array]:
    """The gradients of x and gamma."""
    dx, dgamma = like(x, as_tensor(x).shape), like(gamma, as_tensor(gamma).shape)
    inputs = [as_tensor(array) for array in (dy, x, rsigma, gamma, dx, dgamma)]
    _with_workspace("nvte_rmsnorm_bwd", inputs, [_MULTIPROCESSORS, zero_centered_gamma, stream_of(stream, x)])
    return dx, dgamma


__all__ = [
    "Quantized", "dequantize", "gemm", "layernorm", "layernorm_backward", "quantize", "rmsnorm", "rmsnorm_backward"]
