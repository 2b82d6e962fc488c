"""From objects to what travels and back: functions, arguments and results.

Everything goes through ``cloudpickle``, large arrays beside the pickle. These are sent later, and perhaps
more than once, so those that somebody else can write to are copied; read-only and JAX arrays are not. Only
peers that have proved who they are may be given to ``unpack``: a pickle can run anything.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ShippingError
from stratagem._src.core.owned_memory import owned
from stratagem._src.execution.function import Function
from stratagem._src.parameter_server.protocol.shipped_functions import reduce_function
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

__all__ = [
    "LARGEST_INLINE_BYTES",
    "ByReference",
    "KeptValue",
    "Parcel",
    "check_parts",
    "pack",
    "unpack",
]

LARGEST_INLINE_BYTES = 64 * 1024
"""Arrays up to this size travel inside the pickle; results up to it with the report of success."""

_FIRST_ADDED_DTYPE = 256


class ByReference:
    """Base of objects that stay where they are: a worker is told which one it is to use."""


class Parcel(NamedTuple):
    """An object ready to travel.

    Args:
        data: The pickle.
        buffers: Memory of large arrays, beside it.
        references: What the object refers to, in the order of its numbers in the pickle.
    """

    data: bytes
    buffers: tuple[np.ndarray[Any, Any], ...] = ()
    references: tuple[ByReference, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The size of everything."""
        return len(self.data) + sum(buffer.nbytes for buffer in self.buffers)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what is peculiar to us as every process understands it."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, jax.Array):
            return _reduce_array(obj)
        if isinstance(obj, Function):
            return reduce_function(obj)
        if isinstance(obj, PerReplica):
            return PerReplica, (obj.values,)
        if isinstance(obj, Mirrored):
            return _reduce_array(obj.values[0])
        return super().reducer_override(obj)


class _ShippingPickler(_Pickler):
    def __init__(self, file: io.BytesIO, *, copy: bool) -> None:
        self.buffers: list[np.ndarray[Any, Any]] = []
        self.references: dict[int, tuple[int, ByReference]] = {}
        # Not a method: the pickler would refer to itself, and keep what it has pickled for long.
        super().__init__(file, protocol=5, buffer_callback=_taker(self.buffers, copy))

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, ByReference):
            return None
        return self.references.setdefault(id(obj), (len(self.references), obj))[0]


class _KeepingPickler(_Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        self.arrays: list[jax.Array] = []
        super().__init__(file, protocol=5)

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, jax.Array):
            return None
        self.arrays.append(obj)
        return len(self.arrays) - 1


def _taker(
    buffers: list[np.ndarray[Any, Any]], copy: bool
) -> Callable[[pickle.PickleBuffer], bool]:
    def take(buffer: pickle.PickleBuffer) -> bool:
        """Returns whether the buffer is to stay in the pickle."""
        raw = buffer.raw()
        if raw.nbytes <= LARGEST_INLINE_BYTES:
            return True
        memory = np.frombuffer(raw, np.uint8)
        buffers.append(owned(memory) if copy else memory)
        return False

    return take


class _Unpickler(pickle.Unpickler):
    def __init__(self, parcel: Parcel, resolved: Iterable[Any], *, as_jax: bool) -> None:
        super().__init__(io.BytesIO(parcel.data), buffers=parcel.buffers)
        self._resolved = list(resolved)
        self._as_jax = as_jax

    def persistent_load(self, pid: int) -> Any:
        return self._resolved[pid]

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _restore_numpy_array if found is _restore_jax_array and not self._as_jax else found


def pack(obj: Any, *, copy: bool = True) -> Parcel:
    """Returns an object as a parcel. JAX arrays are copied from their devices.

    Args:
        obj: The object.
        copy: Whether it is taken as it is now; else nobody may change it as long as the parcel is used.

    Raises:
        Exception: Whatever pickling raises; ``check_parts`` finds out which part it was.
    """
    file = io.BytesIO()
    pickler = _ShippingPickler(file, copy=copy)
    pickler.dump(obj)
    references = tuple(reference for _, reference in pickler.references.values())
    return Parcel(file.getvalue(), tuple(pickler.buffers), references)


def unpack(parcel: Parcel, resolved: Iterable[Any] = (), *, as_jax: bool = True) -> Any:
    """Returns the object of a parcel.

    Args:
        parcel: From ``pack``.
        resolved: What takes the place of each of the parcel's references.
        as_jax: Whether JAX arrays come back as JAX arrays, on the default device, or as NumPy's.
    """
    return _Unpickler(parcel, resolved, as_jax=as_jax).load()


class KeptValue:
    """An object as it was, for a process that keeps it: JAX arrays themselves, all else pickled.

    So whoever made the object may go on changing it, and everybody who asks for it gets one of its own.

    >>> import numpy as np
    >>> table = np.zeros(2)
    >>> kept = KeptValue({"table": table})
    >>> table += 1
    >>> kept.get()
    {'table': array([0., 0.])}
    """

    __slots__ = ("_arrays", "_data")

    def __init__(self, obj: Any) -> None:
        file = io.BytesIO()
        pickler = _KeepingPickler(file)
        pickler.dump(obj)
        self._arrays = pickler.arrays
        self._data = file.getvalue()

    def get(self) -> Any:
        """Returns the object."""
        return _Unpickler(Parcel(self._data), self._arrays, as_jax=True).load()


def check_parts(parts: Iterable[tuple[str, Any]], error: Exception, fix: str) -> ShippingError:
    """Returns the error that says which part of something could not be packed.

    Args:
        parts: Each part with the name that the user knows it by.
        error: What was raised for the whole.
        fix: What the user can do.
    """
    for name, part in parts:
        try:
            pack(part)
        except Exception as reason:
            return ShippingError(
                f"{name} must be something that cloudpickle can send to another process, got a "
                f"{type(part).__qualname__}, which raised {type(reason).__name__}: {reason}. {fix}"
            )
    return ShippingError(f"It cannot be sent to another process: {error!r}. {fix}")


def _reduce_array(array: jax.Array) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if not isinstance(array.dtype, np.dtype):  # random keys, whose dtype is JAX's own
        implementation = str(jax.random.key_impl(array))
        return _restore_keys, (implementation, np.asarray(jax.random.key_data(array)))
    host = np.asarray(array)
    if host.dtype.num < _FIRST_ADDED_DTYPE:
        return _restore_jax_array, (host,)
    # Types such as bfloat16 do not offer their memory to pickle.
    flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    return _restore_jax_array, (flat, host.dtype, host.shape)


def _restore_numpy_array(
    host: np.ndarray[Any, Any], dtype: Any = None, shape: tuple[int, ...] = ()
) -> np.ndarray[Any, Any]:
    return host if dtype is None else host.view(dtype).reshape(shape)


def _restore_jax_array(
    host: np.ndarray[Any, Any], dtype: Any = None, shape: tuple[int, ...] = ()
) -> jax.Array:
    return jnp.asarray(_restore_numpy_array(host, dtype, shape))


def _restore_keys(implementation: str, data: np.ndarray[Any, Any]) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation)
