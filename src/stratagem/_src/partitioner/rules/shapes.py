"""Operations that move elements: reshaping, transposing, slicing, joining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Equation
from stratagem._src.partitioner.layout import Split, Value
from stratagem._src.partitioner.rules.elementwise import blocks_of
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_split, rule

__all__: list[str] = []


def _bind(
    division: Division,
    equation: Equation,
    operands: Sequence[Value],
    dim: int,
    **changed: Any,
) -> list[Value]:
    """Applies the primitive with changed parameters; all results are split in a dimension."""
    params = {**equation.params, **changed}
    arrays = division.bind(equation.primitive, params, [value.array for value in operands])
    return [Value(array, Split(dim)) for array in arrays]


@rule("broadcast_in_dim")
def broadcast_in_dim(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """The dimension moves."""
    if len(operands) > 1:
        return GATHER_ALL
    _, dim = first_split(operands)
    dim = int(equation.params["broadcast_dimensions"][dim])
    shape = division.local_shape(equation.params["shape"], dim)
    return _bind(division, equation, operands, dim, shape=shape)


@rule("reshape")
def reshape(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """A block stays a block where as many elements come before the dimension as before."""
    if len(operands) > 1 or equation.params["dimensions"] is not None:
        return GATHER_ALL
    _, dim = first_split(operands)
    before = math.prod(operands[0].array.shape[:dim])
    new_sizes = equation.params["new_sizes"]
    for new_dim, length in enumerate(new_sizes):
        fits = length > 1 and division.can_split(length)
        if fits and math.prod(new_sizes[:new_dim]) == before:
            local = division.local_shape(new_sizes, new_dim)
            return _bind(division, equation, operands, new_dim, new_sizes=local)
    return GATHER_ALL


@rule("squeeze")
def squeeze(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value]:
    """The dimension moves to the front."""
    _, dim = first_split(operands)
    removed = sum(int(d) < dim for d in equation.params["dimensions"])
    return _bind(division, equation, operands, dim - removed)


@rule("transpose")
def transpose(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value]:
    """The dimension moves."""
    _, dim = first_split(operands)
    return _bind(division, equation, operands, list(equation.params["permutation"]).index(dim))


@rule("rev")
def rev(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | Gather:
    """Other dimensions may be reversed."""
    _, dim = first_split(operands)
    if dim in equation.params["dimensions"]:
        return GATHER_ALL
    return _bind(division, equation, operands, dim)


@rule("slice")
def slice_(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Other dimensions may be cut."""
    _, dim = first_split(operands)
    params = equation.params
    length = operands[0].array.shape[dim]
    strides = params["strides"]
    is_all = (
        params["start_indices"][dim] == 0
        and params["limit_indices"][dim] == length * division.size
        and (strides is None or strides[dim] == 1)
    )
    if not is_all:
        return GATHER_ALL
    limits = division.local_shape(params["limit_indices"], dim)
    return _bind(division, equation, operands, dim, limit_indices=limits)


@rule("pad")
def pad(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | Gather:
    """Other dimensions may be padded."""
    _, dim = first_split(operands)
    if tuple(equation.params["padding_config"][dim]) != (0, 0, 0):
        return GATHER_ALL
    return _bind(division, equation, operands, dim)


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
"""By which parameter operations along one dimension name it."""


@rule(*_ALONG)
def along_another_dimension(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Blocks are joined, taken apart, sorted or accumulated along another dimension."""
    _, dim = first_split(operands)
    if dim == equation.params[_ALONG[equation.name]]:
        return GATHER_ALL
    blocks = blocks_of(division, operands, dim, operands[0].array.ndim)
    return blocks if isinstance(blocks, Gather) else _bind(division, equation, blocks, dim)


@rule("dynamic_slice")
def dynamic_slice(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Other dimensions may be cut; all of this one starts at 0 whatever its index says."""
    position, dim = first_split(operands)
    sizes = equation.params["slice_sizes"]
    if position or sizes[dim] != operands[0].array.shape[dim] * division.size:
        return GATHER_ALL
    local = division.local_shape(sizes, dim)
    return _bind(division, equation, operands, dim, slice_sizes=local)


@rule("dynamic_update_slice")
def dynamic_update_slice(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """The update covers all of the dimension."""
    _, dim = first_split(operands)
    operand, update, *indices = operands
    if division.whole_length(operand, dim) != division.whole_length(update, dim):
        return GATHER_ALL
    blocks = blocks_of(division, [operand, update], dim, operand.array.ndim)
    if isinstance(blocks, Gather):
        return blocks
    return _bind(division, equation, [*blocks, *indices], dim)


@rule("top_k")
def top_k(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Looks along another dimension."""
    _, dim = first_split(operands)
    ndim = operands[0].array.ndim
    if dim == equation.params.get("axis", ndim - 1) % ndim:
        return GATHER_ALL
    return _bind(division, equation, operands, dim)
