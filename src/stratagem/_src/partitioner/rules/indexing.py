"""Partitioning rules for gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._src.jax_compat.primitives import SCATTER
from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.layout import PARTIAL, REPLICATED, Layout, Sharded, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__: list[str] = []


def _with_layouts(
    ctx: ShardingContext, operands: Sequence[Value], layouts: Sequence[Layout]
) -> list[Value] | Gather:
    """Shards replicated operands as ``layouts`` says, and gathers those that are sharded otherwise."""
    wrong = tuple(
        position
        for position, (value, layout) in enumerate(zip(operands, layouts, strict=True))
        if isinstance(value.layout, Sharded) and value.layout != layout
    )
    if wrong:
        return Gather(wrong)
    return [
        ctx.shard(value, layout.dim)
        if isinstance(layout, Sharded) and value.layout == REPLICATED
        else value
        for value, layout in zip(operands, layouts, strict=True)
    ]


@rule("gather")
def gather(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Works for sharded indices, and for an operand that is sharded along a dimension sliced in full."""
    source, indices = operands
    numbers: Any = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    rank = len(equation.shapes[0])
    index_dims = [d for d in range(rank) if d not in numbers.offset_dims]
    if isinstance(source.layout, Sharded) and source.layout.dim in numbers.operand_batching_dims:
        place = tuple(numbers.operand_batching_dims).index(source.layout.dim)
        return _gather_rows(ctx, equation, operands, numbers.start_indices_batching_dims[place])
    if isinstance(source.layout, Sharded):
        dim = source.layout.dim
        is_full = sizes[dim] == source.array.shape[dim] * ctx.size
        if not is_full or dim in numbers.collapsed_slice_dims or dim in numbers.start_index_map:
            return Gather((0,))
        kept = [
            d
            for d in range(source.array.ndim)
            if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        ]
        result = numbers.offset_dims[kept.index(dim)]
        values = _with_layouts(ctx, operands, [source.layout, REPLICATED])
        if isinstance(values, Gather):
            return values
        params = {**equation.params, "slice_sizes": ctx.local_shape(sizes, dim)}
        [array] = ctx.bind(equation.primitive, params, [v.array for v in values])
        return [Value(array, Sharded(result))]
    assert isinstance(indices.layout, Sharded)
    if indices.layout.dim >= len(index_dims):
        return GATHER_ALL
    return _gather_rows(ctx, equation, operands, indices.layout.dim)


def _gather_rows(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value], index_dim: int
) -> list[Value] | Gather:
    numbers: Any = equation.params["dimension_numbers"]
    source_layout: Layout = REPLICATED
    batching = tuple(numbers.start_indices_batching_dims)
    if index_dim in batching:
        source_layout = Sharded(numbers.operand_batching_dims[batching.index(index_dim)])
    values = _with_layouts(ctx, operands, [source_layout, Sharded(index_dim)])
    if isinstance(values, Gather):
        return values
    rank = len(equation.shapes[0])
    index_dims = [d for d in range(rank) if d not in numbers.offset_dims]
    [array] = ctx.bind(equation.primitive, equation.params, [v.array for v in values])
    return [Value(array, Sharded(index_dims[index_dim]))]


@rule("scatter-add", "scatter")
def scatter(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Sharded updates give a partial result, unless each replica has the rows that it updates."""
    target, indices, updates = operands
    numbers: Any = equation.params["dimension_numbers"]
    scatter_dims = [d for d in range(updates.array.ndim) if d not in numbers.update_window_dims]
    if isinstance(indices.layout, Sharded) and indices.layout.dim < len(scatter_dims):
        index_dim = indices.layout.dim
    elif isinstance(updates.layout, Sharded) and updates.layout.dim in scatter_dims:
        index_dim = scatter_dims.index(updates.layout.dim)
    elif isinstance(target.layout, Sharded) and target.layout.dim in numbers.operand_batching_dims:
        place = tuple(numbers.operand_batching_dims).index(target.layout.dim)
        index_dim = numbers.scatter_indices_batching_dims[place]
    else:
        return _scatter_windows(ctx, equation, operands)
    batching = tuple(numbers.scatter_indices_batching_dims)
    layouts: list[Layout] = [REPLICATED, Sharded(index_dim), Sharded(scatter_dims[index_dim])]
    result: Layout = PARTIAL
    if index_dim in batching:
        result = layouts[0] = Sharded(numbers.operand_batching_dims[batching.index(index_dim)])
    elif equation.name == SCATTER:
        # Replicas overwrite elements instead of adding: their results cannot be summed.
        return GATHER_ALL
    values = _with_layouts(ctx, operands, layouts)
    if isinstance(values, Gather):
        return values
    if result == PARTIAL:
        # The target must be added once, not by every replica.
        values[0] = ctx.as_partial(values[0])
    [array] = ctx.bind(equation.primitive, equation.params, [v.array for v in values])
    return [Value(array, result)]


def _scatter_windows(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Every replica has its shard of each window."""
    target = operands[0]
    numbers: Any = equation.params["dimension_numbers"]
    if not isinstance(target.layout, Sharded):
        return GATHER_ALL
    dim = target.layout.dim
    left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    if dim in (*left_out, *numbers.scatter_dims_to_operand_dims):
        return GATHER_ALL
    kept = [d for d in range(target.array.ndim) if d not in left_out]
    window_dim = numbers.update_window_dims[kept.index(dim)]
    if ctx.global_length(operands[2], window_dim) != ctx.global_length(target, dim):
        return GATHER_ALL
    layouts: list[Layout] = [target.layout, REPLICATED, Sharded(window_dim)]
    values = _with_layouts(ctx, operands, layouts)
    if isinstance(values, Gather):
        return values
    [array] = ctx.bind(equation.primitive, equation.params, [v.array for v in values])
    return [Value(array, target.layout)]
