"""Partitioning rules for reductions, within shards and across them."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from stratagem._src.jax_compat.primitives import REDUCE_SUM, SCATTER_POOLING
from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.mesh.replica_group import REPLICA_AXIS
from stratagem._src.partitioner.disjoint_windows import are_disjoint, scatter_to_chosen
from stratagem._src.partitioner.layout import PARTIAL, REPLICATED, Sharded, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_sharded, rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__: list[str] = []


@rule(
    "reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor", "reduce_prod"
)
def reduce(ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]) -> list[Value]:
    """A sum across shards stays partial; other reductions across shards gather one value per shard."""
    _, dim = first_sharded(operands)
    axes = equation.params["axes"]
    [array] = ctx.bind(equation.primitive, equation.params, [operands[0].array])
    if dim not in axes:
        return [Value(array, Sharded(dim - sum(axis < dim for axis in axes)))]
    if equation.name == REDUCE_SUM:
        return [Value(array, PARTIAL)]
    # One reduced array per replica, stacked along a new first dimension, which is reduced again.
    every = jax.lax.all_gather(array, REPLICA_AXIS)
    params = {**equation.params, "axes": (0,)}
    [array] = ctx.bind(equation.primitive, params, [every])
    return [Value(array, REPLICATED)]


@rule("argmax", "argmin")
def arg_reduce(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Reduces along dimensions that are not sharded."""
    _, dim = first_sharded(operands)
    axes = equation.params["axes"]
    if dim in axes:
        return GATHER_ALL
    [array] = ctx.bind(equation.primitive, equation.params, [operands[0].array])
    return [Value(array, Sharded(dim - sum(axis < dim for axis in axes)))]


@rule(
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "select_and_scatter_add",
    "select_and_gather_add",
)
def windows(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Works for windows of length 1 along the sharded dimension."""
    _, dim = first_sharded(operands)
    params = equation.params
    is_single = (
        params["window_dimensions"][dim] == 1
        and params["window_strides"][dim] == 1
        and tuple(params["padding"][dim]) == (0, 0)
        and params.get("base_dilation", (1,) * (dim + 1))[dim] == 1
        and params.get("window_dilation", (1,) * (dim + 1))[dim] == 1
    )
    if not is_single or any(value.layout not in (Sharded(dim), REPLICATED) for value in operands):
        return GATHER_ALL
    shards = [v if v.layout == Sharded(dim) else ctx.shard(v, dim) for v in operands]
    arrays = [value.array for value in shards]
    # The gradient of max pooling is slow in XLA's CPU compiler; see `disjoint_windows`.
    is_scatter = equation.name == SCATTER_POOLING
    if is_scatter and ctx.group.on_cpu and are_disjoint(params):
        return [Value(scatter_to_chosen(params, *arrays), Sharded(dim))]
    return [Value(array, Sharded(dim)) for array in ctx.bind(equation.primitive, params, arrays)]
