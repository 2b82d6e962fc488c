"""Reduce-scatter: each replica gets its shard of the sum of several arrays."""

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
from stratagem._src.core.types import Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.variables.shard_layout import ShardLayout

__all__ = ["reduce_scatter_each"]


def reduce_scatter_each(
    arrays: Sequence[Any],
    layouts: Sequence[ShardLayout],
    group: ReplicaGroup,
    options: CommunicationOptions | None = None,
) -> list[Any]:
    """Returns this replica's shard of the sum of each array, inside the program that all replicas run.

    Args:
        arrays: Full arrays, one addend in each replica.
        layouts: How the sum of each array is sharded.
        group: The replicas.
        options: The wire dtype.
    """
    dtypes = [array.dtype for array in arrays]
    arrays = [on_wire(array, options) for array in arrays]
    if group.on_cpu and not shares_memory(group):
        # XLA adds 16-bit numbers in 16 bits, and cannot compile that for several virtual devices a replica.
        arrays = [array.astype(jnp.float32) if is_half(array.dtype) else array for array in arrays]
    results: list[Any] = [None] * len(arrays)
    for pack in DEFAULT_PACKING.plan(arrays, group):
        if len(pack) == 1:
            results[pack[0]] = layouts[pack[0]].reduce_scatter(arrays[pack[0]])
            continue
        # Row r holds what replica r gets of every array of the pack: one `psum_scatter` gives each its
        # row.
        rows = jnp.concatenate([_as_rows(arrays[i], layouts[i]) for i in pack], axis=1)
        own = jax.lax.psum_scatter(rows, REPLICA_AXIS, scatter_dimension=0, tiled=True)[0]
        start = 0
        for i in pack:
            stop = start + math.prod(layouts[i].shard_shape)
            results[i] = own[start:stop].reshape(layouts[i].shard_shape)
            start = stop
    return [result.astype(dtype) for result, dtype in zip(results, dtypes, strict=True)]


def _as_rows(array: Tensor, layout: ShardLayout) -> Any:
    """Returns an array with a row for each shard."""
    # A (5, 3) array sharded in two along its first dim is padded to (6, 3), and becomes 2 rows of 9
    # numbers.
    before, after = layout.shape[: layout.dim], layout.shape[layout.dim + 1 :]
    blocks = layout.pad(array).reshape(*before, layout.count, layout.length, *after)
    return jnp.moveaxis(blocks, layout.dim, 0).reshape(layout.count, -1)
