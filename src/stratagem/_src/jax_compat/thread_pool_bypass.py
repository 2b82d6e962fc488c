"""JAX calls that do not need XLA's client thread pool.

While a program with collectives runs on as many CPU devices as the pool has threads, each thread may block
in a collective. A host callback of such a program must not wait for the pool:

- A program that a callback starts runs in the callback's own thread, unless it waits for an input, or for a
  program that another thread has queued on the same device. An execution stream of its own avoids the
  latter. - A host array of more than 100 kB is copied in the pool, unless it is aligned: then XLA uses its
  memory. So the calling thread copies the array to aligned memory first. - An array is transferred from one
  device to another in the pool; here it goes through the host.

``bypass_thread_pool`` applies these rules to a thread, with a trace that replaces the arrays and then
evaluates as usual. Under it a call of a ``jax.jit`` function takes JAX's Python path, 80 µs instead of 10.
If JAX has changed, callbacks run without it.
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

from stratagem._src.core.types import EquationParams, Primitive, Tensor, Tracer, WrappedFunction

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

__all__ = ["aligned", "bypass_thread_pool"]

_ALIGNMENT = 64
"""XLA uses host memory that begins at a multiple of it without a copy."""

_COPIED_AT_ONCE = 100 * 1024
"""XLA copies arrays below this size in the calling thread."""


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy of an array in memory that is aligned so that XLA uses it without a copy."""
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _taken_over(value: Tensor) -> Any:
    """Returns a value that XLA puts on a device without its thread pool."""
    if (
        not isinstance(value, np.ndarray)
        or value.nbytes < _COPIED_AT_ONCE
        or isinstance(value, np.ma.MaskedArray)  # which JAX refuses
        or value.dtype.hasobject
    ):
        return value
    copy = aligned(value)
    # JAX's own type of host array, which has a dtype and a weak type.
    return _HostArray(copy, value.aval) if isinstance(value, _HostArray) else copy


class _ThreadPoolBypassTrace(_EvalTrace):  # type: ignore[misc]
    """Evaluates operations eagerly, on arrays that do not need XLA's thread pool."""

    def process_primitive(
        self, primitive: Primitive, args: Sequence[Any], params: EquationParams, /
    ) -> Any:
        if primitive is _device_put_p:
            puts = zip(
                args, params["devices"], params["srcs"], params["copy_semantics"], strict=True
            )
            with _set_current_trace(_eval_trace):  # no trace is current here since JAX 0.11
                return [_put(x, device, source, how) for x, device, source, how in puts]
        return _eval_trace.process_primitive(primitive, [*map(_taken_over, args)], params)

    def process_custom_jvp_call(
        self,
        primitive: Primitive,
        fun: WrappedFunction,
        jvp: WrappedFunction,
        tracers: Sequence[Tracer],
        /,
        **params: Any,
    ) -> Any:
        with _set_current_trace(self):
            return super().process_custom_jvp_call(primitive, fun, jvp, tracers, **params)

    def process_custom_vjp_call(
        self,
        primitive: Primitive,
        fun: WrappedFunction,
        fwd: WrappedFunction,
        bwd: WrappedFunction,
        tracers: Sequence[Tracer],
        /,
        **params: Any,
    ) -> Any:
        with _set_current_trace(self):
            return super().process_custom_vjp_call(primitive, fun, fwd, bwd, tracers, **params)


def _put(x: Tensor, device: Any, source: Any, semantics: Any) -> Any:
    """Implements ``device_put`` of one array, under the trace that evaluates."""
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


def _is_weak(x: Tensor) -> bool:
    return bool(getattr(x, "weak_type", False))


def _cpu_sharding(device: Any) -> Any:
    """Returns the target sharding, if it consists of CPU devices of this process."""
    if isinstance(device, jax.Device):
        device = jax.sharding.SingleDeviceSharding(device)
    if not isinstance(device, jax.sharding.Sharding) or not device.is_fully_addressable:
        return None
    devices: Any = device.device_set
    return device if all(each.platform == "cpu" for each in devices) else None


def _moves(x: Tensor, sharding: Any) -> bool:
    """Returns whether an array on CPU devices moves to other devices."""
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
_trace = _ThreadPoolBypassTrace() if _EvalTrace is not object else None


@contextlib.contextmanager
def bypass_thread_pool() -> Iterator[None]:
    """Makes JAX calls of this thread avoid XLA's thread pool where possible.

    Does nothing in a process with one CPU device, whose collectives block no thread: under the trace some
    libraries reject what they allow elsewhere (``jax.set_mesh``, changes of flax nnx modules).
    """
    if _trace is None or jax.local_device_count("cpu") == 1:
        yield
        return
    if _stream.number is None:
        _stream.number = next(_stream_numbers)
    with _execution_stream_id(_stream.number), _set_current_trace(_trace):
        yield
