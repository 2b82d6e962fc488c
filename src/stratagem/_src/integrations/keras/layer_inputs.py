"""Layers that are called outside of replicas, with arrays that lie on other devices than their weights."""

from __future__ import annotations

from typing import Any

import jax

from stratagem._src.integrations.keras.keras_internals import (
    CALL_LAYER,
    mask_of,
    set_mask,
)
from stratagem._src.integrations.keras.owner_scope import owner_of
from stratagem._src.integrations.keras.replicas import one_of_several
from stratagem._src.jax_compat.tracing import is_tracer, under_jit
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["call_layer"]


def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Takes the place of ``Layer.__call__``: brings arrays that are committed to devices to the weights.

    A result of another model, or of ``jax.device_put``, lies on one device; mirrored weights lie on
    several, and JAX refuses to compute with both. A replica has its own device, and weights there.
    """
    if any(map(_is_committed, jax.tree.leaves((args, kwargs)))):
        owner = None if under_jit() or one_of_several() is not None else owner_of(layer)
        if owner is not None:
            group = owner.replica_group
            args, kwargs = jax.tree.map(lambda leaf: _beside_weights(leaf, group), (args, kwargs))
    return CALL_LAYER(layer, *args, **kwargs)


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not is_tracer(leaf) and leaf.committed


def _beside_weights(leaf: Any, group: ReplicaGroup) -> Any:
    # Of several processes each computes on its own, with its view of the weights.
    place = (
        jax.sharding.SingleDeviceSharding(group.local_devices[0])
        if group.spans_processes
        else group.replicated
    )
    if not _is_committed(leaf) or leaf.sharding.device_set == place.device_set:
        return leaf
    moved, mask = jax.device_put(leaf, place), mask_of(leaf)
    if mask is not None:
        set_mask(moved, jax.device_put(mask, place))
    return moved
