"""The shared library, and its failing calls as exceptions."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path

from . import _abi


class Error(RuntimeError):
    """A call of the library that has failed; its outputs are as they were."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status
        """``invalid_argument``, ``unsupported``, ``device_error`` or ``internal_error``."""


def _open() -> ctypes.CDLL:
    """Opens the file in NVTE_LIBRARY, else the one beside this package, else the one that the system's loader finds."""
    named = os.environ.get("NVTE_LIBRARY")
    beside = Path(__file__).parent / "lib" / "libnvte.so.0"
    candidates = [named] if named else [str(beside)] if beside.exists() else ["libnvte.so.0", "libnvte.so"]
    reasons = []
    for candidate in candidates:
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError("libnvte.so was not found: set NVTE_LIBRARY to its path (" + "; ".join(reasons) + ")")


_LIBRARY = _open()
_STATUS = {number: name for name, number in _abi.ENUMS["Status"].items()}


def _function(name: str):
    function = getattr(_LIBRARY, name)
    function.restype, function.argtypes = _abi.FUNCTIONS[name]
    return function


_error_count = _function("nvtex_error_count")
_last_status = _function("nvtex_last_status")
_take_error = _function("nvtex_take_error")
_functions: dict = {}


def call(name: str, *arguments):
    """Calls a C function by its name. Raises Error if it fails; an error that this thread had before stays."""
    function = _functions.get(name)
    if function is None:
        function = _functions[name] = _function(name)
    before = _error_count()
    result = function(*arguments)
    if _error_count() != before:
        status = _STATUS.get(_last_status(), "internal_error")
        message = _take_error(before) or b"the library gave no message"
        raise Error(message.decode(errors="replace"), status)
    return result


def quietly(name: str, handle) -> None:
    """Calls a function that destroys, from a destructor: there is nobody to tell."""
    try:
        call(name, handle)
    except Exception:  # noqa: BLE001 - also what is missing while the interpreter ends
        pass


# A C++ exception cannot pass through Python: with this mode failing calls return, and `call` raises.
_function("nvtex_set_error_mode")(_abi.NVTEX_ERROR_RETURN)

_numbers = {name: values for name, values in _abi.ENUMS.items()}


def number_of(enum: str, value: str | int, what: str) -> int:
    """The number of a value of an enumeration, which may be its name."""
    values = _numbers[enum]
    if isinstance(value, str) and value.lower() in values:
        return values[value.lower()]
    if isinstance(value, int) and value in values.values():
        return int(value)
    raise ValueError(f"{what}: expected one of {', '.join(values)}, got {value!r}")


def name_of(enum: str, number: int) -> str:
    """The name of a value of an enumeration."""
    return next((name for name, value in _numbers[enum].items() if value == number), str(number))
