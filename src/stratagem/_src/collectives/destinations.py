"""The destinations of a reduction or a broadcast."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.structures import ValueLeaf
from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.central_variable import CentralVariable
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import is_own_variable

__all__ = ["check_destinations", "placed_on"]


def check_destinations(destinations: Any) -> None:
    """Checks that a value is valid as ``destinations``.

    Raises:
        InvalidArgumentError: If it is not.
    """
    known = (str, jax.Device, ReplicaGroup, ValueLeaf, IndexedSlices, jax.Array)
    if not isinstance(destinations, known):
        raise InvalidArgumentError(
            "destinations must be a distributed value, a variable, an array or the name of a device, got "
            f"{destinations!r}."
        )


def placed_on(destinations: Any, value: Tensor, group: ReplicaGroup | None) -> Any:
    """Returns a reduced value on its destinations.

    Args:
        destinations: See ``check_destinations``.
        value: An array, or ``IndexedSlices``.
        group: The replicas whose values were reduced, if known.

    Returns:
        A ``Mirrored`` value if the destinations are several devices, otherwise an array.
    """
    check_destinations(destinations)
    if isinstance(value, IndexedSlices):
        return value
    if isinstance(destinations, IndexedSlices):
        destinations = destinations.values
    target = _devices(destinations) or group
    value = array_of(value)
    if not isinstance(target, ReplicaGroup):
        if is_tracer(value) or target is None:
            return value
        return jax.device_put(value, target)
    if target.size == 1:
        return value if is_tracer(value) else jax.device_put(value, target.devices[0])
    return Mirrored(target, jnp.asarray(value) if is_tracer(value) else target.replicate(value))


def _devices(destinations: Any) -> ReplicaGroup | jax.Device | None:
    if isinstance(destinations, ReplicaGroup):
        return destinations
    if isinstance(destinations, (str, jax.Device)):
        return resolve_devices(destinations)[0]
    if isinstance(destinations, (MirroredVariable, FullyShardedVariable, SyncOnReadVariable)):
        return destinations.group
    if isinstance(destinations, CentralVariable):
        return destinations.parameter_device
    if isinstance(destinations, (PerReplica, Mirrored)):
        return destinations._group
    if is_own_variable(destinations) and not isinstance(destinations, DistributedVariable):
        return destinations.group.devices[0]
    if isinstance(destinations, jax.Array) and not is_tracer(destinations):
        return next(iter(destinations.devices()))
    return None
