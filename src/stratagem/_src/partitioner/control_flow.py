"""Partitioning rules for loops and branches, whose bodies are partitioned recursively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.core.types import Jaxpr, Tensor
from stratagem._src.jax_compat.primitives import COND, SCAN, WHILE, scan_counts
from stratagem._src.jaxpr.inline import FlatEquation
from stratagem._src.partitioner.evaluation import evaluate
from stratagem._src.partitioner.inlined_program import FlatProgram, flatten, unsharded_constant
from stratagem._src.partitioner.layout import REPLICATED, Layout, Sharded, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, rule
from stratagem._src.partitioner.sharding_context import ShardingContext

__all__: list[str] = []


def _values(arrays: Sequence[Any], layouts: Sequence[Layout]) -> list[Value]:
    return [Value(array, layout) for array, layout in zip(arrays, layouts, strict=True)]


def _with_consts(closed: Jaxpr) -> tuple[FlatProgram, list[Value]]:
    return flatten(closed), [
        Value(unsharded_constant(const), REPLICATED) for const in closed.consts
    ]


def _common_layout(layouts: set[Layout]) -> Layout:
    """Returns one layout for a value that has different layouts, for example in two branches."""
    if len(layouts) == 1:
        return next(iter(layouts))
    others = layouts - {REPLICATED}
    return next(iter(others)) if len(others) == 1 else REPLICATED


def _output_layouts(
    ctx: ShardingContext, program: FlatProgram, inputs: Sequence[Value], *, defer_sums: bool = False
) -> list[Layout]:
    layouts: list[Layout] = []

    def run(*arrays: Tensor) -> list[Any]:
        values = _values(arrays, [value.layout for value in inputs])
        results = evaluate(ctx, program, values, defer_sums=defer_sums)
        layouts.extend(result.layout for result in results)
        return [result.array for result in results]

    jax.eval_shape(run, *(value.array for value in inputs))
    return layouts


def _carry_layouts(
    ctx: ShardingContext,
    program: FlatProgram,
    consts: Sequence[Value],
    carry: Sequence[Value],
    others: Sequence[Value],
) -> list[Layout]:
    """Returns the layouts of the carried values: a fixed point of the loop's body.

    A value starts with the layout of its initial value. Where the body returns it in another layout, both
    are merged and the body is traced again. Two different sharded or partial layouts merge into the
    replicated one, which is then final, so the iteration ends.
    """
    layouts = [value.layout for value in carry]
    fixed = [False] * len(layouts)
    while True:
        # Only shapes and layouts matter here: `_output_layouts` traces the body with `jax.eval_shape`.
        given = [ctx.reshard(v, lay) for v, lay in zip(carry, layouts, strict=True)]
        inputs = [*consts, *given, *others]
        left = _output_layouts(ctx, program, inputs, defer_sums=True)[: len(layouts)]
        merged = list(layouts)
        for i, (before, after) in enumerate(zip(layouts, left, strict=True)):
            if not fixed[i]:
                merged[i] = _common_layout({before, after})
                fixed[i] = before != REPLICATED and merged[i] != before
        if merged == layouts:
            return layouts
        layouts = merged


@rule(SCAN)
def scan(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """All replicas run every step. The scanned dimension itself is never sharded."""
    params = equation.params
    num_consts, num_carry = scan_counts(params)
    first_x = num_consts + num_carry
    scanned = tuple(i for i in range(first_x, len(operands)) if operands[i].layout == Sharded(0))
    if scanned:
        return Gather(scanned)
    consts, carry, xs = (
        operands[:num_consts],
        operands[num_consts:first_x],
        operands[first_x:],
    )
    program, known = _with_consts(params["jaxpr"])
    consts = [*known, *consts]
    # The body sees one step of `xs`, without the scanned first dimension: sharded dims move down by one,
    # and those of the stacked results move up again.
    x_layouts: list[Layout] = [
        Sharded(x.layout.dim - 1) if isinstance(x.layout, Sharded) else x.layout for x in xs
    ]
    examples = _values(
        [jax.ShapeDtypeStruct(x.array.shape[1:], x.array.dtype) for x in xs], x_layouts
    )
    layouts = _carry_layouts(ctx, program, consts, carry, examples)
    y_layouts: list[Layout] = []

    def body(carried: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        inputs = [*consts, *_values(carried, layouts), *_values(x, x_layouts)]
        results = evaluate(ctx, program, inputs)
        kept = [ctx.reshard(v, lay) for v, lay in zip(results, layouts, strict=False)]
        ys = results[num_carry:]
        y_layouts[:] = [y.layout for y in ys]
        return [value.array for value in kept], [y.array for y in ys]

    start = [ctx.reshard(v, lay).array for v, lay in zip(carry, layouts, strict=True)]
    last, stacked = jax.lax.scan(
        body,
        start,
        [x.array for x in xs],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    stacked_layouts: list[Layout] = [
        Sharded(lay.dim + 1) if isinstance(lay, Sharded) else lay for lay in y_layouts
    ]
    return [*_values(last, layouts), *_values(stacked, stacked_layouts)]


@rule(WHILE)
def while_loop(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """All replicas run the same number of iterations; a batched condition falls back to replicated."""
    params = equation.params
    if params["cond_jaxpr"].out_avals[0].shape:
        # A condition for each row, from vmap: rows stop at different iterations.
        if any(value.layout != REPLICATED for value in operands):
            return GATHER_ALL
        arrays = ctx.bind(equation.primitive, params, [value.array for value in operands])
        return _values(arrays, [REPLICATED] * len(arrays))
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = operands[:num_cond]
    consts, carry = (
        operands[num_cond : num_cond + num_body],
        operands[num_cond + num_body :],
    )
    condition_program, known = _with_consts(params["cond_jaxpr"])
    cond_consts = [*known, *cond_consts]
    program, known = _with_consts(params["body_jaxpr"])
    consts = [*known, *consts]
    layouts = _carry_layouts(ctx, program, consts, carry, [])

    def condition(carried: Sequence[Any]) -> Any:
        inputs = [*cond_consts, *_values(carried, layouts)]
        # The same boolean in every replica: otherwise replicas would run different numbers of iterations
        # and wait forever in the collectives of the body.
        [result] = evaluate(ctx, condition_program, inputs, reduce_outputs=True)
        return ctx.reshard(result, REPLICATED).array

    def body(carried: Sequence[Any]) -> Sequence[Any]:
        results = evaluate(ctx, program, [*consts, *_values(carried, layouts)])
        return [ctx.reshard(v, lay).array for v, lay in zip(results, layouts, strict=True)]

    start = [ctx.reshard(v, lay).array for v, lay in zip(carry, layouts, strict=True)]
    return _values(jax.lax.while_loop(condition, body, start), layouts)


@rule(COND)
def cond(
    ctx: ShardingContext, equation: FlatEquation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """All replicas take the same branch."""
    which, *inputs = operands
    if which.layout != REPLICATED:
        return Gather((0,))
    # Branches must return the same layouts, so results are resharded to a common one.
    programs = [_with_consts(branch) for branch in equation.params["branches"]]
    possible = [_output_layouts(ctx, program, [*known, *inputs]) for program, known in programs]
    layouts = [_common_layout(set(each)) for each in zip(*possible, strict=True)]

    def branch(program: FlatProgram, known: list[Value]) -> Callable[..., list[Any]]:
        def run(*arrays: Tensor) -> list[Any]:
            given = [*known, *_values(arrays, [value.layout for value in inputs])]
            results = evaluate(ctx, program, given)
            return [ctx.reshard(v, lay).array for v, lay in zip(results, layouts, strict=True)]

        return run

    arrays = [value.array for value in inputs]
    results = jax.lax.switch(which.array, [branch(*program) for program in programs], *arrays)
    return _values(results, layouts)
