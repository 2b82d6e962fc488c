"""Constant hoisting: Python numbers of a traced function become inputs of its program.

Other numbers then need no other program. The function is called with the Python numbers themselves, so that
Python code sees plain numbers; they are hoisted out of the traced program afterwards.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.types import Atom, Jaxpr
from stratagem._src.jax_compat.tracing import jax_core, with_constvars

__all__ = ["ConstantHoisting", "current_hoisting", "hoisting_constants"]


class ConstantHoisting:
    """The literals that one trace finds, and which of them it hoists.

    A literal is hoisted if the previous trace hoisted it, or if its value changed since. That is decided
    during the trace: tracing again would repeat the side effects of the function's Python code.

    Args:
        before: The hoisting of the previous trace, if there was one.

    Attributes:
        numbers: The type and the text of every literal, in order.
        hoisted: The positions of those that became inputs.
    """

    def __init__(self, before: ConstantHoisting | None = None) -> None:
        # Not a reference to the previous trace, which would keep all earlier ones alive.
        self._numbers_before = [] if before is None else before.numbers
        self._hoisted_before = set() if before is None else before.hoisted
        self.numbers: list[tuple[str, str]] = []
        self.hoisted: set[int] = set()
        # For the id of a copy: the copy, so that no other object gets this id, and what it is a copy of.
        self._originals: dict[int, tuple[Any, Any]] = {}

    def restart(self) -> None:
        """Discards the findings of a trace that is repeated."""
        self.numbers, self.hoisted, self._originals = [], set(), {}

    def note_copy(self, copy: Any, original: Any) -> None:
        """Notes that a constant of the program is a copy of what the function captured."""
        self._originals[id(copy)] = copy, original

    def captured(self, consts: list[Any]) -> list[Any]:
        """Returns what the function captured, for the constants of its program; can be called once."""
        captured = []
        for const in consts:
            while id(const) in self._originals:
                const = self._originals[id(const)][1]
            captured.append(const)
        self._originals = {}  # which would keep them alive
        return captured

    def hoist(self, jaxpr: Jaxpr, consts: list[Any]) -> tuple[Any, list[Any]]:
        """Returns a jaxpr with some of its literals among its constants."""
        new_vars: list[Any] = []
        values: list[Any] = []
        equations = []
        positions = self._positions(jaxpr)
        for equation in jaxpr.eqns:
            atoms = [self._take(atom, positions, new_vars, values) for atom in equation.invars]
            changed = any(a is not b for a, b in zip(atoms, equation.invars, strict=True))
            equations.append(equation.replace(invars=atoms) if changed else equation)
        if not new_vars:
            return jaxpr, consts
        hoisted = with_constvars(jaxpr.replace(eqns=equations), [*jaxpr.constvars, *new_vars])
        return hoisted, [*consts, *values]

    def _positions(self, jaxpr: Jaxpr) -> set[int]:
        """Returns the positions of the literals to hoist, for a jaxpr whose literals are found next."""
        start = len(self.numbers)
        now = [_number(atom) for eqn in jaxpr.eqns for atom in eqn.invars if _is_number(atom)]
        before = self._numbers_before[start : start + len(now)]
        if [kind for kind, _ in before] != [kind for kind, _ in now]:
            # Another program: positions do not correspond.
            return self._hoisted_before
        pairs = enumerate(zip(before, now, strict=True), start)
        return self._hoisted_before | {position for position, (old, new) in pairs if old != new}

    def _take(self, atom: Atom, positions: Set[int], new_vars: list[Any], values: list[Any]) -> Any:
        if not _is_number(atom):
            return atom
        position = len(self.numbers)
        self.numbers.append(_number(atom))
        if position not in positions:
            return atom
        self.hoisted.add(position)
        new_vars.append(jax_core().Var(atom.aval))
        values.append(_constant(atom))
        self.note_copy(values[-1], np.asarray(atom.val))
        return new_vars[-1]


class _Current(threading.local):
    hoisting: ConstantHoisting | None = None


_current = _Current()


def current_hoisting() -> ConstantHoisting | None:
    """Returns the hoisting of the current trace of this thread, if any."""
    return _current.hoisting


@contextlib.contextmanager
def hoisting_constants(hoisting: ConstantHoisting) -> Iterator[None]:
    """Hoists constants in the traces of the block."""
    before, _current.hoisting = _current.hoisting, hoisting
    try:
        yield
    finally:
        _current.hoisting = before


def _number(atom: Atom) -> tuple[str, str]:
    """Returns the type and the text of a literal."""
    return str(atom.aval), repr(np.asarray(atom.val).item())


def _is_number(atom: Atom) -> bool:
    if not isinstance(atom, jax_core().Literal):
        return False
    dtype = getattr(atom.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.number) and not atom.aval.shape


def _constant(atom: Atom) -> Any:
    number = np.asarray(atom.val).item()
    # A weakly typed literal must stay weakly typed: otherwise it changes the dtypes of results.
    if getattr(atom.aval, "weak_type", False):
        array = jnp.asarray(number)
        if array.dtype == atom.aval.dtype:
            return array
    return np.asarray(number, atom.aval.dtype)
