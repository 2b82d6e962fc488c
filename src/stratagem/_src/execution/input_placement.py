"""Where the inputs of a program must be so that it can take them."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["place_on"]


def place_on(group: ReplicaGroup, array: Any) -> Any:
    """Returns an input where a program on ``group`` can take it."""
    if group.spans_processes:
        return group.replicate(array)
    if not isinstance(array, jax.Array):
        return array if group.size > 1 else jax.device_put(array, group.replicated)
    if array.sharding == group.replicated:
        return array
    in_place = array.devices() == group.device_set if group.size == 1 else not array.committed
    return array if in_place else jax.device_put(array, group.replicated)
