"""Evaluates the equations of inlined jaxprs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax

from stratagem._src.core.types import Atom
from stratagem._src.jax_compat.primitives import is_dropped
from stratagem._src.jax_compat.tracing import jax_core, with_constvars
from stratagem._src.jaxpr.inline import Constant, FlatEquation, Operand

__all__ = ["evaluate", "value_of"]


def evaluate(equations: Iterable[FlatEquation], known: dict[int, Any]) -> None:
    """Evaluates equations in order, and adds their results to ``known``."""
    segment = _Segment()
    for equation in equations:
        if not segment.takes(equation):
            segment.evaluate(known)
            segment = _Segment()
        segment.add(equation)
    segment.evaluate(known)


class _Segment:
    """Consecutive equations of one inlined jaxpr, evaluated by one ``jax.core.eval_jaxpr``."""

    def __init__(self) -> None:
        self._equations: list[FlatEquation] = []
        self._given: dict[Any, Operand] = {}
        self._made: dict[Any, int] = {}
        self._numbers: set[Operand] = set()

    def takes(self, equation: FlatEquation) -> bool:
        """Returns whether an equation belongs to the same jaxpr, and refers to results here by variable.

        A result may reach it as an input of its jaxpr instead, under the name of another variable.
        """
        if not self._equations:
            return True
        return self._equations[0].scope[1] == equation.scope[1] and not any(
            operand in self._numbers and atom not in self._made
            for atom, operand in _variables(equation)
        )

    def add(self, equation: FlatEquation) -> None:
        for atom, operand in _variables(equation):
            # Not computed in this segment: an input of the jaxpr that is evaluated.
            if atom not in self._made:
                self._given[atom] = operand
        self._equations.append(equation)
        self._numbers.update(equation.results)
        for var, number in zip(equation.eqn.outvars, equation.results, strict=True):
            # `_` of the jaxpr: all dropped results look alike, and no output can name one.
            if not is_dropped(var):
                self._made[var] = number

    def evaluate(self, known: dict[int, Any]) -> None:
        if not self._equations:
            return
        jaxpr = self._equations[0].scope[0]
        part = with_constvars(
            jaxpr,
            [],
            invars=list(self._given),
            outvars=list(self._made),
            eqns=[equation.eqn for equation in self._equations],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )
        # From the numbers of the inlined program to the variables of this jaxpr, in one order.
        given = [value_of(operand, known) for operand in self._given.values()]
        # The outputs are all results of the segment: which of them later segments need is not known here.
        values = jax.core.eval_jaxpr(part, (), *given)
        known.update(zip(self._made.values(), values, strict=True))


def _variables(equation: FlatEquation) -> Iterator[tuple[Atom, Operand]]:
    for atom, operand in zip(equation.eqn.invars, equation.operands, strict=True):
        if not isinstance(atom, jax_core().Literal):
            yield atom, operand


def value_of(operand: Operand, known: dict[int, Any]) -> Any:
    """Returns the value of an operand."""
    return operand.value if isinstance(operand, Constant) else known[operand]
