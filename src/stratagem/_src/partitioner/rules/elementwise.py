"""The partitioning rule for elementwise operations."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._src.jax_compat.primitives import BITCAST, ELEMENTWISE, OPTIMIZATION_BARRIER
from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.layout import Sharded, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_sharded, rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__ = ["shards_of"]


def shards_of(
    ctx: ShardingContext, operands: Sequence[Value], dim: int, rank: int
) -> list[Value] | Gather:
    """Returns operands of one shape, each of them sharded.

    Dimensions are aligned at the last one, as in broadcasting: leading dimensions of an operand may be
    missing, and a dimension of length 1 is broadcast instead of sharded.

    Args:
        ctx: The replicas.
        operands: The operands.
        dim: The dimension of the result that is sharded.
        rank: The number of dimensions of the result.
    """
    shards = []
    others = []
    for position, value in enumerate(operands):
        own = dim - rank + value.array.ndim
        if isinstance(value.layout, Sharded):
            if value.layout.dim != own:
                others.append(position)
        elif own >= 0 and value.array.shape[own] != 1:
            value = ctx.shard(value, own)
        shards.append(value)
    return Gather(tuple(others)) if others else shards


@rule(*ELEMENTWISE)
def elementwise(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """All operands are sharded like the first sharded one."""
    if equation.name == OPTIMIZATION_BARRIER:
        arrays = ctx.bind(equation.primitive, equation.params, [v.array for v in operands])
        return [Value(a, v.layout) for a, v in zip(arrays, operands, strict=True)]
    if equation.name == BITCAST and len(equation.shapes[0]) != operands[0].array.ndim:
        return GATHER_ALL
    position, dim = first_sharded(operands)
    rank = len(equation.shapes[0])
    dim += rank - operands[position].array.ndim
    shards = shards_of(ctx, operands, dim, rank)
    if isinstance(shards, Gather):
        return shards
    arrays = ctx.bind(equation.primitive, equation.params, [v.array for v in shards])
    return [Value(array, Sharded(dim)) for array in arrays]
