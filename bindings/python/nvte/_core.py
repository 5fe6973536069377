"""Recipes, contexts, and what all modules have in common."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from . import _abi
from ._library import call, name_of, number_of, quietly
from ._tensor import Array, Stream, Tensor, as_tensor, empty, like, stream_of, zeros


def set_fields(config: Any, values: Mapping[str, Any], where: str) -> None:
    """Sets the fields of a config that are not None; mappings set those of a config inside of it."""
    fields = dict(config._fields_)
    for name, value in values.items():
        if value is None:
            continue
        if name not in fields or name in ("struct_size", "reserved"):
            known = ", ".join(name for name in fields if name not in ("struct_size", "reserved"))
            raise TypeError(f"{where}: unknown field {name!r}; there are {known}")
        what = f"{where}.{name}"
        if isinstance(value, Mapping):
            if not hasattr(fields[name], "_fields_"):
                raise TypeError(f"{what}: expected {fields[name].__name__}, got a mapping")
            set_fields(getattr(config, name), value, what)
        elif name in config._enums_:
            setattr(config, name, number_of(config._enums_[name], value, what))
        elif fields[name] is ctypes.c_void_p and isinstance(value, Module):
            setattr(config, name, value.handle)
        elif fields[name] is ctypes.c_char_p:
            setattr(config, name, value.encode())
        else:
            try:
                setattr(config, name, value)
            except TypeError as error:
                raise TypeError(f"{what}: {error}") from None


class Recipe:
    """
    How operands of matrix products are scaled: "delayed_scaling", "current_scaling", "block_scaling" or "mxfp8".

    Other arguments are the fields of `NVTEXRecipeConfig`, such as ``amax_history_len=16`` and ``format="e4m3"``;
    ``input``, ``weight`` and ``grad_output`` are mappings.
    """

    def __init__(self, kind: str, **fields: Any) -> None:
        config = _abi.NVTEXRecipeConfig()
        number = number_of("RecipeKind", kind, "kind")
        call("nvtex_recipe_config_init", ctypes.byref(config), ctypes.sizeof(config), number)
        set_fields(config, fields, "Recipe")
        self.kind = kind
        self.handle = call("nvtex_recipe_create", ctypes.byref(config))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            quietly("nvtex_recipe_destroy", self.handle)


class Context:
    """All state of FP8 training that modules share. A context is for one thread at a time."""

    def __init__(self, **fields: Any) -> None:
        config = _abi.NVTEXContextConfig()
        call("nvtex_context_config_init", ctypes.byref(config), ctypes.sizeof(config))
        set_fields(config, fields, "Context")
        self.handle = call("nvtex_context_create", ctypes.byref(config))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            quietly("nvtex_context_destroy", self.handle)

    @contextmanager
    def autocast(
        self, recipe: Recipe, *, calibrating: bool = False, quantized_weights: bool = False
    ) -> Iterator[None]:
        """
        In this region forward passes and creations follow the recipe.

        `calibrating` computes in high precision and collects the maxima of delayed scaling; with `quantized_weights`
        modules that are created keep their weights in the recipe's format alone.
        """
        flags = _abi.NVTEX_CONTEXT_CALIBRATING if calibrating else _abi.NVTEX_CONTEXT_ENABLED
        flags |= _abi.NVTEX_CONTEXT_QUANTIZED_WEIGHTS if quantized_weights else 0
        call("nvtex_context_begin", self.handle, recipe.handle, flags, None)
        try:
            yield
        finally:
            call("nvtex_context_end", self.handle)

    def forward_update(self, stream: Stream = None) -> None:
        """Updates the scales that forward passes use, after those of a step."""
        call("nvtex_context_forward_update", self.handle, stream_of(stream))

    def backward_update(self, stream: Stream = None) -> None:
        """Updates the scales that backward passes use, after those of a step."""
        call("nvtex_context_backward_update", self.handle, stream_of(stream))

    def save(self, stream: Stream = None) -> bytes:
        """The state of delayed scaling of all layers, by name."""
        size = call("nvtex_context_state_size", self.handle)
        buffer = (ctypes.c_char * max(size, 1))()
        written = call("nvtex_context_save", self.handle, buffer, size, stream_of(stream))
        return buffer.raw[:written]

    def load(self, state: bytes, stream: Stream = None) -> None:
        """Restores what `save` returned."""
        buffer = ctypes.create_string_buffer(state, max(len(state), 1))
        call("nvtex_context_load", self.handle, buffer, len(state), stream_of(stream))

    def trim(self, bytes_to_keep: int = 0) -> int:
        """Gives unused memory back to the device, and returns the bytes that went back."""
        return call("nvtex_context_trim", self.handle, bytes_to_keep)


class Tape:
    """What a backward pass needs."""

    def __init__(self, handle: int, tensors: Sequence[Tensor | None], inputs: Sequence[Array]) -> None:
        self.handle = handle
        # The library refers to their memory.
        self._tensors = tensors
        self._inputs = inputs

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            quietly("nvtex_tape_destroy", self.handle)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a module."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    quantized: bool
    """The value exists in FP8 alone."""


def _handles(tensors: Sequence[Tensor | None]) -> ctypes.Array:
    handles = [tensor.handle if tensor is not None else None for tensor in tensors]
    return (ctypes.c_void_p * max(len(handles), 1))(*handles)


def _arrays(value: Any) -> list[Array]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


class Module:
    """A module of any kind."""

    _config: Any
    _init: str
    _create: str

    def _make(self, context: Context, stream: Stream, fields: Mapping[str, Any]) -> None:
        config = self._config()
        call(self._init, ctypes.byref(config), ctypes.sizeof(config))
        set_fields(config, fields, type(self).__name__)
        self._settings = config
        self._adopt(context, call(self._create, context.handle, ctypes.byref(config), stream_of(stream)))
        if stream is None:
            # Initial values are there before a pass on any stream reads them.
            call("nvtex_stream_synchronize", None)

    def _adopt(self, context: Context, handle: int) -> None:
        self.context = context
        self._values: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self.handle = handle
        count = call("nvtex_module_num_parameters", self.handle)
        self.parameters = [self._parameter(index) for index in range(count)]
        self._index = {parameter.name: parameter.index for parameter in self.parameters}

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            quietly("nvtex_module_destroy", self.handle)

    def _raw_parameter(self, index: int) -> _abi.NVTEXParameter:
        raw = _abi.NVTEXParameter()
        raw.struct_size = ctypes.sizeof(raw)
        call("nvtex_module_parameter", self.handle, index, ctypes.byref(raw))
        return raw

    def _parameter(self, index: int) -> Parameter:
        raw = self._raw_parameter(index)
        shape = tuple(raw.shape.data[: raw.shape.ndim])
        return Parameter(index, raw.name.decode(), shape, name_of("DType", raw.dtype), raw.quantized)

    def _number(self, parameter: int | str) -> int:
        if isinstance(parameter, str):
            if parameter not in self._index:
                raise KeyError(f"{type(self).__name__} has no parameter {parameter!r}; it has {', '.join(self._index)}")
            return self._index[parameter]
        return parameter

    # Values and gradients

    def bind(self, parameter: int | str, value: Array) -> None:
        """Binds the value of a parameter to an array of its shape and dtype, which every pass reads from then on."""
        index, tensor = self._number(parameter), as_tensor(value)
        call("nvtex_module_set_parameter", self.handle, index, tensor.handle)
        self._values[index] = tensor

    def assign(self, parameter: int | str, value: Array, stream: Stream = None) -> None:
        """Copies an array to the value of a parameter, and casts it."""
        index, tensor = self._number(parameter), as_tensor(value)
        call("nvtex_module_assign_parameter", self.handle, index, tensor.handle, stream_of(stream, value))

    def value(self, parameter: int | str, dtype: str = "float32", stream: Stream = None) -> Tensor:
        """A copy of the value of a parameter in Float32, Float16 or BFloat16."""
        index = self._number(parameter)
        raw, result = self._raw_parameter(index), empty(self.parameters[index].shape, dtype)
        if raw.quantized:
            call("nvte_dequantize", raw.value, result.handle, stream_of(stream))
        else:
            call("nvte_quantize_v2", raw.value, result.handle, None, stream_of(stream))
        return result

    def bind_gradient(self, parameter: int | str, grad: Array | None, accumulate: bool = False) -> None:
        """Binds the gradient of a parameter to an array of its shape, of its dtype or Float32. Backward passes write
        there, or add if `accumulate`. None: no gradient is computed."""
        index, tensor = self._number(parameter), None if grad is None else as_tensor(grad)
        call("nvtex_module_set_gradient", self.handle, index, tensor and tensor.handle, accumulate)
        if tensor is None:
            self._gradients.pop(index, None)
        else:
            self._gradients[index] = tensor

    def make_gradients(self, dtype: str = "float32", accumulate: bool = False) -> dict[str, Tensor]:
        """Binds a new tensor to each parameter's gradient, and returns them by name."""
        gradients = {parameter.name: zeros(parameter.shape, dtype) for parameter in self.parameters}
        for name, gradient in gradients.items():
            self.bind_gradient(name, gradient, accumulate)
        return gradients

    def precision(self, parameter: int | str, role: str = "weight") -> tuple[str, str]:
        """Scaling and dtype with which an operand ("input", "weight", "grad_output") of the products of a weight was
        cast in the last forward pass."""
        choice = _abi.NVTEXSlotChoice()
        number = number_of("Role", role, "role")
        call("nvtex_module_precision", self.handle, self._number(parameter), number, ctypes.byref(choice))
        return name_of("SlotScaling", choice.scaling), name_of("DType", choice.dtype)

    # Passes

    def output_shape(self, *shapes: Sequence[int]) -> tuple[int, ...]:
        """The shape of the output for inputs of these shapes."""
        config = self._settings
        if isinstance(config, _abi.NVTEXEmbeddingConfig):
            return (*shapes[0], config.hidden_size)
        if isinstance(config, _abi.NVTEXLMHeadConfig):
            return (1,)  # the mean loss
        config = config.linear if hasattr(config, "linear") else config
        if hasattr(config, "out_features"):
            return (*shapes[0][:-1], config.out_features)
        if isinstance(config, _abi.NVTEXAttentionConfig):
            return (*shapes[0][:-2], shapes[0][-2] * (config.head_dim_v or config.head_dim_qk))
        return tuple(shapes[0])

    def _output(self, inputs: Sequence[Array], shapes: Sequence[Sequence[int]]) -> Array:
        """An array for the first output."""
        config = self._settings
        if isinstance(config, _abi.NVTEXEmbeddingConfig):
            return empty(self.output_shape(*shapes), name_of("DType", config.dtype))
        if isinstance(config, _abi.NVTEXLMHeadConfig):
            return empty(self.output_shape(*shapes))
        return like(inputs[0], self.output_shape(*shapes))

    def forward(self, *inputs: Array, out: Any = None, stream: Stream = None, **step: Any) -> tuple[Any, Tape]:
        """
        Runs the forward pass, and returns the output and a tape for `backward`.

        The output is an array of the package of the first input, or `out`, or the several of a tuple `out`. The tape
        refers to inputs and outputs, which must stay as they are until the backward pass is done.

        Other arguments are the fields of `NVTEXStep`: ``microbatch="first"``, ``rotary_frequencies=array``,
        ``m_splits=[3, 5]``, ...
        """
        handle = ctypes.c_void_p()
        output, tensors = self._run(inputs, out, step, ctypes.byref(handle), stream)
        return output, Tape(handle.value, tensors, inputs)

    def __call__(self, *inputs: Array, out: Any = None, stream: Stream = None, **step: Any) -> Any:
        """Runs the forward pass alone, and returns the output."""
        return self._run(inputs, out, step, None, stream)[0]

    def _run(self, inputs: Sequence[Array], out: Any, step: Mapping[str, Any], tape: Any, stream: Stream) -> Any:
        tensors = [None if array is None else as_tensor(array) for array in inputs]
        if not tensors or tensors[0] is None:
            raise TypeError(f"{type(self).__name__}: expected an input")
        if out is None:
            shapes = [tensor.shape for tensor in tensors if tensor is not None]
            out = self._output(inputs, shapes)
        outputs = [None if array is None else as_tensor(array) for array in _arrays(out)]
        options, kept = _step(step)
        call(
            "nvtex_module_forward", self.handle, _handles(tensors), len(tensors), _handles(outputs), len(outputs),
            ctypes.byref(options), tape, stream_of(stream, *inputs))
        return out, [*tensors, *outputs, *kept]

    def backward(
        self, tape: Tape, *grad_outputs: Array, needs_input_grad: bool = True, out: Any = None, stream: Stream = None
    ) -> Any:
        """
        Runs the backward pass: writes the gradients of parameters that are bound, and returns those of the inputs (a
        tuple if there are several).

        The gradients are arrays of the package of the inputs, or `out`. Without `needs_input_grad` there are none.
        """
        grads = [None if array is None else as_tensor(array) for array in grad_outputs]
        if out is None and needs_input_grad:
            out = tuple(None if x is None else like(x, as_tensor(x).shape) for x in tape._inputs)
            out = out[0] if len(out) == 1 else out
        outputs = [None if x is None else as_tensor(x) for x in _arrays(out)] if needs_input_grad else []
        call(
            "nvtex_module_backward", self.handle, tape.handle, _handles(grads), len(grads), _handles(outputs),
            len(outputs), stream_of(stream, *grad_outputs))
        return out if needs_input_grad else None


