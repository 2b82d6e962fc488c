"""``ReductionToOneDevice``: copies all values to one device, reduces there, and copies back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.collectives.cross_device_ops import CrossDeviceOps, find_group
from stratagem._src.collectives.point_to_point import (
    accumulator,
    broadcast_from,
    collect_at,
    finish,
)
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import DeviceError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.jaxpr.replication_analysis import mark_replicated
from stratagem._src.mesh.devices import canonical_name, resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica

__all__ = ["ReductionToOneDevice"]


class ReductionToOneDevice(CrossDeviceOps):
    """Copies all values to one device, reduces them there and copies the result to the replicas.

    Args:
        reduce_to_device: The device, by name or as a ``jax.Device``. Default: the first replica's. In
            compiled steps it must be the device of a replica.
        accumulation_fn: Adds a list of arrays, for ``SUM`` and ``MEAN``. Default: their sum.

    >>> import stratagem as sg
    >>> ops = sg.distribute.ReductionToOneDevice(reduce_to_device="CPU:1")
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    """

    _colocate_components = False

    def __init__(
        self,
        reduce_to_device: str | jax.Device | None = None,
        accumulation_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        self._reduce_to_device = reduce_to_device
        self._accumulation_fn = accumulation_fn

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """Returns the value, reduced on the one device."""
        group = find_group([per_replica_value])
        accumulate = accumulator(reduce_op)
        if self._accumulation_fn is not None and reduce_op in (ReduceOp.SUM, ReduceOp.MEAN):
            accumulate = self._accumulation_fn
        device = self._device(group)
        if not isinstance(per_replica_value, SpmdPerReplica):
            copies = [jax.device_put(value, device) for value in per_replica_value.values]
            return finish(reduce_op, accumulate(copies), group.size)
        if device not in group.devices:
            raise DeviceError(
                f"In a compiled step reduce_to_device must be a replica's device, got "
                f"{canonical_name(device)}, and the replicas are on {', '.join(group.device_names)}. "
                "Choose one of them, or run the step eagerly."
            )
        root, replicas = group.devices.index(device), range(group.size)
        collected = collect_at(per_replica_value.local, replicas, root)
        reduced = finish(reduce_op, accumulate(collected), group.size)
        return mark_replicated(broadcast_from(reduced, root, replicas))

    def _device(self, group: ReplicaGroup) -> jax.Device:
        if self._reduce_to_device is None:
            return group.devices[0]
        return resolve_devices(self._reduce_to_device)[0]
