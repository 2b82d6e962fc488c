"""Puts arrays on devices without the overhead of ``jax.device_put``.

The overhead is several times the cost of copying a small array, and a step pays it for each array of its
batch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.jax_compat.compile_time_eval import evaluate_now

__all__ = ["copy_without_program", "put_copies", "put_pieces", "uncommitted"]


def put_pieces(
    pieces: Sequence[np.ndarray[Any, Any]],
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    devices: Sequence[jax.Device],
) -> jax.Array:
    """Returns one array over devices, from one shard for each of them.

    As with ``jax.device_put``, the array may alias the host memory, which must not change while the array
    is in use.

    Args:
        pieces: The shard of each device of this process, in the order of the sharding.
        shape: The global shape.
        sharding: How the shards make up the array.
        devices: The devices of this process.
    """
    dtype = jax.dtypes.canonicalize_dtype(pieces[0].dtype)
    blocks = [piece.astype(dtype, copy=False) for piece in pieces]
    put = _private_put()
    if put is not None:
        return put(_aval(shape, dtype), sharding, blocks, list(devices), True)
    placed = [jax.device_put(block, d) for block, d in zip(blocks, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


def put_copies(
    array: jax.Array, sharding: jax.sharding.Sharding, devices: Sequence[jax.Device]
) -> jax.Array:
    """Returns a replicated array, with a copy of ``array`` on each device.

    Args:
        array: An array on one device. On that device it is used without a copy.
        sharding: The replicated sharding.
        devices: The devices of the sharding, all of this process.
    """
    put = _private_put()
    if put is None:
        return jax.device_put(array, sharding)
    aval = _aval(array.shape, array.dtype, array.weak_type)
    return put(aval, sharding, [array] * len(devices), list(devices), True)


def uncommitted(array: jax.Array) -> jax.Array:
    """Returns an array on one device that may be combined with arrays of other devices.

    JAX refuses to compute with arrays that are committed to different devices, and copies others. The
    result has the memory of ``array``.
    """
    put, devices = _private_put(), list(array.devices())
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    if put is None or len(devices) > 1 or is_key:
        return array
    aval = _aval(array.shape, array.dtype, array.weak_type)
    return put(aval, array.sharding, [array], devices, False)


def copy_without_program(array: jax.Array) -> jax.Array:
    """Returns a copy of an array that this process can address.

    Unlike ``jnp.copy`` it compiles no program. JAX refuses to run a program in a signal handler that
    interrupts its compilation.
    """
    copy = _private_copy()
    if copy is None:
        return evaluate_now(lambda: jnp.copy(array))
    devices = array.sharding._internal_device_list.addressable_device_list
    [copied] = copy([array], [devices], [array.sharding])
    return copied


@functools.cache
def _private_copy() -> Any | None:
    """Returns the private function that copies arrays to devices; ``None`` if JAX has changed."""
    try:
        client = importlib.import_module("jax._src.lib").xla_client
        always = client.ArrayCopySemantics.ALWAYS_COPY
        copy = client.batched_copy_array_to_devices_with_sharding
        array = jax.device_put(np.zeros((), np.float32), jax.local_devices()[0])
        devices = array.sharding._internal_device_list.addressable_device_list
        copy([array], [devices], [array.sharding], [always])
    except (ImportError, AttributeError, TypeError):
        return None
    return lambda arrays, devices, shardings: copy(arrays, devices, shardings, [always])


@functools.cache
def _private_put() -> Any | None:
    """Returns the private function that ``jax.device_put`` calls; ``None`` if JAX has changed."""
    try:
        put = importlib.import_module("jax._src.lib").xla_client.batched_device_put
        device = jax.local_devices()[0]
        sharding = jax.sharding.SingleDeviceSharding(device)
        number = np.zeros((), np.float32)
        put(_aval((), number.dtype), sharding, [number], [device], True)
    except (ImportError, AttributeError, TypeError):
        return None
    return put


@functools.lru_cache(maxsize=1024)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any], weak_type: bool = False) -> Any:
    return jax.core.ShapedArray(shape, dtype, weak_type)
