"""Inlines jaxprs into one list of equations over numbered values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from stratagem._src.core.types import Atom, Equation, Jaxpr
from stratagem._src.jax_compat.tracing import jax_core, with_constvars

__all__ = [
    "Constant",
    "FlatEquation",
    "FlatJaxpr",
    "Operand",
    "called_jaxpr",
    "eliminate_dead_code",
    "evaluate",
    "map_inner_jaxprs",
    "value_of",
]

_CALL_PARAMS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An operand whose value is known."""

    value: Any


Operand: TypeAlias = int | Constant
"""The number of a value, or its constant."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatEquation:
    """One equation of an inlined jaxpr.

    Attributes:
        eqn: The equation.
        scope: The jaxpr that contains it, and a number for each time that the jaxpr is inlined.
        operands: Its operands.
        results: The numbers of the values that it computes.
    """

    eqn: Any
    scope: tuple[Any, int]
    operands: tuple[Operand, ...]
    results: tuple[int, ...]


class FlatJaxpr:
    """A list of equations, to which jaxprs are added.

    Args:
        inlines: Whether a call is replaced by the equations of the jaxpr that it calls.
    """

    def __init__(self, inlines: Callable[[Any], bool]) -> None:
        self._inlines = inlines
        self._numbers = itertools.count()
        self._scopes = itertools.count()
        self.equations: list[FlatEquation] = []

    def new_value(self) -> int:
        """Returns the number of a new value."""
        return next(self._numbers)

    def add(
        self, jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Operand]
    ) -> list[Operand]:
        """Adds the equations of a jaxpr, and returns its outputs."""
        scope = (jaxpr, next(self._scopes))
        known: dict[Any, Operand] = dict(zip(jaxpr.invars, operands, strict=True))
        known.update((v, Constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))

        def look_up(atom: Atom) -> Operand:
            return Constant(atom.val) if isinstance(atom, jax_core().Literal) else known[atom]

        for eqn in jaxpr.eqns:
            given = tuple(look_up(atom) for atom in eqn.invars)
            called = called_jaxpr(eqn) if self._inlines(eqn) else None
            if called is None:
                results = self.add_equation(eqn, scope, given)
            else:
                results = self.add_call(eqn, called, given)
            known.update(zip(eqn.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    def add_call(
        self, eqn: Equation, called: Jaxpr, operands: Sequence[Operand]
    ) -> Sequence[Operand]:
        """Adds the jaxpr that an equation calls, and returns the results of the equation."""
        return self.add(called.jaxpr, called.consts, operands)

    def add_equation(
        self, eqn: Equation, scope: tuple[Any, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, and returns its results."""
        results = tuple(self.new_value() for _ in eqn.outvars)
        self.equations.append(FlatEquation(eqn, scope, operands, results))
        return results


def called_jaxpr(eqn: Equation) -> Any | None:
    """Returns the closed jaxpr that an equation calls once with its operands; ``None`` if it is no call."""
    param = _CALL_PARAMS.get(eqn.primitive.name)
    if param is None:
        return None
    called = eqn.params[param]
    is_closed = isinstance(called, jax_core().ClosedJaxpr)
    return called if is_closed else jax_core().ClosedJaxpr(called, ())


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
            if type(var).__name__ != "DropVar":
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
        given = [value_of(operand, known) for operand in self._given.values()]
        values = jax.core.eval_jaxpr(part, (), *given)
        known.update(zip(self._made.values(), values, strict=True))


def _variables(equation: FlatEquation) -> Iterator[tuple[Any, Operand]]:
    for atom, operand in zip(equation.eqn.invars, equation.operands, strict=True):
        if not isinstance(atom, jax_core().Literal):
            yield atom, operand


def value_of(operand: Operand, known: dict[int, Any]) -> Any:
    """Returns the value of an operand."""
    return operand.value if isinstance(operand, Constant) else known[operand]


def eliminate_dead_code(
    equations: Sequence[FlatEquation], outputs: Sequence[Operand], keep: Callable[[Any], bool]
) -> list[FlatEquation]:
    """Returns the equations that outputs depend on, and those that ``keep`` returns true for."""
    wanted = {output for output in outputs if isinstance(output, int)}
    kept = []
    for equation in reversed(equations):
        if wanted.intersection(equation.results) or keep(equation.eqn):
            wanted.update(o for o in equation.operands if isinstance(o, int))
            kept.append(equation)
    return kept[::-1]


def map_inner_jaxprs(eqn: Equation, change: Callable[[str, int | None, Any], Any]) -> Any:
    """Returns an equation whose inner jaxprs are replaced.

    Args:
        eqn: The equation.
        change: From the name of a parameter, the position in it if it is a tuple, and a closed jaxpr to
            the closed jaxpr that replaces it, with the same inputs and outputs.
    """
    params = {}
    for name, value in eqn.params.items():
        if isinstance(value, tuple):
            params[name] = tuple(_changed(body, change, name, i) for i, body in enumerate(value))
        else:
            params[name] = _changed(value, change, name, None)
    return eqn.replace(params=params)


def _changed(
    body: Jaxpr, change: Callable[[str, int | None, Any], Any], name: str, position: int | None
) -> Any:
    if isinstance(body, jax_core().ClosedJaxpr):
        return change(name, position, body)
    if not isinstance(body, jax_core().Jaxpr):
        return body
    changed = change(name, position, jax_core().ClosedJaxpr(body, ()))
    # A plain Jaxpr cannot hold constants.
    return body if changed.consts else changed.jaxpr
