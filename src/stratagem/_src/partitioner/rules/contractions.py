"""Partitioning rules for contractions: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.layout import PARTIAL, Layout, Replicated, Sharded, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_sharded, rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__: list[str] = []


def _with_partner(
    ctx: ShardingContext, operands: Sequence[Value], position: int, partner_dim: int | None
) -> list[Value] | Gather:
    """Returns both operands, the other one sharded along ``partner_dim`` or replicated for ``None``."""
    other = 1 - position
    value = operands[other]
    wanted: Layout = Replicated() if partner_dim is None else Sharded(partner_dim)
    if value.layout != wanted:
        if isinstance(value.layout, Sharded) or partner_dim is None:
            return Gather((other,))
        value = ctx.shard(value, partner_dim)
    pair = [operands[position], value]
    return pair if position == 0 else pair[::-1]


@rule("dot_general")
def dot_general(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """A sharded contracted dimension gives a partial result; a batch or free dimension stays sharded."""
    position, dim = first_sharded(operands)
    contracted, batch = equation.params["dimension_numbers"]
    mine, theirs = contracted[position], contracted[1 - position]
    my_batch, their_batch = batch[position], batch[1 - position]
    layout: Layout
    if dim in mine:
        # Each replica multiplies its shards of both operands; the sum of the products is the result.
        layout, partner = PARTIAL, theirs[tuple(mine).index(dim)]
    elif dim in my_batch:
        place = tuple(my_batch).index(dim)
        layout, partner = Sharded(place), their_batch[place]
    else:
        # The dimensions of the result: batch, free ones of the first operand, free ones of the second.
        free = [d for d in range(operands[position].array.ndim) if d not in (*mine, *my_batch)]
        place = len(my_batch) + free.index(dim)
        if position == 1:
            place += operands[0].array.ndim - len(my_batch) - len(theirs)
        layout, partner = Sharded(place), None
    pair = _with_partner(ctx, operands, position, partner)
    if isinstance(pair, Gather):
        return pair
    arrays = ctx.bind(equation.primitive, equation.params, [value.array for value in pair])
    return [Value(arrays[0], layout)]


@rule("conv_general_dilated")
def convolution(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """The batch stays sharded; sharded features, as in the kernel's gradient, give a partial result."""
    position, dim = first_sharded(operands)
    params = equation.params
    if params["batch_group_count"] != 1:
        return GATHER_ALL
    numbers = params["dimension_numbers"]
    specs = (numbers.lhs_spec, numbers.rhs_spec)
    layout: Layout
    if position == 0 and dim == numbers.lhs_spec[0]:
        layout, partner = Sharded(numbers.out_spec[0]), None
    elif dim == specs[position][1] and params["feature_group_count"] == 1:
        layout, partner = PARTIAL, specs[1 - position][1]
    else:
        return GATHER_ALL
    pair = _with_partner(ctx, operands, position, partner)
    if isinstance(pair, Gather):
        return pair
    arrays = ctx.bind(equation.primitive, params, [value.array for value in pair])
    return [Value(arrays[0], layout)]
