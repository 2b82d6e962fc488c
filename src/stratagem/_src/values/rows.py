"""Counts the examples (rows) of a dataset element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.core import structures
from stratagem._src.core.types import ArrayLike, Leaf, PyTree
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica

__all__ = ["num_global_rows", "num_local_rows"]


def num_local_rows(element: PyTree) -> int:
    """Returns the number of rows of this process's part of an element; 0 if it has no rows.

    >>> import numpy as np
    >>> from stratagem._src.values.rows import num_local_rows
    >>> num_local_rows({"x": np.zeros((8, 3)), "y": np.zeros(8)})
    8
    """
    return _first(element, _local_rows)


def num_global_rows(element: PyTree) -> int:
    """Returns the number of rows of an element in all processes; 0 if it has no rows.

    If replicas have different numbers, it assumes that all processes have as many rows as this one.
    """
    return _first(element, _global_rows)


def _first(element: PyTree, num_rows: Callable[[Any], int]) -> int:
    # Fast path: look at the first leaf only. Flatten the element only if that leaf has no rows.
    first = element
    while isinstance(first, (tuple, list, dict)) and first:
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    if rows := num_rows(first):
        return rows
    return next(filter(None, map(num_rows, structures.leaves_of(element, is_value_leaf))), 0)


def _local_rows(leaf: Leaf) -> int:
    if isinstance(leaf, PerReplica):
        group = leaf.global_group
        if group is None:
            return sum(map(_rows, leaf.values))
        return 0 if leaf.scalar else leaf.local_shape[0] * group.local_size
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        # A global array over the workers' devices: count the rows of this process, once per distinct shard.
        # Slices are not hashable before Python 3.12.
        shards = {
            tuple(rows.start for rows in shard.index[:1]): _rows(shard.data)
            for shard in addressable_shards(leaf)
        }
        return sum(shards.values())
    return _rows(leaf)


def _global_rows(leaf: Leaf) -> int:
    if isinstance(leaf, PerReplica):
        group = leaf.global_group
        if group is None:
            return _local_rows(leaf) * jax.process_count()
        return 0 if leaf.scalar else leaf.local_shape[0] * group.size
    return _rows(leaf)


def _rows(array: ArrayLike) -> int:
    shape = getattr(array, "shape", ())
    return int(shape[0]) if shape else 0
