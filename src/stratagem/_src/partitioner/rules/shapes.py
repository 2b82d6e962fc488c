"""Partitioning rules for operations that move elements: reshape, transpose, slice, concatenate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.layout import Sharded, Value
from stratagem._src.partitioner.rules.elementwise import shards_of
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_sharded, rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__: list[str] = []


def _bind(
    ctx: ShardingContext,
    equation: FlatEquation,
    operands: Sequence[Value],
    dim: int,
    **changed: Any,
) -> list[Value]:
    """Applies the primitive with changed parameters; all results are sharded along ``dim``."""
    params = {**equation.params, **changed}
    arrays = ctx.bind(equation.primitive, params, [value.array for value in operands])
    return [Value(array, Sharded(dim)) for array in arrays]


@rule("broadcast_in_dim")
def broadcast_in_dim(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """The dimension moves."""
    if len(operands) > 1:
        return GATHER_ALL
    _, dim = first_sharded(operands)
    dim = int(equation.params["broadcast_dimensions"][dim])
    shape = ctx.local_shape(equation.params["shape"], dim)
    return _bind(ctx, equation, operands, dim, shape=shape)


@rule("reshape")
def reshape(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Keeps the shards if the new shape has a dimension at the same offset that can be sharded."""
    if len(operands) > 1 or equation.params["dimensions"] is not None:
        return GATHER_ALL
    _, dim = first_sharded(operands)
    before = math.prod(operands[0].array.shape[:dim])
    new_sizes = equation.params["new_sizes"]
    for new_dim, length in enumerate(new_sizes):
        fits = length > 1 and ctx.can_shard(length)
        if fits and math.prod(new_sizes[:new_dim]) == before:
            local = ctx.local_shape(new_sizes, new_dim)
            return _bind(ctx, equation, operands, new_dim, new_sizes=local)
    return GATHER_ALL


@rule("squeeze")
def squeeze(ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]) -> list[Value]:
    """The dimension moves to the front."""
    _, dim = first_sharded(operands)
    removed = sum(int(d) < dim for d in equation.params["dimensions"])
    return _bind(ctx, equation, operands, dim - removed)


@rule("transpose")
def transpose(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value]:
    """The dimension moves."""
    _, dim = first_sharded(operands)
    return _bind(ctx, equation, operands, list(equation.params["permutation"]).index(dim))


@rule("rev")
def rev(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Reverses dimensions that are not sharded."""
    _, dim = first_sharded(operands)
    if dim in equation.params["dimensions"]:
        return GATHER_ALL
    return _bind(ctx, equation, operands, dim)


@rule("slice")
def slice_(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Slices dimensions that are not sharded."""
    _, dim = first_sharded(operands)
    params = equation.params
    length = operands[0].array.shape[dim]
    strides = params["strides"]
    is_all = (
        params["start_indices"][dim] == 0
        and params["limit_indices"][dim] == length * ctx.size
        and (strides is None or strides[dim] == 1)
    )
    if not is_all:
        return GATHER_ALL
    limits = ctx.local_shape(params["limit_indices"], dim)
    return _bind(ctx, equation, operands, dim, limit_indices=limits)


@rule("pad")
def pad(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Pads dimensions that are not sharded."""
    _, dim = first_sharded(operands)
    if tuple(equation.params["padding_config"][dim]) != (0, 0, 0):
        return GATHER_ALL
    return _bind(ctx, equation, operands, dim)


_ALONG = {
    "concatenate": "dimension",
    "cumlogsumexp": "axis",
    "cummax": "axis",
    "cummin": "axis",
    "cumprod": "axis",
    "cumsum": "axis",
    "sort": "dimension",
    "split": "axis",
}
"""The parameter that names the dimension, for operations along one dimension."""


@rule(*_ALONG)
def along_another_dimension(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Shards are concatenated, split, sorted or accumulated along a dimension that is not sharded."""
    _, dim = first_sharded(operands)
    if dim == equation.params[_ALONG[equation.name]]:
        return GATHER_ALL
    shards = shards_of(ctx, operands, dim, operands[0].array.ndim)
    return shards if isinstance(shards, Gather) else _bind(ctx, equation, shards, dim)


@rule("dynamic_slice")
def dynamic_slice(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Slices dimensions that are not sharded; a full slice of the sharded one always starts at 0."""
    position, dim = first_sharded(operands)
    sizes = equation.params["slice_sizes"]
    if position or sizes[dim] != operands[0].array.shape[dim] * ctx.size:
        return GATHER_ALL
    local = ctx.local_shape(sizes, dim)
    return _bind(ctx, equation, operands, dim, slice_sizes=local)


@rule("dynamic_update_slice")
def dynamic_update_slice(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """The update covers all of the dimension."""
    _, dim = first_sharded(operands)
    operand, update, *indices = operands
    if ctx.global_length(operand, dim) != ctx.global_length(update, dim):
        return GATHER_ALL
    shards = shards_of(ctx, [operand, update], dim, operand.array.ndim)
    if isinstance(shards, Gather):
        return shards
    return _bind(ctx, equation, [*shards, *indices], dim)


@rule("top_k")
def top_k(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Searches along a dimension that is not sharded."""
    _, dim = first_sharded(operands)
    ndim = operands[0].array.ndim
    if dim == equation.params.get("axis", ndim - 1) % ndim:
        return GATHER_ALL
    return _bind(ctx, equation, operands, dim)
