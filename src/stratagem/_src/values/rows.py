"""How many examples an element of a dataset has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.core import structures
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica

__all__ = ["num_local_rows", "num_rows_everywhere"]


def num_local_rows(element: Any) -> int:
    """Returns how many rows this process's part of an element has; 0 if it has no rows.

    >>> import numpy as np
    >>> from stratagem._src.values.rows import num_local_rows
    >>> num_local_rows({"x": np.zeros((8, 3)), "y": np.zeros(8)})
    8
    """
    return _first(element, _local_rows)


def num_rows_everywhere(element: Any) -> int:
    """Returns how many rows an element has in all processes; 0 if it has no rows.

    Where replicas have different numbers, other processes are taken to have as many as this one.
    """
    return _first(element, _rows_everywhere)


def _first(element: Any, num_rows: Callable[[Any], int]) -> int:
    # Quicker than to take all of it apart, which is for elements whose first part has no rows.
    first = element
    while isinstance(first, (tuple, list, dict)) and first:
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    if rows := num_rows(first):
        return rows
    return next(filter(None, map(num_rows, structures.leaves_of(element, is_value_leaf))), 0)


def _local_rows(leaf: Any) -> int:
    if isinstance(leaf, PerReplica):
        group = leaf.kept_global
        if group is None:
            return sum(map(_rows, leaf.values))
        return 0 if leaf.scalar else leaf.local_shape[0] * group.local_size
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        # Of a global array over the workers' devices, the rows that lie here.
        # Slices cannot be keys before Python 3.12.
        shards = {
            tuple(rows.start for rows in shard.index[:1]): _rows(shard.data)
            for shard in addressable_shards(leaf)
        }
        return sum(shards.values())
    return _rows(leaf)


def _rows_everywhere(leaf: Any) -> int:
    if isinstance(leaf, PerReplica):
        group = leaf.kept_global
        if group is None:
            return _local_rows(leaf) * jax.process_count()
        return 0 if leaf.scalar else leaf.local_shape[0] * group.size
    return _rows(leaf)


def _rows(array: Any) -> int:
    shape = getattr(array, "shape", ())
    return int(shape[0]) if shape else 0
