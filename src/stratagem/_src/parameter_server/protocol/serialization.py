"""Serializes functions, arguments and results with ``cloudpickle``; large arrays are stored separately.

A payload is sent later, and perhaps more than once, so writable arrays are copied; read-only and JAX
arrays are not. ``unpack`` must only be given payloads of authenticated peers: a pickle can run any code.
"""

from __future__ import annotations

import io
import pickle
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ShippingError
from stratagem._src.core.owned_memory import owned
from stratagem._src.core.types import DTypeLike, Picklable
from stratagem._src.execution.function import Function
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

__all__ = [
    "MAX_INLINE_BYTES",
    "ByReference",
    "Payload",
    "ResultSnapshot",
    "complete",
    "pack",
    "pack_and_list",
    "register_reducer",
    "serialize",
    "unpack",
    "unpicklable_part_error",
]

MAX_INLINE_BYTES = 64 * 1024
"""Arrays up to this size stay in the pickle; results up to this size are sent with the report."""

_FIRST_ADDED_DTYPE = 256

# What many functions return. A plain pickler takes a fifth of the time of one with reducers.
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})

# A compiled function arrives as one object however often it is sent; otherwise a function that several
# steps capture would be compiled once for each of them.
_sent_functions: weakref.WeakKeyDictionary[Function, str] = weakref.WeakKeyDictionary()
_received_functions: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
_functions_lock = threading.RLock()  # reentrant: a signal handler may interrupt its holder


_reducers: list[Callable[[Any], Any]] = []
_completers: list[Callable[[Sequence[Any]], bool]] = []


def register_reducer(
    reduce: Callable[[Any], Any], complete: Callable[[Sequence[Any]], bool] | None = None
) -> None:
    """Pickles objects of another library in a form of its own.

    Args:
        reduce: Returns a reduce value, as ``object.__reduce__`` does, or ``NotImplemented``.
        complete: Creates what objects that ``reduce`` took lack, and returns whether it changed any;
            called by ``complete``.
    """
    _reducers.append(reduce)
    if complete is not None:
        _completers.append(complete)


class ByReference:
    """Base of objects that are sent by reference: a worker is told which of its objects to use."""


