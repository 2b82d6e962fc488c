"""All-reduces of arrays, inside the program of the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.collective_order import CollectiveOrder
from stratagem._src.collectives.point_to_point import accumulator, finish
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.shared_memory.combination import Combination

__all__ = ["PLAIN_ALL_REDUCE", "all_reduce_each"]

_LARGEST_EXCHANGE = 256 * 2**20
"""Bytes: 1 MB took 0.5 and 25 MB 0.8 of the time of an all-reduce, 100 MB 0.8 with huge pages and 1.0
without (loopback)."""

PLAIN_ALL_REDUCE: dict[ReduceOp, Callable[[Any], Any]] = {
    ReduceOp.SUM: lambda array: jax.lax.psum(array, REPLICA_AXIS),
    ReduceOp.MEAN: lambda array: jax.lax.pmean(array, REPLICA_AXIS),
    ReduceOp.MIN: lambda array: jax.lax.pmin(array, REPLICA_AXIS),
    ReduceOp.MAX: lambda array: jax.lax.pmax(array, REPLICA_AXIS),
}
"""JAX's own collectives, which can be differentiated."""


_COMBINATIONS = {
    ReduceOp.SUM: Combination.SUM,
    ReduceOp.MEAN: Combination.SUM,
    ReduceOp.MIN: Combination.MIN,
    ReduceOp.MAX: Combination.MAX,
}


def all_reduce_each(
    op: ReduceOp, arrays: Sequence[Any], group: ReplicaGroup, order: CollectiveOrder
) -> list[Any]:
    """Returns arrays reduced in the way that is fastest; to be compiled, not to be differentiated."""
    combination = _COMBINATIONS[op]
    shared = [i for i, array in enumerate(arrays) if order.can_share(combination, array)]
    results: list[Any] = [None] * len(arrays)
    if shared:
        exchanged = order.exchange(combination, [arrays[i] for i in shared])
        for i, result in zip(shared, exchanged, strict=True):
            results[i] = finish(op, result, group.size)
    for i, array in enumerate(arrays):
        if i not in shared:
            results[i] = order.run(lambda operand: _all_reduce(op, operand, group), array)
    return results


def _all_reduce(op: ReduceOp, array: Any, group: ReplicaGroup) -> Any:
    two_processes = group.spans_processes and group.on_cpu and group.size == 2
    is_complex = jnp.issubdtype(array.dtype, jnp.complexfloating)
    if not two_processes or is_complex or array.size * array.dtype.itemsize > _LARGEST_EXCHANGE:
        return PLAIN_ALL_REDUCE[op](array)
    # Between two processes one exchange is faster than XLA's all-reduce; both compute the same.
    other = jax.lax.ppermute(array, REPLICA_AXIS, [(0, 1), (1, 0)])
    return finish(op, accumulator(op)([_rounded(array), other]), 2)


def _rounded(array: Any) -> Any:
    """Returns the array as the other process gets it.

    XLA may compute the product that made it once more, as one operation with the sum that follows and
    without rounding in between; not through whole numbers that change by something it does not know.
    """
    if not array.size or not jnp.issubdtype(array.dtype, jnp.inexact):
        return array
    bits = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    first = array.ravel()[0]
    never = jnp.isnan(first) & ~jnp.isnan(first * 2)
    return jax.lax.bitcast_convert_type(bits ^ never.astype(bits.dtype), array.dtype)
