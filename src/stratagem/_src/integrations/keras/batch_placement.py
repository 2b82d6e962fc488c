"""Places a batch on the replicas: sharded by rows, or replicated."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.sparse import JAXSparse

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, Leaf, PyTree
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

__all__ = ["place_batch"]


def place_batch(batch: PyTree, strategy: Strategy, *, divide: bool = True) -> Any:
    """Returns a batch as global arrays over the strategy's replicas.

    The batch is sharded by rows if they divide evenly. Otherwise it is replicated: padding would change the
    batch statistics of layers such as ``BatchNormalization``.

    Args:
        batch: A structure of arrays, with the same number of rows in each; of ``PerReplica`` values; or
            a result of this function.
        strategy: The strategy with the replicas.
        divide: Whether rows may be sharded.
    """
    group = strategy.replica_group
    leaves, structure = jax.tree.flatten(batch, is_leaf=_is_leaf)
    if divide and all(_is_placed(leaf, group) for leaf in leaves):
        return batch
    if any(isinstance(leaf, (PerReplica, Mirrored)) for leaf in leaves):
        leaves = [_global_value(leaf, strategy) for leaf in leaves]
    divided = divide and _divides(leaves, group.size)
    placed = [_placed(leaf, strategy, divided=divided) for leaf in leaves]
    return jax.tree.unflatten(structure, placed)


def _is_placed(leaf: Leaf, group: ReplicaGroup) -> bool:
    """Returns whether a leaf is a result of ``place_batch``."""
    sharding = getattr(leaf, "sharding", None)
    return sharding is group.sharded or sharding is group.replicated


def _is_leaf(value: ArrayLike) -> bool:
    return isinstance(value, (PerReplica, Mirrored, JAXSparse))


def _divides(leaves: list[Any], size: int) -> bool:
    rows = {np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf)}
    if size == 1 or len(rows) != 1 or any(isinstance(leaf, JAXSparse) for leaf in leaves):
        return False
    [num_rows] = rows
    return num_rows > 0 and num_rows % size == 0


def _global_value(leaf: Leaf, strategy: Strategy) -> Any:
    """Returns the rows of all replicas of a per-replica value as one array."""
    group = strategy.replica_group
    if isinstance(leaf, Mirrored):
        return leaf.values[0]
    if not isinstance(leaf, PerReplica):
        return leaf
    if leaf.scalar:
        raise InvalidArgumentError(
            "A distributed dataset for Keras must be batched, so that each array has a row for each "
            f"example, got a scalar for each replica: {leaf!r}. Call batch() on the dataset."
        )
    global_array = leaf.global_array(group)
    if global_array is not None:
        return global_array
    if not group.spans_processes:
        return np.concatenate([np.asarray(part) for part in leaf.values])
    return np.asarray(strategy.gather(leaf, axis=0))


def _placed(leaf: Leaf, strategy: Strategy, *, divided: bool) -> Any:
    group = strategy.replica_group
    divided = divided and np.ndim(leaf) > 0
    sharding = group.sharded if divided else group.replicated
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    if isinstance(leaf, JAXSparse):
        return jax.tree.map(lambda part: _placed(part, strategy, divided=False), leaf)
    if not isinstance(leaf, jax.Array):
        leaf = _numbers(leaf)
    elif not group.spans_processes:
        return jax.device_put(leaf, sharding)
    if divided:
        return group.shard_rows(np.asarray(leaf))
    # Every worker has read its own copy. If these differed, the workers' weights would diverge, so all use
    # the leader's.
    return group.replicate(strategy.extended.leader_value(leaf, "a batch that is not divided"))


def _numbers(leaf: Leaf) -> Any:
    """Returns a leaf as an array of a dtype that devices support."""
    array = np.asarray(leaf)
    if is_host_only(array.dtype):
        raise InvalidArgumentError(
            f"Keras on JAX needs numeric arrays, got an array of dtype {array.dtype}. Convert it to "
            "numbers in the dataset, for example with keras.layers.StringLookup."
        )
    return array
