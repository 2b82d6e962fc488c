"""Conversion of variables and mirrored values to per-replica values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike, Leaf
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables import frames
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import is_own_variable

__all__ = ["is_per_replica", "per_replica_of"]


def per_replica_of(value: Leaf) -> Any:
    """Returns a distributed value or variable as per-replica values; anything else unchanged."""
    if isinstance(value, SyncOnReadVariable):
        return value.per_replica()
    if isinstance(value, (MirroredVariable, FullyShardedVariable)):
        return _copies(value.group, value._value(), lambda: value.values)
    if is_own_variable(value):
        return value._value()
    if isinstance(value, Mirrored):
        return _copies(value._group, value._value(), lambda: value.values)
    return value


def is_per_replica(value: Leaf) -> bool:
    """Returns whether ``value`` differs between replicas."""
    if isinstance(value, IndexedSlices):
        return isinstance(value.values, PerReplica)
    return isinstance(value, PerReplica)


def _copies(group: ReplicaGroup, array: ArrayLike, components: Callable[[], Any]) -> Any:
    """Returns a replicated array as a per-replica value."""
    frame = frames.current_frame()
    if group.size == 1:
        return array
    if frame is not None and frame.spmd:
        return SpmdPerReplica(group, array)
    return PerReplica(components(), group)
