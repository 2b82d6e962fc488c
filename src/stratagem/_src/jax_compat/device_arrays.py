"""Putting arrays on devices, without the detours of ``jax.device_put``.

Those take several times as long as copying a small array does, and a step pays them for each array of
its batch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["put_copies", "put_pieces"]


def put_pieces(
    pieces: Sequence[np.ndarray[Any, Any]],
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    devices: Sequence[jax.Device],
) -> jax.Array:
    """Returns one array over devices, of a piece for each of them.

    As with ``jax.device_put``, memory of the host may become that of the array: nobody may change it
    while the array is in use.

    Args:
        pieces: What each device of this process gets, in the order of the sharding.
        shape: Of the whole array.
        sharding: How the pieces make up the whole.
        devices: Those of this process.
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
    """Returns one array over devices, with a copy of another on each of them.

    Args:
        array: An array on one device; where it lies it is the copy.
        sharding: What says that all devices have all of it.
        devices: Those of the sharding, all of this process.
    """
    put = _private_put()
    if put is None:
        return jax.device_put(array, sharding)
    aval = _aval(array.shape, array.dtype, array.weak_type)
    return put(aval, sharding, [array] * len(devices), list(devices), True)


@functools.cache
def _private_put() -> Any | None:
    """Returns what ``jax.device_put`` ends in; ``None`` where JAX has changed."""
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