class Sequential(Module):
    """
    Modules in a row: the first output of each is the first input of the next.

    Inputs are those of the first module, followed by those of the last one but its first; outputs are those of the
    last one. Parameters are those of all modules, with the name of the part in front: ``layer0.weight``.
    """

    def __init__(self, context: Context, parts: Mapping[str, Module]) -> None:
        self._parts = list(parts.values())
        names = (ctypes.c_char_p * max(len(parts), 1))(*(name.encode() for name in parts))
        handles = (ctypes.c_void_p * max(len(parts), 1))(*(part.handle for part in self._parts))
        self._adopt(context, call("nvtex_sequential_create", context.handle, handles, names, len(parts)))

    def output_shape(self, *shapes: Sequence[int]) -> tuple[int, ...]:
        shape = self._parts[0].output_shape(*shapes)
        for part in self._parts[1:]:
            shape = part.output_shape(shape)
        return shape

    def _output(self, inputs: Sequence[Array], shapes: Sequence[Sequence[int]]) -> Array:
        output = self._parts[0]._output(inputs, shapes)
        for part in self._parts[1:]:
            output = part._output([output], [as_tensor(output).shape])
        return output


def _step(fields: Mapping[str, Any]) -> tuple[_abi.NVTEXStep, list]:
    """The options of a pass, and what they point to."""
    options = _abi.NVTEXStep()
    call("nvtex_step_init", ctypes.byref(options), ctypes.sizeof(options))
    kept: list = []
    plain = {}
    types = dict(options._fields_)
    for name, value in fields.items():
        if name == "m_splits":
            splits = (ctypes.c_size_t * max(len(value), 1))(*value)
            options.m_splits, options.num_splits = ctypes.addressof(splits), len(value)
            kept.append(splits)
        elif value is not None and types.get(name) is ctypes.c_void_p:
            tensor = as_tensor(value)
            setattr(options, name, tensor.handle)
            kept.append(tensor)
        else:
            plain[name] = value
    set_fields(options, plain, "step")
    return options, kept


def rotary_frequencies(length: int, dim: int, stream: Stream = None, **fields: Any) -> Tensor:
    """Angles of rotary embeddings, Float32 ``[length, 1, 1, dim]``; other arguments are the fields of
    `NVTEXRotaryConfig`."""
    config = _abi.NVTEXRotaryConfig()
    call("nvtex_rotary_config_init", ctypes.byref(config), ctypes.sizeof(config))
    set_fields(config, fields, "rotary_frequencies")
    result = empty((length, 1, 1, dim))
    call("nvtex_rotary_frequencies", result.handle, ctypes.byref(config), stream_of(stream))
    return result
