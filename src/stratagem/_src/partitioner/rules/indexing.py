"""Reading and adding at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Equation
from stratagem._src.partitioner.layout import PARTIAL, WHOLE, Layout, Split, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, rule

__all__: list[str] = []


def _in_layouts(
    division: Division, operands: Sequence[Value], layouts: Sequence[Layout]
) -> list[Value] | Gather:
    """Cuts what is whole, and asks for what is split otherwise to be gathered."""
    wrong = tuple(
        position
        for position, (value, layout) in enumerate(zip(operands, layouts, strict=True))
        if isinstance(value.layout, Split) and value.layout != layout
    )
    if wrong:
        return Gather(wrong)
    return [
        division.block(value, layout.dim)
        if isinstance(layout, Split) and value.layout == WHOLE
        else value
        for value, layout in zip(operands, layouts, strict=True)
    ]


@rule("gather")
def gather(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Indices are split, or the operand in a dimension that is taken as a whole."""
    source, indices = operands
    numbers: Any = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    rank = len(equation.shapes[0])
    index_dims = [d for d in range(rank) if d not in numbers.offset_dims]
    if isinstance(source.layout, Split) and source.layout.dim in numbers.operand_batching_dims:
        place = tuple(numbers.operand_batching_dims).index(source.layout.dim)
        return _gather_rows(
            division, equation, operands, numbers.start_indices_batching_dims[place]
        )
    if isinstance(source.layout, Split):
        dim = source.layout.dim
        is_whole = sizes[dim] == source.array.shape[dim] * division.size
        if not is_whole or dim in numbers.collapsed_slice_dims or dim in numbers.start_index_map:
            return Gather((0,))
        kept = [
            d
            for d in range(source.array.ndim)
            if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        ]
        result = numbers.offset_dims[kept.index(dim)]
        values = _in_layouts(division, operands, [source.layout, WHOLE])
        if isinstance(values, Gather):
            return values
        params = {**equation.params, "slice_sizes": division.local_shape(sizes, dim)}
        [array] = division.bind(equation.primitive, params, [v.array for v in values])
        return [Value(array, Split(result))]
    assert isinstance(indices.layout, Split)
    if indices.layout.dim >= len(index_dims):
        return GATHER_ALL
    return _gather_rows(division, equation, operands, indices.layout.dim)


def _gather_rows(
    division: Division, equation: Equation, operands: Sequence[Value], index_dim: int
) -> list[Value] | Gather:
    numbers: Any = equation.params["dimension_numbers"]
    source_layout: Layout = WHOLE
    batching = tuple(numbers.start_indices_batching_dims)
    if index_dim in batching:
        source_layout = Split(numbers.operand_batching_dims[batching.index(index_dim)])
    values = _in_layouts(division, operands, [source_layout, Split(index_dim)])
    if isinstance(values, Gather):
        return values
    rank = len(equation.shapes[0])
    index_dims = [d for d in range(rank) if d not in numbers.offset_dims]
    [array] = division.bind(equation.primitive, equation.params, [v.array for v in values])
    return [Value(array, Split(index_dims[index_dim]))]


@rule("scatter-add", "scatter")
def scatter(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Split updates add up to partial sums, unless each replica has the rows that it changes."""
    target, indices, updates = operands
    numbers: Any = equation.params["dimension_numbers"]
    scatter_dims = [d for d in range(updates.array.ndim) if d not in numbers.update_window_dims]
    if isinstance(indices.layout, Split) and indices.layout.dim < len(scatter_dims):
        index_dim = indices.layout.dim
    elif isinstance(updates.layout, Split) and updates.layout.dim in scatter_dims:
        index_dim = scatter_dims.index(updates.layout.dim)
    elif isinstance(target.layout, Split) and target.layout.dim in numbers.operand_batching_dims:
        place = tuple(numbers.operand_batching_dims).index(target.layout.dim)
        index_dim = numbers.scatter_indices_batching_dims[place]
    else:
        return _scatter_windows(division, equation, operands)
    batching = tuple(numbers.scatter_indices_batching_dims)
    layouts: list[Layout] = [WHOLE, Split(index_dim), Split(scatter_dims[index_dim])]
    result: Layout = PARTIAL
    if index_dim in batching:
        result = layouts[0] = Split(numbers.operand_batching_dims[batching.index(index_dim)])
    elif equation.name == "scatter":
        return GATHER_ALL
    values = _in_layouts(division, operands, layouts)
    if isinstance(values, Gather):
        return values
    if result == PARTIAL:
        values[0] = division.addend(values[0])
    [array] = division.bind(equation.primitive, equation.params, [v.array for v in values])
    return [Value(array, result)]


def _scatter_windows(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Every replica has its part of each window."""
    target = operands[0]
    numbers: Any = equation.params["dimension_numbers"]
    if not isinstance(target.layout, Split):
        return GATHER_ALL
    dim = target.layout.dim
    left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    if dim in (*left_out, *numbers.scatter_dims_to_operand_dims):
        return GATHER_ALL
    kept = [d for d in range(target.array.ndim) if d not in left_out]
    window_dim = numbers.update_window_dims[kept.index(dim)]
    if division.whole_length(operands[2], window_dim) != division.whole_length(target, dim):
        return GATHER_ALL
    layouts: list[Layout] = [target.layout, WHOLE, Split(window_dim)]
    values = _in_layouts(division, operands, layouts)
    if isinstance(values, Gather):
        return values
    [array] = division.bind(equation.primitive, equation.params, [v.array for v in values])
    return [Value(array, target.layout)]
