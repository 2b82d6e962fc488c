"""``place_on``: moves the inputs of a program to its devices."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.core.types import ArrayLike
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["place_on"]


def place_on(group: ReplicaGroup, array: ArrayLike) -> Any:
    """Returns an input on the devices of ``group``; without a copy if a program can take it as it is."""
    if group.spans_processes:
        return group.replicate(array)
    if not isinstance(array, jax.Array):
        return array if group.size > 1 else jax.device_put(array, group.replicated)
    if array.sharding == group.replicated:
        return array
    in_place = array.devices() == group.device_set if group.size == 1 else not array.committed
    return array if in_place else jax.device_put(array, group.replicated)
