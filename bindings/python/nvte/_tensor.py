"""Tensors: memory of the library's device, or that of arrays of other packages through DLPack or the buffer protocol."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Sequence, Union

from . import _abi
from ._library import Error, call, name_of, number_of, quietly

# Types of elements: code and bits of DLPack, and the characters of the buffer protocol.
_DLPACK = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64", (1, 8): "byte", (2, 16): "float16",
    (2, 32): "float32", (4, 16): "bfloat16", (6, 8): "byte", (10, 8): "float8e4m3", (12, 8): "float8e5m2",
    (14, 8): "float8e8m0"}
_BUFFER = {"b": "byte", "B": "byte", "c": "byte", "?": "byte", "e": "float16", "f": "float32"}
_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}
_BITS = {
    "byte": 8, "int16": 16, "int32": 32, "int64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8e4m3": 8,
    "float8e5m2": 8, "float8e8m0": 8, "float4e2m1": 4}
# What the library's types are to DLPack; packages that know no FP8 read these elements as bytes.
_EXPORTED = {
    "byte": (1, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "float16": (2, 16), "float32": (2, 32),
    "bfloat16": (4, 16), "float8e4m3": (1, 8), "float8e5m2": (1, 8), "float8e8m0": (1, 8)}

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13

Array = Any
"""A Tensor, or anything with ``__dlpack__`` or the buffer protocol."""

Stream = Union[None, int, Any]
"""None, the address of a ``cudaStream_t``, or an object with ``cuda_stream`` (PyTorch) or ``ptr`` (CuPy)."""


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]

_python = ctypes.pythonapi
_capsule_get = _python.PyCapsule_GetPointer
_capsule_get.restype, _capsule_get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_new = _python.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# These run in the destructor of a capsule, where the object has no references: it goes by its address.
_CapsuleDestructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python))

_exported: dict = {}
"""What arrays of other packages read: the memory stays until they say that they are done."""


@_Deleter
def _delete(managed) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


@_CapsuleDestructor
def _forget(capsule) -> None:
    # A capsule that somebody has taken has another name, and its new owner calls the deleter.
    if _capsule_is_valid(capsule, b"dltensor"):
        _exported.pop(_capsule_pointer(capsule, b"dltensor"), None)


def backend_name() -> str:
    """The device that operators run on: "cuda", "cpu", or that of a plugin."""
    return call("nvtex_backend_name").decode()


def _shape_of(shape: Sequence[int]) -> _abi.NVTEShape:
    if len(shape) > 15:
        raise ValueError(f"shape: expected at most 15 dimensions, got {len(shape)}")
    result = _abi.NVTEShape()
    result.ndim = len(shape)
    for i, dim in enumerate(shape):
        result.data[i] = dim
    return result


def stream_of(stream: Stream, *arrays: Array) -> int | None:
    """The address of a stream; without one, the current stream of PyTorch if one of the arrays is its on a GPU."""
    if stream is None:
        for array in arrays:
            if getattr(array, "is_cuda", False) and type(array).__module__.split(".")[0] == "torch":
                import torch

                return torch.cuda.current_stream(array.device).cuda_stream or None
        return None
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return getattr(stream, attribute) or None
    if isinstance(stream, int):
        return stream or None
    raise TypeError(f"stream: expected None, an address, or a stream of PyTorch or CuPy, got {type(stream).__name__}")


class Tensor:
    """
    A tensor as the library sees it.

    Made by `empty`, `zeros` and `array` it has memory of the device, which other packages read without a copy:
    ``numpy.from_dlpack(t)``, ``torch.from_dlpack(t)``. Made by `as_tensor` it refers to the memory of an array of
    another package, which it keeps alive.
    """

    def __init__(self, data: int | None, shape: Sequence[int], dtype: str, owner: Any, scaling: int = 0) -> None:
        self.shape = tuple(int(dim) for dim in shape)
        self.dtype = dtype
        self.data = data
        self._owner = owner
        self._parts: dict[int, Tensor] = {}
        self.handle = call("nvte_create_tensor", scaling)
        self._set(_abi.kNVTERowwiseData, data, self.shape, dtype)

    def _set(self, param: int, data: int | None, shape: Sequence[int], dtype: str) -> None:
        number = number_of("DType", dtype, "dtype")
        buffer = _abi.NVTEBasicTensor(data, number, _shape_of(shape))
        call("nvte_set_tensor_param_v2", self.handle, param, ctypes.byref(buffer), ctypes.sizeof(buffer))

    def _attach(self, param: int, part: Tensor) -> None:
        """Gives the tensor another field, such as its scales."""
        self._set(param, part.data, part.shape, part.dtype)
        self._parts[param] = part

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            quietly("nvte_destroy_tensor", self.handle)

    @property
    def _as_parameter_(self) -> int:
        """What ctypes passes for a tensor, which so lives until the call returns."""
        return self.handle

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.size * _BITS[self.dtype] // 8

    def __repr__(self) -> str:
        return f"nvte.Tensor(shape={self.shape}, dtype={self.dtype!r})"

    def reshape(self, *shape: int) -> Tensor:
        """The same memory with another shape."""
        if math.prod(shape) != self.size:
            raise ValueError(f"reshape: expected {self.size} elements, got shape {shape}")
        return Tensor(self.data, shape, self.dtype, self)

    def astype(self, dtype: str, stream: Stream = None) -> Tensor:
        """A copy in Float32, Float16 or BFloat16."""
        result = empty(self.shape, dtype)
        call("nvte_quantize_v2", self.handle, result.handle, None, stream_of(stream))
        return result

    def tobytes(self, stream: Stream = None) -> bytes:
        """The bytes of the elements, when the work on the stream is done."""
        host = (ctypes.c_char * max(self.nbytes, 1))()
        call("nvtex_memcpy_to_host", host, self.data, self.nbytes, stream_of(stream))
        call("nvtex_stream_synchronize", stream_of(stream))
        return host.raw[: self.nbytes]

    def tolist(self, stream: Stream = None) -> list:
        """The elements as nested lists, when the work on the stream is done."""
        formats = {"byte": "B", "int16": "h", "int32": "i", "int64": "q", "float16": "e", "float32": "f"}
        if self.dtype == "bfloat16":
            return self.astype("float32", stream).tolist(stream)
        view = memoryview(self.tobytes(stream)).cast("B")
        if self.dtype == "float16":
            import struct

            values = list(struct.unpack(f"{self.size}e", view))
        else:
            values = view.cast(formats.get(self.dtype, "B")).tolist()
        for depth in range(len(self.shape) - 1, 0, -1):
            dim, count = self.shape[depth], math.prod(self.shape[:depth])
            values = [values[i * dim:(i + 1) * dim] for i in range(count)]
        return values if self.shape else values[0]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA if backend_name() == "cuda" else _CPU, 0)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None):
        if self.dtype not in _EXPORTED or copy:
            raise BufferError(f"nvte.Tensor: cannot export {self.dtype}" + (" as a copy" if copy else ""))
        managed = _DLManagedTensor()
        dims = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        device_type, device_id = self.__dlpack_device__()
        code, bits = _EXPORTED[self.dtype]
        managed.dl_tensor = _DLTensor(
            self.data, _DLDevice(device_type, device_id), len(self.shape), _DLDataType(code, bits, 1),
            ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64)), None, 0)
        managed.deleter = _delete
        # A consumer works on a stream of its own; what is queued on others must be done before.
        call("nvtex_stream_synchronize", None)
        _exported[ctypes.addressof(managed)] = (managed, dims, self)
        return _capsule_new(ctypes.addressof(managed), b"dltensor", ctypes.cast(_forget, ctypes.c_void_p))


class _Memory:
    """Memory of the device that is freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.address = call("nvtex_malloc", nbytes)

    def __del__(self) -> None:
        if getattr(self, "address", None):
            quietly("nvtex_free", self.address)


