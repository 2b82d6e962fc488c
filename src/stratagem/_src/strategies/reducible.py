"""Conversion of values to per-replica values that can be reduced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from stratagem._src.core import structures
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.structures import ValueLeaf
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.array_operators import array_of, operand_of
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica, check_size
from stratagem._src.variables import frames

__all__ = ["flatten_reducible", "once_per_worker", "only_value", "own_value"]


def flatten_reducible(value: PyTree) -> tuple[list[Any], Any]:
    """Flattens a structure into the values that are reduced one by one."""
    return structures.flatten(
        value,
        is_leaf=lambda x: isinstance(x, (ValueLeaf, IndexedSlices)),
    )


def only_value(value: ArrayLike, group: ReplicaGroup) -> Any:
    """Returns the array of the only replica of a strategy with one replica."""
    if isinstance(value, PerReplica):
        check_size(value, group)
        return value.values[0]
    return array_of(value)


def once_per_worker(value: ArrayLike, group: ReplicaGroup, op: ReduceOp) -> PerReplica:
    """Returns a per-replica value such that a reduction over all replicas counts this process's value once.

    The process's first replica has the value. For a sum the other replicas have zero. For a minimum, a
    maximum or a mean they have the same value: every process has the same number of replicas.
    """
    array = jnp.asarray(operand_of(value))
    others = jnp.zeros_like(array) if op is ReduceOp.SUM else array
    frame = frames.current_frame()
    if frame is not None and frame.spmd:
        return SpmdPerReplica(group, _in_first_replica(array, others, group))
    if is_tracer(array):
        return _staged_once_per_worker(array, others, group)
    placed = zip([array, *[others] * (group.local_size - 1)], group.local_devices, strict=True)
    return PerReplica([jax.device_put(part, device) for part, device in placed], group)


def _staged_once_per_worker(array: ArrayLike, others: ArrayLike, group: ReplicaGroup) -> PerReplica:
    def block(array: ArrayLike, others: ArrayLike) -> Any:
        own = _in_first_replica(array, others, group)
        return own if own.ndim else own.reshape((1,))

    blocks = jax.shard_map(
        block,
        mesh=group.mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(REPLICA_AXIS),
        check_vma=False,
    )(array, others)
    return PerReplica.from_global(group, blocks, scalar=array.ndim == 0)


def _in_first_replica(array: ArrayLike, others: ArrayLike, group: ReplicaGroup) -> Any:
    """Returns ``array`` in the first replica of each process, and ``others`` in its other replicas."""
    first = jax.lax.axis_index(REPLICA_AXIS) % group.local_size == 0
    return jnp.where(first, array, others)


def own_value(value: ArrayLike, group: ReplicaGroup) -> Any:
    """Returns a per-replica value of ``group``, with Python numbers converted to arrays."""
    if isinstance(value, (IndexedSlices, SpmdPerReplica)):
        return value
    check_size(value, group)
    if value.global_group is None and not all(hasattr(v, "dtype") for v in value.values):
        arrays = [
            jax.device_put(jnp.asarray(v), device)
            for v, device in zip(value.values, group.local_devices, strict=True)
        ]
        return PerReplica(arrays, group)
    return value
