"""Merging of the replicas' results into one structure of ``PerReplica`` values, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica

__all__ = ["is_array", "map_values", "regroup", "select_replica"]


def is_array(value: Leaf) -> bool:
    """Returns whether ``value`` is a JAX or NumPy array, or a tracer; NumPy strings are not arrays."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic)) and not isinstance(
        value, (bytes, str)
    )


def map_values(fn: Callable[[Any], Any], tree: PyTree) -> Any:
    """Maps ``fn`` over the leaves of ``tree``; distributed values and variables are leaves."""
    return structures.map_structure(fn, tree, is_value_leaf)


def regroup(
    group: ReplicaGroup, results: Sequence[Any], *, unwrap_same_arrays: bool = False
) -> Any:
    """Returns one structure whose leaves are ``PerReplica`` values of the replicas' leaves.

    Leaves that are not arrays and are the same in every replica are not wrapped.

    Args:
        group: The replicas.
        results: One structure for each replica.
        unwrap_same_arrays: Whether an array that is the same object in all replicas is not wrapped either.
            It has no effect with several processes.

    Raises:
        ReplicaMismatchError: If the structures differ.
    """
    if group.size == 1:
        return results[0]
    flattened = [structures.flatten(result, is_value_leaf) for result in results]
    structure: Any = flattened[0][1]
    for index, (_, other) in enumerate(flattened):
        if other != structure:
            raise ReplicaMismatchError(
                "Replicas must return the same structure, but replica 0 returned "
                f"{structure} and replica {index} {other}."
            )
    columns = zip(*(leaves for leaves, _ in flattened), strict=True)
    merged = [_merge(group, column, unwrap_same_arrays) for column in columns]
    return jax.tree.unflatten(structure, merged)


def select_replica(index: int, tree: PyTree) -> Any:
    """Returns ``tree`` with every distributed value replaced by its component ``index``."""

    def pick(leaf: Leaf) -> Any:
        if isinstance(leaf, (PerReplica, Mirrored)):
            return leaf.values[index]
        return leaf

    return map_values(pick, tree)


def _merge(group: ReplicaGroup, column: tuple[Any, ...], unwrap_same_arrays: bool) -> Any:
    first = column[0]
    same_object = all(value is first for value in column)
    unwrap = unwrap_same_arrays and not group.spans_processes
    if same_object and (unwrap or not is_array(first)):
        return first
    if is_array(first):
        return PerReplica(
            [
                value
                if isinstance(value, jax.Array)
                else jax.device_put(own_host_array(value), device)
                for value, device in zip(column, group.local_devices, strict=True)
            ],
            group,
        )
    if isinstance(first, (int, float, complex, str, bytes)) and all(
        type(value) is type(first) and value == first for value in column
    ):
        return first
    return PerReplica(column, group)
