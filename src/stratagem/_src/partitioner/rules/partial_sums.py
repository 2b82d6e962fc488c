"""Rules for operations that can be applied to partial values before the all-reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.layout import PARTIAL, REPLICATED, Partial, Value
from stratagem._src.partitioner.rules.rule import partial_rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__: list[str] = []


def _bind(ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]) -> list[Value]:
    arrays = ctx.bind(equation.primitive, equation.params, [v.array for v in operands])
    return [Value(array, PARTIAL) for array in arrays]


@partial_rule(
    "copy", "copy_p", "neg", "reduce_sum", "reshape", "rev", "slice", "squeeze", "transpose"
)
def linear(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """A linear operation of one operand commutes with the sum over the replicas."""
    return _bind(ctx, equation, operands) if len(operands) == 1 else None


@partial_rule("broadcast_in_dim")
def broadcast(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """Only adds dimensions of length 1: repeated elements would make the all-reduce larger."""
    repeats = math.prod(equation.shapes[0]) > operands[0].array.size
    return None if repeats else linear(ctx, equation, operands)


@partial_rule("convert_element_type")
def reshard(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """Only converts to a dtype that holds every number of the first; integers wrap in their own dtype."""
    before, after = operands[0].array.dtype, equation.params["new_dtype"]
    keeps = jnp.issubdtype(before, jnp.inexact) and jnp.promote_types(before, after) == after
    return _bind(ctx, equation, operands) if keeps else None


@partial_rule("mul")
def multiply(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """Multiplies by a replicated value."""
    return _bind(ctx, equation, operands) if REPLICATED in [v.layout for v in operands] else None


@partial_rule("div")
def divide(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """Divides by a replicated value; integer division rounds, so it must follow the all-reduce."""
    exact = jnp.issubdtype(operands[0].array.dtype, jnp.inexact)
    return _bind(ctx, equation, operands) if exact and operands[1].layout == REPLICATED else None


@partial_rule("add", "sub", "add_any")
def add(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """Adds partial values to partial values."""
    if all(isinstance(value.layout, Partial) for value in operands):
        return _bind(ctx, equation, operands)
    return None


@partial_rule("select_n")
def select(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | None:
    """Selects between partial values by a replicated predicate."""
    which, *cases = operands
    if which.layout != REPLICATED or any(v.layout not in (REPLICATED, PARTIAL) for v in cases):
        return None
    return _bind(ctx, equation, [which, *map(ctx.as_partial, cases)])


@partial_rule("optimization_barrier")
def barrier(ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]) -> list[Value]:
    """Keeps every layout."""
    arrays = ctx.bind(equation.primitive, equation.params, [v.array for v in operands])
    return [Value(a, v.layout) for a, v in zip(arrays, operands, strict=True)]
