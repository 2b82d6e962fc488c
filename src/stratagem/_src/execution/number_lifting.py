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

from stratagem._src.core.tracing import jax_core, with_constvars

__all__ = ["NumberLifting", "current_lifting", "lifting_numbers"]


class NumberLifting:
    """What one trace finds and does.

    Args:
        positions: Which numbers become inputs, in the order in which they are found; ``None`` for those
            among ``suspects``.
        suspects: Numbers that are likely to be others next time.

    Attributes:
        numbers: Every number found, by type and text.
        lifted: The positions of those that became inputs.
        structure: Equal for traces whose programs differ in nothing but their constants; set by
            whoever builds the program.
    """

    def __init__(self, positions: Set[int] | None, suspects: Set[complex] = frozenset()) -> None:
        self._positions = positions
        self._suspects = suspects
        self.numbers: list[tuple[str, str]] = []
        self.lifted: set[int] = set()
        self.structure: Any = None

    def restart(self) -> None:
        """Forgets what a trace has found that is made again."""
        self.numbers, self.lifted, self.structure = [], set(), None

    def lift(self, jaxpr: Any, consts: list[Any]) -> tuple[Any, list[Any]]:
        """Returns a jaxpr with some of its numbers among its constants."""
        new_vars: list[Any] = []
        values: list[Any] = []
        equations = []
        for equation in jaxpr.eqns:
            atoms = [self._take(atom, new_vars, values) for atom in equation.invars]
            changed = any(a is not b for a, b in zip(atoms, equation.invars, strict=True))
            equations.append(equation.replace(invars=atoms) if changed else equation)
        if not new_vars:
            return jaxpr, consts
        lifted = with_constvars(jaxpr.replace(eqns=equations), [*jaxpr.constvars, *new_vars])
        return lifted, [*consts, *values]

    def _take(self, atom: Any, new_vars: list[Any], values: list[Any]) -> Any:
        core = jax_core()
        if not isinstance(atom, core.Literal) or not _is_number(atom):
            return atom
        position = len(self.numbers)
        value = atom.val
        self.numbers.append((str(atom.aval), repr(np.asarray(value).item())))
        if self._positions is None:
            chosen = complex(value) in self._suspects
        else:
            chosen = position in self._positions
        if not chosen:
            return atom
        self.lifted.add(position)
        new_vars.append(core.Var(atom.aval))
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


def _is_number(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.number) and not atom.aval.shape


def _constant(atom: Any) -> Any:
    number = np.asarray(atom.val).item()
    if getattr(atom.aval, "weak_type", False):
        array = jnp.asarray(number)
        if array.dtype == atom.aval.dtype:
            return array
    return np.asarray(number, atom.aval.dtype)
