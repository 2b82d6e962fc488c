"""Inlines jaxprs into one list of equations over numbered values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stratagem._src.core.types import (
    Atom,
    Equation,
    EquationParams,
    Jaxpr,
    JaxprConstant,
    Primitive,
)
from stratagem._src.jax_compat.primitives import called_jaxpr
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["Constant", "FlatEquation", "FlatJaxpr", "Operand"]


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

    eqn: Equation
    scope: tuple[Jaxpr, int]
    operands: tuple[Operand, ...]
    results: tuple[int, ...]

    @property
    def primitive(self) -> Primitive:
        """The primitive."""
        return self.eqn.primitive

    @property
    def name(self) -> str:
        """The primitive's name."""
        return str(self.eqn.primitive.name)

    @property
    def params(self) -> EquationParams:
        """The primitive's static parameters."""
        return self.eqn.params

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the results."""
        return [tuple(var.aval.shape) for var in self.eqn.outvars]


class FlatJaxpr:
    """A list of equations, to which jaxprs are added.

    Args:
        inlines: Whether a call is replaced by the equations of the jaxpr that it calls; ``jax.checkpoint``
            is not among the calls, since inlining it would undo it.
    """

    def __init__(self, inlines: Callable[[Equation], bool]) -> None:
        self._inlines = inlines
        self._numbers = itertools.count()
        self._scopes = itertools.count()
        # `jit(sin)(x) + x` with the input 0 becomes [sin 0 -> 1, add 1 0 -> 2]: the call is gone.
        self.equations: list[FlatEquation] = []

    def new_value(self) -> int:
        """Returns the number of a new value."""
        return next(self._numbers)

    def constant(self, value: JaxprConstant) -> Constant:
        """Returns a literal, or a constant of a jaxpr that is called, as an operand."""
        return Constant(value)

    def add(self, jaxpr: Jaxpr, operands: Sequence[Operand]) -> list[Operand]:
        """Adds the equations of a jaxpr, and returns its outputs.

        Args:
            jaxpr: The jaxpr.
            operands: Its constants, then its inputs.
        """
        # The same jaxpr may be inlined several times: its variables mean other values each time.
        scope = (jaxpr, next(self._scopes))
        variables = (*jaxpr.constvars, *jaxpr.invars)
        known: dict[Atom, Operand] = dict(zip(variables, operands, strict=True))

        def look_up(atom: Atom) -> Operand:
            return self.constant(atom.val) if isinstance(atom, literal_class) else known[atom]

        literal_class = jax_core().Literal
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
        # Constants come first, as `add` expects them. They are values, which no later pass looks inside of.
        return self.add(called.jaxpr, [*map(self.constant, called.consts), *operands])

    def add_equation(
        self, eqn: Equation, scope: tuple[Jaxpr, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, and returns its results."""
        # Unused results get numbers too: `results` stands parallel to `eqn.outvars`.
        results = tuple(self.new_value() for _ in eqn.outvars)
        self.equations.append(FlatEquation(eqn, scope, operands, results))
        return results