def empty(shape: Sequence[int], dtype: str = "float32") -> Tensor:
    """A tensor with memory of the device, whose elements may be anything."""
    if dtype not in _BITS:
        raise ValueError(f"dtype: expected one of {', '.join(_BITS)}, got {dtype!r}")
    memory = _Memory(math.prod(shape) * _BITS[dtype] // 8)
    return Tensor(memory.address, shape, dtype, memory)


def cleared(shape: Sequence[int], dtype: str, stream: int | None) -> Tensor:
    """A tensor with memory of the device whose bytes are 0 for what follows on the stream."""
    result = empty(shape, dtype)
    if result.nbytes:
        call("nvte_memset", result.data, 0, result.nbytes, stream)
    return result


def zeros(shape: Sequence[int], dtype: str = "float32", stream: Stream = None) -> Tensor:
    """A tensor with memory of the device whose bytes are 0: for what follows on the stream, or without one at once."""
    result = cleared(shape, dtype, stream_of(stream))
    if stream is None:
        call("nvtex_stream_synchronize", None)
    return result


def array(values: Any, dtype: str = "float32", stream: Stream = None) -> Tensor:
    """A tensor with memory of the device that has the numbers of nested sequences: for what follows on the stream, or
    without one at once. `dtype` is an integer, or Float32, Float16 or BFloat16."""
    shape = []
    level = values
    while isinstance(level, (list, tuple)):
        shape.append(len(level))
        level = level[0] if level else None
    flat = values if shape else [values]
    for depth, dim in enumerate(shape[1:], 1):
        if any(len(row) != dim for row in flat):
            raise ValueError(f"array: sequences at depth {depth} have different lengths")
        flat = [item for row in flat for item in row]
    types = {"byte": ctypes.c_uint8, "int16": ctypes.c_int16, "int32": ctypes.c_int32, "int64": ctypes.c_int64}
    host_type = types.get(dtype, ctypes.c_float)
    host = (host_type * max(len(flat), 1))(*flat)
    result = empty(shape, dtype if host_type is not ctypes.c_float else "float32")
    call("nvtex_memcpy_to_device", result.data, host, result.nbytes, stream_of(stream))
    result = result if result.dtype == dtype else result.astype(dtype, stream)
    if stream is None:
        call("nvtex_stream_synchronize", None)
    return result


def as_tensor(source: Array, dtype: str | None = None) -> Tensor:
    """
    A tensor over the memory of an array of another package, without a copy.

    `dtype` says what elements are that the other package does not know: bytes may be FP8, integers of 16 bits
    BFloat16.
    """
    if isinstance(source, Tensor):
        return source if dtype in (None, source.dtype) else _renamed(source, dtype)
    if hasattr(source, "__dlpack__"):
        tensor = _from_dlpack(source)
    else:
        tensor = _from_buffer(source)
    return tensor if dtype in (None, tensor.dtype) else _renamed(tensor, dtype)


def _renamed(tensor: Tensor, dtype: str) -> Tensor:
    if _BITS.get(dtype) != _BITS[tensor.dtype]:
        raise ValueError(f"as_tensor: elements of {tensor.dtype} are not of the size of {dtype!r}")
    return Tensor(tensor.data, tensor.shape, dtype, tensor)


def _from_dlpack(source: Any) -> Tensor:
    backend = backend_name()
    device = source.__dlpack_device__()[0] if hasattr(source, "__dlpack_device__") else None
    expected = {"cuda": (_CUDA, _CUDA_MANAGED), "cpu": (_CPU, _CUDA_HOST)}.get(backend)
    if expected and device is not None and int(device) not in expected:
        raise Error(
            f"as_tensor: expected an array on the backend's device ({backend}), got one on device type {int(device)} "
            "of DLPack; NVTE_BACKEND chooses the backend", "invalid_argument")
    if device is not None and int(device) == _CUDA:
        # Work on PyTorch's tensors goes to PyTorch's own stream, so that nothing need wait (-1). What other packages have
        # still to write must be done before the default stream (1) reads it.
        capsule = source.__dlpack__(stream=-1 if type(source).__module__.split(".")[0] == "torch" else 1)
    else:
        capsule = source.__dlpack__()
    managed = ctypes.cast(_capsule_get(capsule, b"dltensor"), ctypes.POINTER(_DLManagedTensor))
    tensor = managed.contents.dl_tensor
    key = (tensor.dtype.code, tensor.dtype.bits)
    if tensor.dtype.lanes != 1 or key not in _DLPACK or _DLPACK[key] == "int8":
        raise TypeError(f"as_tensor: elements of DLPack's type {key} with {tensor.dtype.lanes} lanes are not supported")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    strides = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
    _check_contiguous(shape, strides)
    data = (tensor.data or 0) + tensor.byte_offset
    # The capsule keeps its name: nobody but its destructor frees the memory, when this tensor is gone.
    return Tensor(data or None, shape, _DLPACK[key], (capsule, source))


def _check_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> None:
    step = 1
    for dim, stride in zip(reversed(shape), reversed(strides or [])):
        if dim > 1 and stride != step and math.prod(shape) > 0:
            raise ValueError(f"as_tensor: expected a contiguous array, got shape {shape} with strides {strides}")
        step *= dim


def _from_buffer(source: Any) -> Tensor:
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(
            f"as_tensor: expected an array with __dlpack__ or the buffer protocol, got {type(source).__name__}"
        ) from None
    if backend_name() != "cpu":
        raise Error(f"as_tensor: memory of the host is no memory of the backend {backend_name()}", "invalid_argument")
    if view.readonly:
        raise ValueError("as_tensor: expected memory that may be written, got a read-only buffer")
    if not view.c_contiguous:
        raise ValueError(f"as_tensor: expected a contiguous array, got strides {view.strides}")
    form = view.format.lstrip("@=<")
    dtype = _BUFFER.get(form) or (_INTEGERS.get(view.itemsize) if form in "hilq" else None)
    if dtype is None:
        raise TypeError(f"as_tensor: elements of format {view.format!r} are not supported")
    memory = (ctypes.c_char * view.nbytes).from_buffer(source) if view.nbytes else None
    return Tensor(ctypes.addressof(memory) if memory else None, view.shape, dtype, (memory, source))


def like(source: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
    """A new array of the package that `source` comes from, with its dtype, for an output."""
    package = type(source).__module__.split(".")[0]
    if dtype is None and package == "torch":
        return source.new_empty(tuple(shape))
    if dtype is None and package in ("numpy", "cupy"):
        import importlib

        return importlib.import_module(package).empty(tuple(shape), source.dtype)
    return empty(shape, dtype or as_tensor(source).dtype)


__all__ = ["Array", "Stream", "Tensor", "array", "as_tensor", "backend_name", "empty", "name_of", "zeros"]