class Payload(NamedTuple):
    """A serialized object.

    Args:
        data: The pickle.
        buffers: The memory of large arrays, which are not in the pickle.
        references: The referenced objects, in the order of their persistent ids in the pickle.
    """

    data: bytes
    buffers: tuple[np.ndarray[Any, Any], ...] = ()
    references: tuple[ByReference, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The total size."""
        return len(self.data) + sum(buffer.nbytes for buffer in self.buffers)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles JAX arrays, compiled functions and distributed values in a process-independent form."""

    def reducer_override(self, obj: Picklable) -> Any:
        if isinstance(obj, jax.Array):
            return _reduce_array(obj)
        if isinstance(obj, Function):
            return _reduce_function(obj)
        if isinstance(obj, PerReplica):
            return PerReplica, (obj.values,)
        if isinstance(obj, Mirrored):
            return _reduce_array(obj.values[0])
        for reduce in _reducers:
            reduced = reduce(obj)
            if reduced is not NotImplemented:
                self.note_reduced(obj)
                return reduced
        return super().reducer_override(obj)

    def note_reduced(self, obj: Picklable) -> None:
        """Called with each object that is pickled in the form of a registered reducer."""


class _PayloadPickler(_Pickler):
    def __init__(self, file: io.BytesIO, *, copy: bool) -> None:
        self.buffers: list[np.ndarray[Any, Any]] = []
        self.references: dict[int, tuple[int, ByReference]] = {}
        self.reduced: list[Any] = []
        # Not a bound method: that would be a reference cycle, which keeps all pickled objects alive until
        # the garbage collector runs.
        super().__init__(file, protocol=5, buffer_callback=_buffer_callback(self.buffers, copy))

    def persistent_id(self, obj: Picklable) -> int | None:
        if not isinstance(obj, ByReference):
            return None
        return self.references.setdefault(id(obj), (len(self.references), obj))[0]

    def note_reduced(self, obj: Picklable) -> None:
        self.reduced.append(obj)


class _SnapshotPickler(_Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        self.arrays: list[jax.Array] = []
        super().__init__(file, protocol=5)

    def persistent_id(self, obj: Picklable) -> int | None:
        if not isinstance(obj, jax.Array):
            return None
        self.arrays.append(obj)
        return len(self.arrays) - 1


def _buffer_callback(
    buffers: list[np.ndarray[Any, Any]], copy: bool
) -> Callable[[pickle.PickleBuffer], bool]:
    def take(buffer: pickle.PickleBuffer) -> bool:
        """Returns whether the buffer stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes <= MAX_INLINE_BYTES:
            return True
        memory = np.frombuffer(raw, np.uint8)
        buffers.append(owned(memory) if copy else memory)
        return False

    return take


class _Unpickler(pickle.Unpickler):
    def __init__(self, payload: Payload, resolved: Iterable[Any], *, as_jax: bool) -> None:
        super().__init__(io.BytesIO(payload.data), buffers=payload.buffers)
        self._resolved = list(resolved)
        self._as_jax = as_jax

    def persistent_load(self, pid: int) -> Any:
        return self._resolved[pid]

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _restore_numpy_array if found is _restore_jax_array and not self._as_jax else found


def pack(obj: Picklable, *, copy: bool = True) -> Payload:
    """Serializes an object. JAX arrays are copied from their devices.

    Args:
        obj: The object.
        copy: Whether to copy writable arrays; if not, they must not change while the payload is in use.

    Raises:
        Exception: Any error of pickling; ``unpicklable_part_error`` finds the part that caused it.
    """
    return pack_and_list(obj, copy=copy)[0]


def pack_and_list(obj: Picklable, *, copy: bool = True) -> tuple[Payload, list[Any]]:
    """Serializes an object as ``pack``; also returns the objects in it that registered reducers took."""
    if type(obj) in _PLAIN_TYPES:
        return Payload(pickle.dumps(obj, protocol=5)), []
    file = io.BytesIO()
    pickler = _PayloadPickler(file, copy=copy)
    pickler.dump(obj)
    references = tuple(reference for _, reference in pickler.references.values())
    return Payload(file.getvalue(), tuple(pickler.buffers), references), pickler.reduced


def complete(reduced: Sequence[Any]) -> bool:
    """Creates what objects lack that are sent to workers, and that only the coordinator can create.

    Args:
        reduced: The objects that registered reducers took.

    Returns:
        Whether any has changed.
    """
    changed = [complete_some(reduced) for complete_some in _completers]
    return any(changed)


def serialize(obj: Picklable) -> bytes:
    """Returns an object as one pickle, with its arrays in it."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(obj)
    return file.getvalue()


def unpack(payload: Payload, resolved: Iterable[Any] = (), *, as_jax: bool = True) -> Any:
    """Deserializes a payload.

    Args:
        payload: From ``pack``.
        resolved: The objects to substitute for the payload's references.
        as_jax: Whether JAX arrays are restored as JAX arrays, on the default device, or as NumPy arrays.
    """
    return _Unpickler(payload, resolved, as_jax=as_jax).load()


class ResultSnapshot:
    """A snapshot of an object in this process: JAX arrays are kept as they are, the rest is pickled.

    The function that returned the object may change it later, and each ``get`` returns a new copy.

    >>> import numpy as np
    >>> table = np.zeros(2)
    >>> snapshot = ResultSnapshot({"table": table})
    >>> table += 1
    >>> snapshot.get()
    {'table': array([0., 0.])}
    """

    __slots__ = ("_arrays", "_data")

    def __init__(self, obj: Picklable) -> None:
        file = io.BytesIO()
        pickler = _SnapshotPickler(file)
        pickler.dump(obj)
        self._arrays = pickler.arrays
        self._data = file.getvalue()

    def get(self) -> Any:
        """Returns a copy of the object."""
        return _Unpickler(Payload(self._data), self._arrays, as_jax=True).load()


def unpicklable_part_error(
    parts: Iterable[tuple[str, Any]], error: Exception, fix: str
) -> ShippingError:
    """Returns an error that names the part of an object that cannot be pickled.

    Args:
        parts: The parts, each with its name for the user.
        error: The error of pickling the whole object.
        fix: What the user can do.

    Raises:
        Exception: ``error`` itself, if a signal handler raised it: it says nothing about the object.
    """
    if is_raised_by_signal_handler(error):
        raise error
    for name, part in parts:
        try:
            pack(part)
        except Exception as reason:
            return ShippingError(
                f"{name} must be picklable with cloudpickle to be sent to another process, got a "
                f"{type(part).__qualname__}, which raised {type(reason).__name__}: {reason}. {fix}"
            )
    return ShippingError(f"The object cannot be sent to another process: {error!r}. {fix}")


def _reduce_function(function: Function) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    with _functions_lock:
        name = _sent_functions.setdefault(function, uuid.uuid4().hex)
    make, arguments = function.__reduce__()
    return _restore_function, (name, make, arguments)


def _restore_function(
    name: str, make: Callable[..., Function], arguments: tuple[Any, ...]
) -> Function:
    with _functions_lock:
        known = _received_functions.get(name)
    if known is not None:
        return known
    made = make(*arguments)
    # A method holds its instance weakly, and nothing else in this process may keep the instance alive.
    made.__dict__["_made_from"] = arguments
    with _functions_lock:
        return _received_functions.setdefault(name, made)


def _reduce_array(array: jax.Array) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if not isinstance(array.dtype, np.dtype):  # a PRNG key array, with an extended dtype
        implementation = str(jax.random.key_impl(array))
        return _restore_keys, (implementation, np.asarray(jax.random.key_data(array)))
    host = np.asarray(array)
    if host.dtype.num < _FIRST_ADDED_DTYPE:
        return _restore_jax_array, (host,)
    # Dtypes such as bfloat16 do not support pickle's out-of-band buffers: send the bytes.
    flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    return _restore_jax_array, (flat, host.dtype, host.shape)


def _restore_numpy_array(
    host: np.ndarray[Any, Any], dtype: DTypeLike = None, shape: tuple[int, ...] = ()
) -> np.ndarray[Any, Any]:
    return host if dtype is None else host.view(dtype).reshape(shape)


def _restore_jax_array(
    host: np.ndarray[Any, Any], dtype: DTypeLike = None, shape: tuple[int, ...] = ()
) -> jax.Array:
    return jnp.asarray(_restore_numpy_array(host, dtype, shape))


def _restore_keys(implementation: str, data: np.ndarray[Any, Any]) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation)
