"""Python numbers of a traced function as inputs of its program, so that other numbers need no other one.

The function is called with the numbers themselves, so that Python code sees what it is used to; they
are taken out of the traced program afterwards.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.jax_compat.tracing import jax_core, with_constvars

__all__ = ["NumberLifting", "current_lifting", "lifting_numbers"]


class NumberLifting:
    """What one trace finds and does.

    A number becomes an input if it was one before, or is another than before. That is decided while the
    trace is made: tracing again would repeat the side effects of the function's Python code.

    Args:
        before: What the trace before this one found, if there was one.

    Attributes:
        numbers: Every number found, by type and text.
        lifted: The positions of those that became inputs.
    """

    def __init__(self, before: NumberLifting | None = None) -> None:
        # Not the earlier trace itself, which would keep all those before it.
        self._numbers_before = [] if before is None else before.numbers
        self._lifted_before = set() if before is None else before.lifted
        self.numbers: list[tuple[str, str]] = []
        self.lifted: set[int] = set()

    def restart(self) -> None:
        """Forgets what a trace has found that is made again."""
        self.numbers, self.lifted = [], set()

    def lift(self, jaxpr: Any, consts: list[Any]) -> tuple[Any, list[Any]]:
        """Returns a jaxpr with some of its numbers among its constants."""
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
        lifted = with_constvars(jaxpr.replace(eqns=equations), [*jaxpr.constvars, *new_vars])
        return lifted, [*consts, *values]

    def _positions(self, jaxpr: Any) -> set[int]:
        """Returns which numbers become inputs, given a jaxpr whose numbers are found next."""
        start = len(self.numbers)
        now = [_number(atom) for eqn in jaxpr.eqns for atom in eqn.invars if _is_number(atom)]
        before = self._numbers_before[start : start + len(now)]
        if [kind for kind, _ in before] != [kind for kind, _ in now]:
            return self._lifted_before
        pairs = enumerate(zip(before, now, strict=True), start)
        return self._lifted_before | {position for position, (old, new) in pairs if old != new}

    def _take(self, atom: Any, positions: Set[int], new_vars: list[Any], values: list[Any]) -> Any:
        if not _is_number(atom):
            return atom
        position = len(self.numbers)
        self.numbers.append(_number(atom))
        if position not in positions:
            return atom
        self.lifted.add(position)
        new_vars.append(jax_core().Var(atom.aval))
        values.append(_constant(atom))
        return new_vars[-1]


class _Current(threading.local):
    lifting: NumberLifting | None = None


_current = _Current()


def current_lifting() -> NumberLifting | None:
    """Returns what the trace of this thread is to lift numbers with, if anything."""
    return _current.lifting


@contextlib.contextmanager
def lifting_numbers(lifting: NumberLifting) -> Iterator[None]:
    """Makes the traces of the block lift numbers."""
    before, _current.lifting = _current.lifting, lifting
    try:
        yield
    finally:
        _current.lifting = before


def _number(atom: Any) -> tuple[str, str]:
    """Returns the type of a number and its text."""
    return str(atom.aval), repr(np.asarray(atom.val).item())


def _is_number(atom: Any) -> bool:
    if not isinstance(atom, jax_core().Literal):
        return False
    dtype = getattr(atom.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.number) and not atom.aval.shape


def _constant(atom: Any) -> Any:
    number = np.asarray(atom.val).item()
    if getattr(atom.aval, "weak_type", False):
        array = jnp.asarray(number)
        if array.dtype == atom.aval.dtype:
            return array
    return np.asarray(number, atom.aval.dtype)
