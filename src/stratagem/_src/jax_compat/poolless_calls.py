"""JAX calls that need no thread of XLA's client thread pool.

While a program with collectives runs on as many CPU devices as the pool has threads, each thread may wait
in a collective. A host callback of such a program must not wait for the pool:

- A program that a callback starts runs in the callback's own thread, unless it waits for an input, or for
  the program that another thread has queued on the same device. A *stream* of its own keeps it from the
  latter.
- An array of the host with more than 100 kB is copied in the pool, unless it is aligned: then XLA takes it
  over. So the calling thread copies it to aligned memory first.
- An array goes from one device to another in the pool: here it goes through the host.

``poolless`` makes these the rules of a thread, by a trace that evaluates as usual after it has exchanged
the arrays. Under it a call of a ``jax.jit`` function takes JAX's Python path, 80 µs in place of 10. Where
JAX has changed, callbacks run without it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

try:
    from jax._src import core, dispatch, literals
    from jax._src.lax import lax
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    _EvalTrace: Any = core.EvalTrace
    _eval_trace: Any = core.eval_trace
    _set_current_trace: Any = core.set_current_trace
    _device_put_p: Any = dispatch.device_put_p
    _HostArray: Any = literals.TypedNdArray
    _convert_element_type: Any = lax._convert_element_type
    _execution_stream_id: Any = xla_client.execution_stream_id
except (ImportError, AttributeError):  # pragma: no cover - a later JAX
    _EvalTrace = object

__all__ = ["aligned", "poolless"]

_ALIGNMENT = 64
"""XLA takes over memory of the host that begins at a multiple of it."""

_COPIED_AT_ONCE = 100 * 1024
"""XLA copies arrays below this size in the calling thread."""


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy of an array at an address from which XLA takes it over."""
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _taken_over(value: Any) -> Any:
    """Returns a value that XLA needs no thread to put on a device."""
    if (
        not isinstance(value, np.ndarray)
        or value.nbytes < _COPIED_AT_ONCE
        or isinstance(value, np.ma.MaskedArray)  # which JAX refuses
        or value.dtype.hasobject
    ):
        return value
    copy = aligned(value)
    # JAX's own kind of host array, which says its dtype and whether it is weak.
    return _HostArray(copy, value.aval) if isinstance(value, _HostArray) else copy


class _PoollessTrace(_EvalTrace):  # type: ignore[misc]
    """Evaluates operations at once, on arrays that need no thread of XLA."""

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: Any, /) -> Any:
        if primitive is _device_put_p:
            return [
                _put(x, device, source, semantics)
                for x, device, source, semantics in zip(
                    args, params["devices"], params["srcs"], params["copy_semantics"], strict=True
                )
            ]
        return _eval_trace.process_primitive(primitive, [*map(_taken_over, args)], params)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any
    ) -> Any:
        with _set_current_trace(self):
            return super().process_custom_jvp_call(primitive, fun, jvp, tracers, **params)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        with _set_current_trace(self):
            return super().process_custom_vjp_call(primitive, fun, fwd, bwd, tracers, **params)


def _put(x: Any, device: Any, source: Any, semantics: Any) -> Any:
    """Does what ``device_put`` of one array does, under the trace that evaluates."""
    sharding = _cpu_sharding(device)
    is_host = isinstance(x, np.ndarray)
    if sharding is None or not (is_host or _moves(x, sharding)):
        return _device_put_p.bind(
            _taken_over(x), devices=(device,), srcs=(source,), copy_semantics=(semantics,)
        )[0]
    if is_host and sharding.num_devices == 1:
        return jax.device_put(_taken_over(x), device)
    host = np.asarray(x)
    shards = [
        jax.device_put(aligned(host[index]), shard_device)
        for shard_device, index in sharding.addressable_devices_indices_map(host.shape).items()
    ]
    put = jax.make_array_from_single_device_arrays(host.shape, sharding, shards)
    return _convert_element_type(put, put.dtype, weak_type=True) if _is_weak(x) else put


def _is_weak(x: Any) -> bool:
    return bool(getattr(x, "weak_type", False))


def _cpu_sharding(device: Any) -> Any:
    """Returns where an array is to be put, if that is one or more CPU devices of this process."""
    if isinstance(device, jax.Device):
        device = jax.sharding.SingleDeviceSharding(device)
    if not isinstance(device, jax.sharding.Sharding) or not device.is_fully_addressable:
        return None
    devices: Any = device.device_set
    return device if all(each.platform == "cpu" for each in devices) else None


def _moves(x: Any, sharding: Any) -> bool:
    """Returns whether an array of CPU devices goes to others."""
    return (
        isinstance(x, jax.Array)
        and x.is_fully_addressable
        and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
        and all(device.platform == "cpu" for device in x.devices())
        and not x.sharding.is_equivalent_to(sharding, x.ndim)
    )


class _Stream(threading.local):
    number: int | None = None


_stream = _Stream()
_stream_numbers = itertools.count(1 << 32)
_trace = _PoollessTrace() if _EvalTrace is not object else None


@contextlib.contextmanager
def poolless() -> Iterator[None]:
    """Lets the JAX calls of this thread do without XLA's thread pool, as far as they can.

    Not in a process with one CPU device, whose collectives hold no thread: under the trace some libraries
    refuse what they do elsewhere (``jax.set_mesh``, changes of flax nnx modules).
    """
    if _trace is None or jax.local_device_count("cpu") == 1:
        yield
        return
    if _stream.number is None:
        _stream.number = next(_stream_numbers)
    with _execution_stream_id(_stream.number), _set_current_trace(_trace):
        yield
