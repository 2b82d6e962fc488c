"""Sums of several arrays, of which each replica gets its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.collective_tokens import shares_memory
from stratagem._src.collectives.packing import DEFAULT_PACKING
from stratagem._src.collectives.wire_dtype import is_half, on_wire
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.variables.shard_layout import Parts

__all__ = ["scatter_sums"]


def scatter_sums(
    wholes: Sequence[Any],
    parts: Sequence[Parts],
    group: ReplicaGroup,
    options: CommunicationOptions | None = None,
) -> list[Any]:
    """Returns this replica's part of the sum of each array, inside the program that all replicas run.

    Args:
        wholes: Arrays of which each replica has one.
        parts: How each is divided.
        group: The replicas.
        options: How the arrays travel.
    """
    dtypes = [whole.dtype for whole in wholes]
    wholes = [on_wire(whole, options) for whole in wholes]
    if group.on_cpu and not shares_memory(group):
        # XLA would add 16 bits in 16 bits, and cannot compile it for replicas of several virtual devices.
        wholes = [whole.astype(jnp.float32) if is_half(whole.dtype) else whole for whole in wholes]
    results: list[Any] = [None] * len(wholes)
    for pack in DEFAULT_PACKING.plan(wholes, group):
        if len(pack) == 1:
            results[pack[0]] = parts[pack[0]].summed(wholes[pack[0]])
            continue
        rows = jnp.concatenate([_as_rows(wholes[i], parts[i]) for i in pack], axis=1)
        own = jax.lax.psum_scatter(rows, REPLICA_AXIS, scatter_dimension=0, tiled=True)[0]
        start = 0
        for i in pack:
            stop = start + math.prod(parts[i].part_shape)
            results[i] = own[start:stop].reshape(parts[i].part_shape)
            start = stop
    return [result.astype(dtype) for result, dtype in zip(results, dtypes, strict=True)]


def _as_rows(whole: Any, parts: Parts) -> Any:
    """Returns a row with the elements of each part."""
    before, after = parts.shape[: parts.dim], parts.shape[parts.dim + 1 :]
    blocks = parts.padded(whole).reshape(*before, parts.count, parts.length, *after)
    return jnp.moveaxis(blocks, parts.dim, 0).reshape(parts.count, -1)
