"""
FP8 training operators and modules of Transformers, on CPU and NVIDIA GPUs, through ``libnvte.so``.

Arrays of NumPy, PyTorch, CuPy and JAX are read and written in place through DLPack. Nothing is compiled, and no other
package is needed.
"""

from . import _modules
from ._core import Context, Module, Parameter, Recipe, Sequential, Tape, rotary_frequencies
from ._library import Error, call
from ._modules import *  # noqa: F403
from ._ops import (
    Quantized, dequantize, gemm, layernorm, layernorm_backward, quantize, rmsnorm, rmsnorm_backward)
from ._tensor import Tensor, array, as_tensor, backend_name, empty, zeros


def version() -> str:
    """The version of the library, such as "0.1.0"."""
    return call("nvtex_version").decode()


__all__ = [
    "Context", "Error", "Module", "Parameter", "Quantized", "Recipe", "Sequential", "Tape", "Tensor", "array", "as_tensor",
    "backend_name", "call", "dequantize", "empty", "gemm", "layernorm", "layernorm_backward", "quantize", "rmsnorm",
    "rmsnorm_backward", "rotary_frequencies", "version", "zeros", *_modules.__all__]
