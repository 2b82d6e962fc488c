"""``DeviceMemory``: memory metrics of this process's devices, for monitoring."""

from __future__ import annotations

import contextlib
import math
import time

from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.running_backends import running_backends

__all__ = ["DeviceMemory"]

_POLL_INTERVAL_SECONDS = 10.0
_STATISTICS = {
    "bytes": "bytes_in_use",
    "peak_bytes": "peak_bytes_in_use",
    "limit_bytes": "bytes_limit",
}


class DeviceMemory:
    """Polls at most every ten seconds: on CPU a poll takes 5 us for each array of the process.

    >>> import jax.numpy as jnp
    >>> from stratagem._src.mesh.device_memory import DeviceMemory
    >>> x = jnp.ones(1000)
    >>> DeviceMemory().metrics()["bytes"] >= x.nbytes
    True
    """

    def __init__(self) -> None:
        self._metrics: dict[str, int] = {}
        self._next_poll = 0.0

    def metrics(self) -> dict[str, int]:
        """Returns the bytes in use on all devices of this process together.

        Where devices report them, also the peak and the limit; for CPUs the bytes of live arrays.
        """
        now = time.monotonic()
        if now >= self._next_poll:
            self._metrics, self._next_poll = _poll(), now + _POLL_INTERVAL_SECONDS
        return self._metrics


def _poll() -> dict[str, int]:
    found: dict[str, int] = {}
    for backend in running_backends():
        statistics = [device.memory_stats() for device in backend.local_devices()]
        if all(statistics):
            for name, key in _STATISTICS.items():
                values = [of_device[key] for of_device in statistics if key in of_device]
                if values:
                    found[name] = found.get(name, 0) + sum(values)
        else:
            arrays = sum(map(_local_bytes, backend.live_arrays()))
            found["bytes"] = found.get("bytes", 0) + arrays
    return found


def _local_bytes(array: Tensor) -> int:
    """Returns the bytes of an array on the devices of this process."""
    with contextlib.suppress(RuntimeError):  # deleted meanwhile
        sharding = array.sharding
        shard_bytes = math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
        return shard_bytes * len(sharding.addressable_devices)
    return 0
