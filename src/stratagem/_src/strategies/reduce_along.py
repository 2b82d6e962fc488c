"""``Strategy.reduce`` with an axis: combines values over the replicas and along axes of each array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.collectives.replica_programs import spmd_map
from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, DTypeLike, Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables.as_per_replica import is_per_replica

if TYPE_CHECKING:
    from stratagem._src.strategies.extended import StrategyExtended

__all__ = ["reduce_along"]


def reduce_along(
    extended: StrategyExtended, op: ReduceOp, value: ArrayLike, axes: tuple[int, ...]
) -> Any:
    """Returns a value combined over the replicas and along axes of each replica's array.

    A mean divides by the true number of elements, even if replicas have different numbers.

    Args:
        extended: The strategy's ``extended``, which combines over the replicas.
        op: How to combine.
        value: A per-replica value, or one that is the same for all.
        axes: Dimensions of each replica's array.

    Raises:
        ShapeMismatchError: If the value has no such axis.
        ValueError: If the op does not support such values.
    """
    if isinstance(value, IndexedSlices):
        raise ValueError("IndexedSlices can be reduced over replicas only: use axis=None.")
    group = extended.replica_group
    if not is_per_replica(value):
        if group.size > 1 and op is ReduceOp.SUM and not group.spans_processes:
            return extended.reduce_value(op, value)  # raises
        array = jnp.asarray(own_host_array(value))
        dtype = _result_dtype(op, array.dtype)
        partial, count = _partial(op, array, axes)
        if not group.spans_processes:
            return _combine(op, dtype, [(partial, count)], count, lambda parts: parts[0])
        # Each worker has its own value; in a traced function all have the same shape.
        num_workers = group.size // group.local_size
        total = (
            count * num_workers
            if is_tracer(array)
            else _count_everywhere(group, [(partial, count)])
        )
        return _combine(
            op,
            dtype,
            [(partial, count)],
            total,
            lambda parts: extended.reduce_value(_across(op), parts[0]),
        )
    if isinstance(value, SpmdPerReplica):
        return _reduce_along_spmd(extended, op, value.local, axes)
    if value.staged:
        return spmd_map(lambda part: _reduce_along_spmd(extended, op, part, axes), [value], group)
    arrays = [jnp.asarray(own_host_array(part)) for part in value.values]
    partials = [_partial(op, array, axes) for array in arrays]
    return _combine(
        op,
        _result_dtype(op, arrays[0].dtype),
        partials,
        _count_everywhere(group, partials),
        lambda parts: (
            extended.reduce_value(_across(op), PerReplica(parts, group))
            if group.size > 1
            else parts[0]
        ),
    )


def _count_everywhere(group: ReplicaGroup, partials: list[tuple[Any, int]]) -> int:
    """Returns the number of elements in the partial results of all replicas."""
    count = sum(count for _, count in partials)
    if not group.spans_processes:
        return count
    return sum(process_monitor().all_gather_object("counts", count, "reduce along an axis"))


def _reduce_along_spmd(
    extended: StrategyExtended, op: ReduceOp, local: Tensor, axes: tuple[int, ...]
) -> Any:
    partial, count = _partial(op, local, axes)
    size = extended.replica_group.size
    across = SpmdPerReplica(extended.replica_group, partial)
    return _combine(
        op,
        _result_dtype(op, local.dtype),
        [(partial, count)] * size,
        count * size,
        lambda _: extended.reduce_value(_across(op), across),
    )


def _across(op: ReduceOp) -> ReduceOp:
    return ReduceOp.SUM if op is ReduceOp.MEAN else op


def _result_dtype(op: ReduceOp, dtype: DTypeLike) -> Any:
    if op is ReduceOp.MEAN:
        return _mean_dtype(dtype)
    return jnp.int32 if op is ReduceOp.SUM and dtype == jnp.bool_ else dtype


def _mean_dtype(dtype: DTypeLike) -> Any:
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.promote_types(dtype, jnp.float32)


def _partial(op: ReduceOp, array: ArrayLike, axes: tuple[int, ...]) -> tuple[Any, int]:
    """Returns one replica's array combined along ``axes``, and the number of elements in each result."""
    for axis in axes:
        if not -array.ndim <= axis < array.ndim:
            raise ShapeMismatchError(
                f"reduce needs an axis of the value, which has {array.ndim} dimensions, got axis {axis}."
            )
    positions = tuple(axis % array.ndim for axis in axes)
    count = math.prod(array.shape[position] for position in positions)
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        return jnp.sum(array, axis=positions, dtype=_sum_dtype(op, array.dtype)), count
    if array.dtype == jnp.bool_:
        combine = jnp.any if op is ReduceOp.MAX else jnp.all
        return combine(array, axis=positions), count
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"{op.name} needs numbers that have an order, got {array.dtype.name}.")
    limits: tuple[float, float] = (-np.inf, np.inf)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        limits = (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
    # As NumPy scalars of the dtype: JAX would treat Python integers as int32.
    low, high = np.array(limits, array.dtype)
    if op is ReduceOp.MIN:
        return jnp.min(array, axis=positions, initial=high), count
    return jnp.max(array, axis=positions, initial=low), count


def _sum_dtype(op: ReduceOp, dtype: DTypeLike) -> Any:
    """Returns the dtype in which to sum: the result's, or a wider one if sums may overflow."""
    if dtype in (jnp.float16, jnp.bfloat16):
        return jnp.float32
    if op is ReduceOp.MEAN:
        return _mean_dtype(dtype)
    return jnp.int32 if dtype == jnp.bool_ else dtype


def _combine(
    op: ReduceOp,
    dtype: DTypeLike,
    partials: list[tuple[Any, int]],
    total: int,
    across: Callable[[list[Any]], Any],
) -> Any:
    if total == 0 and op in (ReduceOp.MIN, ReduceOp.MAX):
        raise ShapeMismatchError(f"{op.name} of zero elements is not defined.")
    result = across([partial for partial, _ in partials])
    return (result / total if op is ReduceOp.MEAN else result).astype(dtype)
