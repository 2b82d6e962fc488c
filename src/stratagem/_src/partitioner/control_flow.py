"""Rules for loops and branches, whose bodies are programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.evaluation import evaluate
from stratagem._src.partitioner.inlined_program import Equation, FlatProgram, flatten, unplaced
from stratagem._src.partitioner.layout import WHOLE, Layout, Split, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, rule

__all__: list[str] = []


def _values(arrays: Sequence[Any], layouts: Sequence[Layout]) -> list[Value]:
    return [Value(array, layout) for array, layout in zip(arrays, layouts, strict=True)]


def _with_consts(closed: Any) -> tuple[FlatProgram, list[Value]]:
    return flatten(closed), [Value(unplaced(const), WHOLE) for const in closed.consts]


def _joined(layouts: set[Layout]) -> Layout:
    """Returns the layout that values get which are one or the other."""
    if len(layouts) == 1:
        return next(iter(layouts))
    others = layouts - {WHOLE}
    return next(iter(others)) if len(others) == 1 else WHOLE


def _output_layouts(
    division: Division, program: FlatProgram, inputs: Sequence[Value], *, keeps_sums: bool = False
) -> list[Layout]:
    layouts: list[Layout] = []

    def run(*arrays: Any) -> list[Any]:
        values = _values(arrays, [value.layout for value in inputs])
        results = evaluate(division, program, values, keeps_sums=keeps_sums)
        layouts.extend(result.layout for result in results)
        return [result.array for result in results]

    jax.eval_shape(run, *(value.array for value in inputs))
    return layouts


def _carry_layouts(
    division: Division,
    program: FlatProgram,
    consts: Sequence[Value],
    carry: Sequence[Value],
    others: Sequence[Value],
) -> list[Layout]:
    """Returns how the carried values lie: as the body leaves them, if it takes them so too."""
    layouts = [value.layout for value in carry]
    fixed = [False] * len(layouts)
    while True:
        given = [division.convert(v, lay) for v, lay in zip(carry, layouts, strict=True)]
        inputs = [*consts, *given, *others]
        left = _output_layouts(division, program, inputs, keeps_sums=True)[: len(layouts)]
        joined = list(layouts)
        for i, (before, after) in enumerate(zip(layouts, left, strict=True)):
            if not fixed[i]:
                joined[i] = _joined({before, after})
                fixed[i] = before != WHOLE and joined[i] != before
        if joined == layouts:
            return layouts
        layouts = joined


@rule("scan")
def scan(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | Gather:
    """Steps are taken one after the other by all replicas."""
    params = equation.params
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    first_x = num_consts + num_carry
    scanned = tuple(i for i in range(first_x, len(operands)) if operands[i].layout == Split(0))
    if scanned:
        return Gather(scanned)
    consts, carry, xs = (
        operands[:num_consts],
        operands[num_consts:first_x],
        operands[first_x:],
    )
    program, known = _with_consts(params["jaxpr"])
    consts = [*known, *consts]
    x_layouts: list[Layout] = [
        Split(x.layout.dim - 1) if isinstance(x.layout, Split) else x.layout for x in xs
    ]
    examples = _values(
        [jax.ShapeDtypeStruct(x.array.shape[1:], x.array.dtype) for x in xs], x_layouts
    )
    layouts = _carry_layouts(division, program, consts, carry, examples)
    y_layouts: list[Layout] = []

    def body(carried: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        inputs = [*consts, *_values(carried, layouts), *_values(x, x_layouts)]
        results = evaluate(division, program, inputs)
        kept = [division.convert(v, lay) for v, lay in zip(results, layouts, strict=False)]
        ys = results[num_carry:]
        y_layouts[:] = [y.layout for y in ys]
        return [value.array for value in kept], [y.array for y in ys]

    start = [division.convert(v, lay).array for v, lay in zip(carry, layouts, strict=True)]
    last, stacked = jax.lax.scan(
        body,
        start,
        [x.array for x in xs],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    stacked_layouts: list[Layout] = [
        Split(lay.dim + 1) if isinstance(lay, Split) else lay for lay in y_layouts
    ]
    return [*_values(last, layouts), *_values(stacked, stacked_layouts)]


@rule("while")
def while_loop(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """All replicas agree on whether to go on; not where each row has a loop of its own."""
    params = equation.params
    if params["cond_jaxpr"].out_avals[0].shape:
        if any(value.layout != WHOLE for value in operands):
            return GATHER_ALL
        arrays = division.bind(equation.primitive, params, [value.array for value in operands])
        return _values(arrays, [WHOLE] * len(arrays))
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = operands[:num_cond]
    consts, carry = (
        operands[num_cond : num_cond + num_body],
        operands[num_cond + num_body :],
    )
    goes_on, known = _with_consts(params["cond_jaxpr"])
    cond_consts = [*known, *cond_consts]
    program, known = _with_consts(params["body_jaxpr"])
    consts = [*known, *consts]
    layouts = _carry_layouts(division, program, consts, carry, [])

    def condition(carried: Sequence[Any]) -> Any:
        inputs = [*cond_consts, *_values(carried, layouts)]
        [result] = evaluate(division, goes_on, inputs, sums_outputs=True)
        return division.convert(result, WHOLE).array

    def body(carried: Sequence[Any]) -> Sequence[Any]:
        results = evaluate(division, program, [*consts, *_values(carried, layouts)])
        return [division.convert(v, lay).array for v, lay in zip(results, layouts, strict=True)]

    start = [division.convert(v, lay).array for v, lay in zip(carry, layouts, strict=True)]
    return _values(jax.lax.while_loop(condition, body, start), layouts)


@rule("cond")
def cond(division: Division, equation: Equation, operands: Sequence[Value]) -> list[Value] | Gather:
    """All replicas take the same branch."""
    which, *inputs = operands
    if which.layout != WHOLE:
        return Gather((0,))
    programs = [_with_consts(branch) for branch in equation.params["branches"]]
    possible = [
        _output_layouts(division, program, [*known, *inputs]) for program, known in programs
    ]
    layouts = [_joined(set(each)) for each in zip(*possible, strict=True)]

    def branch(program: FlatProgram, known: list[Value]) -> Callable[..., list[Any]]:
        def run(*arrays: Any) -> list[Any]:
            given = [*known, *_values(arrays, [value.layout for value in inputs])]
            results = evaluate(division, program, given)
            return [division.convert(v, lay).array for v, lay in zip(results, layouts, strict=True)]

        return run

    arrays = [value.array for value in inputs]
    results = jax.lax.switch(which.array, [branch(*program) for program in programs], *arrays)
    return _values(results, layouts)
