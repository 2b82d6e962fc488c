"""``OneDeviceStrategy``: one replica on one given device."""

from __future__ import annotations

import jax

from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.core.errors import DeviceError
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.mirrored import MirroredExtended
from stratagem._src.strategies.unsynchronized_workers import warn_if_unsynchronized

__all__ = ["OneDeviceStrategy"]


class OneDeviceStrategy(Strategy):
    """Runs one replica, and keeps its variables, on one device.

    Use it to test code that is written for strategies before it runs on many devices.

    Args:
        device: Name of the device, or a ``jax.Device``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.OneDeviceStrategy(device="/cpu:0")
    >>> with strategy.scope():
    ...     v = sg.Variable(1.0)
    ...     print(v.device)
    /job:localhost/replica:0/task:0/device:CPU:0
    >>> result = 0
    >>> for i in range(10):
    ...     result += strategy.run(lambda x: x * 2, args=(i,))
    >>> print(result)
    90
    """

    def __init__(self, device: str | jax.Device) -> None:
        if not isinstance(device, (str, jax.Device)):
            raise DeviceError(f"OneDeviceStrategy needs one device, got {device!r}.")
        group = ReplicaGroup.of(resolve_devices(device))
        warn_if_unsynchronized(type(self).__name__)
        super().__init__(_OneDeviceExtended(self, group, NcclAllReduce()))


class _OneDeviceExtended(MirroredExtended):
    wraps_single_values = False
