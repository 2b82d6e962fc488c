"""The partitioning rule for padded values: elementwise operations and sums.

All other operations need padded operands replicated.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stratagem._src.jax_compat.primitives import (
    BITCAST,
    ELEMENTWISE,
    OPTIMIZATION_BARRIER,
    REDUCE_SUM,
)
from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.mesh.replica_group import REPLICA_AXIS
from stratagem._src.partitioner.layout import PARTIAL, REPLICATED, Padded, Value
from stratagem._src.partitioner.rules.rule import Gather
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = ["padded"]


def padded(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Applies an operation to operands at least one of which is padded."""
    name, params = equation.name, equation.params
    if name == OPTIMIZATION_BARRIER:
        arrays = ctx.bind(equation.primitive, params, [v.array for v in operands])
        return [Value(a, v.layout) for a, v in zip(arrays, operands, strict=True)]
    rank = len(equation.shapes[0])
    position = next(i for i, v in enumerate(operands) if isinstance(v.layout, Padded))
    layout, ndim = operands[position].layout, operands[position].array.ndim
    assert isinstance(layout, Padded)
    if name == REDUCE_SUM:
        return _sum(ctx, equation, operands[0].array, layout)
    if name not in ELEMENTWISE or (name == BITCAST and rank != ndim):
        return Gather(tuple(i for i, v in enumerate(operands) if v.layout != REPLICATED))
    from_last = layout.dim - ndim
    shards = []
    others = []
    for i, value in enumerate(operands):
        own = from_last + value.array.ndim
        if value.layout == REPLICATED:
            if own >= 0 and value.array.shape[own] != 1:
                value = ctx.padded_shard(value, own)
        elif value.layout != Padded(own, layout.length):
            others.append(i)
        shards.append(value)
    if others:
        return Gather(tuple(others))
    arrays = ctx.bind(equation.primitive, params, [value.array for value in shards])
    return [Value(array, Padded(from_last + rank, layout.length)) for array in arrays]


def _sum(
    ctx: ShardingContext, equation: FlatEquation, array: jax.Array, layout: Padded
) -> list[Value]:
    axes = equation.params["axes"]
    if layout.dim not in axes:
        [array] = ctx.bind(equation.primitive, equation.params, [array])
        moved = layout.dim - sum(axis < layout.dim for axis in axes)
        return [Value(array, Padded(moved, layout.length))]
    # Padding has arbitrary values, which must not be added.
    length = array.shape[layout.dim]
    rows = jax.lax.broadcasted_iota(jnp.int32, array.shape, layout.dim)
    is_element = rows < layout.length - jax.lax.axis_index(REPLICA_AXIS) * length
    counted = jnp.where(is_element, array, jnp.zeros_like(array))
    [array] = ctx.bind(equation.primitive, equation.params, [counted])
    return [Value(array, PARTIAL)]
