"""Host functions: Python functions that a compiled program calls on its own memory, through XLA's FFI.

XLA calls them through its C interface (``xla/ffi/api/c_api.h``, which only grows); ``ctypes`` replaces the
C code that is usually written for it. ``jax.pure_callback`` would copy every argument and result.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import ml_dtypes
import numpy as np
from jax.interpreters import mlir

from stratagem._src.core.types import DTypeLike, Primitive, Tensor
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["HostFunction", "call_host", "can_pass", "register_host_function"]

HostFunction: TypeAlias = Callable[
    [list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]], str | None
]
"""Takes flat views of the operands and of the results to fill; returns the error, if any.

The views are invalid after it returns.
"""

_DTYPES: dict[int, Any] = {
    1: np.bool_,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.uint8,
    7: np.uint16,
    8: np.uint32,
    9: np.uint64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    15: np.complex64,
    16: ml_dtypes.bfloat16,
    18: np.complex128,
}
"""By their codes in the C interface."""

_DTYPES_BY_NUMBER = {number: np.dtype(dtype) for number, dtype in _DTYPES.items()}
_PASSED = frozenset(_DTYPES_BY_NUMBER.values())

_METADATA_EXTENSION = 1
_EXECUTE_STAGE = 3
_ABORTED = 10
_VERSION = (0, 1)


class _Extension(ctypes.Structure):
    pass


_Extension._fields_ = [
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.POINTER(_Extension)),
]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    ]


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


_CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))


class _Interface(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", _CreateError),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("interface", ctypes.POINTER(_Interface)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("operands", _Buffers),
        ("results", _Buffers),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
    ]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Call))

_handlers: dict[str, Any] = {}
"""Keeps the handlers alive: XLA keeps their bare addresses for the lifetime of the process."""


def can_pass(dtype: DTypeLike) -> bool:
    """Returns whether a host function can take arrays of a dtype."""
    return np.dtype(dtype) in _PASSED


def register_host_function(name: str, function: HostFunction) -> None:
    """Registers a host function for programs on CPU, permanently. Each name can be registered once."""
    if name in _handlers:
        raise ValueError(f"The host function {name!r} is already registered.")

    def handle(pointer: Any) -> int | None:
        call = pointer.contents
        # XLA first asks for the metadata of a handler, and calls it in other stages than execution too.
        if call.extension:
            _describe(call.extension)
            return None
        if call.stage != _EXECUTE_STAGE:
            return None
        try:
            problem = function(_views(call.operands), _views(call.results))
        except BaseException as error:
            problem = repr(error)
        return None if problem is None else _error(call.interface.contents, problem)

    _handlers[name] = handler = _Handler(handle)
    address = ctypes.cast(handler, ctypes.c_void_p).value
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform="cpu", api_version=1)


def call_host(
    name: str,
    results: Sequence[jax.ShapeDtypeStruct],
    *operands: Tensor,
    in_place: dict[int, int] | None = None,
) -> list[Any]:
    """Calls a host function inside a program, once for each run of the program.

    Args:
        name: The name of the function.
        results: The shapes and dtypes of its results.
        *operands: Its operands.
        in_place: From the position of an operand to that of the result that may alias it.
    """
    aliases = tuple((in_place or {}).items())
    return list(_host_call().bind(*operands, name=name, results=tuple(results), aliases=aliases))


@functools.cache
def _host_call() -> Primitive:
    # XLA must know of the side effect: it could otherwise compute both branches of a condition. JAX must
    # not: jax.ffi.ffi_call(has_side_effect=True) makes an effect of it, and every call of a program with
    # effects takes JAX's slow path in Python, 0.1 ms. JAX then removes calls whose results are unused.
    primitive = jax_core().Primitive("host_call")
    primitive.multiple_results = True
    primitive.def_abstract_eval(_result_types)
    mlir.register_lowering(primitive, _lower, platform="cpu")
    return primitive


def _result_types(
    *operands: Any, name: str, results: tuple[jax.ShapeDtypeStruct, ...], aliases: Any
) -> list[Any]:
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in results]


def _lower(context: Any, *operands: Any, name: str, results: Any, aliases: Any) -> Any:
    rule: Any = jax.ffi.ffi_lowering(
        name, has_side_effect=True, operand_output_aliases=dict(aliases)
    )
    return rule(context, *operands)


def _describe(extension: Any) -> None:
    if extension.contents.type == _METADATA_EXTENSION:
        metadata = ctypes.cast(extension, ctypes.POINTER(_MetadataExtension)).contents.metadata
        metadata.contents.version.major, metadata.contents.version.minor = _VERSION
        metadata.contents.traits = 0


def _views(buffers: Any) -> list[np.ndarray[Any, Any]]:
    return [_view(buffers.buffers[i].contents) for i in range(buffers.count)]


def _view(buffer: Any) -> np.ndarray[Any, Any]:
    dtype = _DTYPES_BY_NUMBER[buffer.dtype]
    size = dtype.itemsize
    for i in range(buffer.rank):
        size *= buffer.dims[i]
    if not size:
        return np.empty(0, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(buffer.data), dtype)


def _error(interface: Any, message: str) -> int | None:
    arguments = _ErrorArguments(
        ctypes.sizeof(_ErrorArguments), None, message.encode(errors="replace"), _ABORTED
    )
    made: int | None = interface.create_error(ctypes.byref(arguments))
    return made
