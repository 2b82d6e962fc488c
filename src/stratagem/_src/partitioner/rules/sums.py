"""What can be done with partial sums before they are added up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Equation
from stratagem._src.partitioner.layout import PARTIAL, WHOLE, Partial, Value
from stratagem._src.partitioner.rules.rule import sum_rule

__all__: list[str] = []


def _bind(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value]:
    arrays = division.bind(equation.primitive, equation.params, [v.array for v in operands])
    return [Value(array, PARTIAL) for array in arrays]


@sum_rule("copy", "copy_p", "neg", "reduce_sum", "reshape", "rev", "slice", "squeeze", "transpose")
def linear(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | None:
    """The sum of what is made of each part is what is made of the sum."""
    return _bind(division, equation, operands) if len(operands) == 1 else None


@sum_rule("broadcast_in_dim")
def broadcast(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | None:
    """Only if nothing is repeated: copies would be added up like the rest."""
    repeats = math.prod(equation.shapes[0]) > operands[0].array.size
    return None if repeats else linear(division, equation, operands)


@sum_rule("convert_element_type")
def convert(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | None:
    """Only to a type that holds every number of the first; whole numbers wrap around in their own."""
    before, after = operands[0].array.dtype, equation.params["new_dtype"]
    keeps = jnp.issubdtype(before, jnp.inexact) and jnp.promote_types(before, after) == after
    return _bind(division, equation, operands) if keeps else None


@sum_rule("mul")
def multiply(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | None:
    """By something that every replica has."""
    return _bind(division, equation, operands) if WHOLE in [v.layout for v in operands] else None


@sum_rule("div")
def divide(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | None:
    """By something that every replica has; whole numbers are rounded, which comes last."""
    exact = jnp.issubdtype(operands[0].array.dtype, jnp.inexact)
    return _bind(division, equation, operands) if exact and operands[1].layout == WHOLE else None


@sum_rule("add", "sub", "add_any")
def add(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | None:
    """Parts are added to parts."""
    if all(isinstance(value.layout, Partial) for value in operands):
        return _bind(division, equation, operands)
    return None


@sum_rule("select_n")
def select(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | None:
    """One of several sums."""
    which, *cases = operands
    if which.layout != WHOLE or any(v.layout not in (WHOLE, PARTIAL) for v in cases):
        return None
    return _bind(division, equation, [which, *map(division.addend, cases)])


@sum_rule("optimization_barrier")
def barrier(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value]:
    """Changes nothing."""
    arrays = division.bind(equation.primitive, equation.params, [v.array for v in operands])
    return [Value(a, v.layout) for a, v in zip(arrays, operands, strict=True)]
