"""Reductions, within blocks and over all of them."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from stratagem._src.mesh.replica_group import REPLICA_AXIS
from stratagem._src.partitioner.disjoint_windows import are_disjoint, scatter_to_chosen
from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Equation
from stratagem._src.partitioner.layout import PARTIAL, WHOLE, Split, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_split, rule

__all__: list[str] = []


@rule(
    "reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor", "reduce_prod"
)
def reduce(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value]:
    """A sum over the blocks is left undone until somebody needs it."""
    _, dim = first_split(operands)
    axes = equation.params["axes"]
    [array] = division.bind(equation.primitive, equation.params, [operands[0].array])
    if dim not in axes:
        return [Value(array, Split(dim - sum(axis < dim for axis in axes)))]
    if equation.name == "reduce_sum":
        return [Value(array, PARTIAL)]
    every = jax.lax.all_gather(array, REPLICA_AXIS)
    params = {**equation.params, "axes": (0,)}
    [array] = division.bind(equation.primitive, params, [every])
    return [Value(array, WHOLE)]


@rule("argmax", "argmin")
def arg_reduce(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Looks along other dimensions."""
    _, dim = first_split(operands)
    axes = equation.params["axes"]
    if dim in axes:
        return GATHER_ALL
    [array] = division.bind(equation.primitive, equation.params, [operands[0].array])
    return [Value(array, Split(dim - sum(axis < dim for axis in axes)))]


@rule(
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "select_and_scatter_add",
    "select_and_gather_add",
)
def windows(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """Windows that lie within one element of the dimension."""
    _, dim = first_split(operands)
    params = equation.params
    is_single = (
        params["window_dimensions"][dim] == 1
        and params["window_strides"][dim] == 1
        and tuple(params["padding"][dim]) == (0, 0)
        and params.get("base_dilation", (1,) * (dim + 1))[dim] == 1
        and params.get("window_dilation", (1,) * (dim + 1))[dim] == 1
    )
    if not is_single or any(value.layout not in (Split(dim), WHOLE) for value in operands):
        return GATHER_ALL
    blocks = [v if v.layout == Split(dim) else division.block(v, dim) for v in operands]
    arrays = [value.array for value in blocks]
    is_scatter = equation.name == "select_and_scatter_add"
    if is_scatter and division.group.on_cpu and are_disjoint(params):
        return [Value(scatter_to_chosen(params, *arrays), Split(dim))]
    return [Value(array, Split(dim)) for array in division.bind(equation.primitive, params, arrays)]
