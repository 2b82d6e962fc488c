"""Jaxprs as one list of equations over numbered values, in which calls are opened where that is asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from stratagem._src.jax_compat.tracing import jax_core, with_constvars

__all__ = [
    "Constant",
    "FlatEquation",
    "FlatJaxpr",
    "Operand",
    "called_jaxpr",
    "evaluate",
    "needed",
    "value_of",
    "with_bodies",
]

_CALLED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An operand that is known."""

    value: Any


Operand: TypeAlias = int | Constant
"""The number of a value, or what is known of it."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatEquation:
    """One equation of an opened jaxpr.

    Attributes:
        eqn: The equation.
        opened: The jaxpr that it is of, and which opening of it: one may be called twice.
        operands: What its operands are.
        results: Numbers of the values that it makes.
    """

    eqn: Any
    opened: tuple[Any, int]
    operands: tuple[Operand, ...]
    results: tuple[int, ...]


class FlatJaxpr:
    """A list of equations that grows by whole jaxprs.

    Args:
        opens: Which calls are replaced by the equations of what they call.
    """

    def __init__(self, opens: Callable[[Any], bool]) -> None:
        self._opens = opens
        self._numbers = itertools.count()
        self._openings = itertools.count()
        self.equations: list[FlatEquation] = []

    def new_value(self) -> int:
        """Returns the number of a new value."""
        return next(self._numbers)

    def add(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Operand]) -> list[Operand]:
        """Adds the equations of a jaxpr, and returns what its outputs are."""
        opened = (jaxpr, next(self._openings))
        known: dict[Any, Operand] = dict(zip(jaxpr.invars, operands, strict=True))
        known.update((v, Constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))

        def look_up(atom: Any) -> Operand:
            return Constant(atom.val) if isinstance(atom, jax_core().Literal) else known[atom]

        for eqn in jaxpr.eqns:
            given = tuple(look_up(atom) for atom in eqn.invars)
            called = called_jaxpr(eqn) if self._opens(eqn) else None
            if called is None:
                results = self.add_equation(eqn, opened, given)
            else:
                results = self.add_call(eqn, called, given)
            known.update(zip(eqn.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    def add_call(self, eqn: Any, called: Any, operands: Sequence[Operand]) -> Sequence[Operand]:
        """Adds what an equation calls, and returns what its results are."""
        return self.add(called.jaxpr, called.consts, operands)

    def add_equation(
        self, eqn: Any, opened: tuple[Any, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, and returns what its results are."""
        results = tuple(self.new_value() for _ in eqn.outvars)
        self.equations.append(FlatEquation(eqn, opened, operands, results))
        return results


def called_jaxpr(eqn: Any) -> Any | None:
    """Returns the closed jaxpr that an equation calls once, with its operands, if it calls one."""
    param = _CALLED.get(eqn.primitive.name)
    if param is None:
        return None
    called = eqn.params[param]
    is_closed = isinstance(called, jax_core().ClosedJaxpr)
    return called if is_closed else jax_core().ClosedJaxpr(called, ())


def evaluate(equations: Iterable[FlatEquation], known: dict[int, Any]) -> None:
    """Computes what the equations make, in their order, and adds it to what is known."""
    run = _Run()
    for equation in equations:
        if not run.takes(equation):
            run.evaluate(known)
            run = _Run()
        run.add(equation)
    run.evaluate(known)


class _Run:
    """Equations of one opened jaxpr, which JAX can evaluate as a part of it."""

    def __init__(self) -> None:
        self._equations: list[FlatEquation] = []
        self._given: dict[Any, Operand] = {}
        self._made: dict[Any, int] = {}
        self._numbers: set[Operand] = set()

    def takes(self, equation: FlatEquation) -> bool:
        """Returns whether an equation is of the same jaxpr, and uses what is made here by its name."""
        if not self._equations:
            return True
        return self._equations[0].opened[1] == equation.opened[1] and not any(
            operand in self._numbers and atom not in self._made
            for atom, operand in _variables(equation)
        )

    def add(self, equation: FlatEquation) -> None:
        for atom, operand in _variables(equation):
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
        jaxpr = self._equations[0].opened[0]
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


def needed(
    equations: Sequence[FlatEquation], outputs: Sequence[Operand], keeps: Callable[[Any], bool]
) -> list[FlatEquation]:
    """Returns the equations that outputs depend on, and those that are kept in any case."""
    wanted = {output for output in outputs if isinstance(output, int)}
    kept = []
    for equation in reversed(equations):
        if wanted.intersection(equation.results) or keeps(equation.eqn):
            wanted.update(o for o in equation.operands if isinstance(o, int))
            kept.append(equation)
    return kept[::-1]


def with_bodies(eqn: Any, change: Callable[[str, int | None, Any], Any]) -> Any:
    """Returns an equation with other jaxprs in it.

    Args:
        eqn: The equation.
        change: Returns a closed jaxpr for another of the same inputs and outputs, which is that of a
            parameter and of a position in it, if the parameter is a tuple; or the same.
    """
    params = {}
    for name, value in eqn.params.items():
        if isinstance(value, tuple):
            params[name] = tuple(_changed(body, change, name, i) for i, body in enumerate(value))
        else:
            params[name] = _changed(value, change, name, None)
    return eqn.replace(params=params)


def _changed(
    body: Any, change: Callable[[str, int | None, Any], Any], name: str, position: int | None
) -> Any:
    if isinstance(body, jax_core().ClosedJaxpr):
        return change(name, position, body)
    if not isinstance(body, jax_core().Jaxpr):
        return body
    changed = change(name, position, jax_core().ClosedJaxpr(body, ()))
    # There is no room for constants.
    return body if changed.consts else changed.jaxpr
