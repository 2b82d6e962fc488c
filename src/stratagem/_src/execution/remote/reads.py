"""Reads of remote variables, as marker operations of a traced program.

They are never executed: before the program is compiled, each becomes an input of it, which is fetched
before the program runs.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.core.types import ArrayLike, ArraySpec, Atom, Equation, Jaxpr
from stratagem._src.execution.static_key import IdentityKey, KeyedParameter
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable

__all__ = ["Read", "find_reads", "is_read", "read_all", "read_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A read in a jaxpr.

    Attributes:
        variable: The variable that is read.
        result: The jaxpr's variable that holds the value.
        indices: The row numbers, as an atom of the jaxpr; ``None`` for the full value.
        after: Number of the trace's updates that must be sent first, since only the server can apply them.
    """

    variable: BaseRemoteVariable
    result: Atom
    indices: Atom | None = None
    after: int = 0


@functools.cache
def _primitive() -> Any:
    primitive = jax_core().Primitive("read_remote_variable")

    def abstract_result(*indices: ArraySpec, read: _ReadKey) -> Any:
        variable = read.variable()
        shape = indices[0].shape + variable.row_shape if indices else variable.program_shape
        return jax.core.ShapedArray(shape, variable.dtype)

    primitive.def_abstract_eval(abstract_result)
    return primitive


class _ReadKey(KeyedParameter):
    """Which variable is read, and when; equal only to itself, so that JAX never merges two reads.

    JAX caches parameters of operations for a long time, so this must not keep the variable alive.
    """

    __slots__ = ("_reference", "after")

    def __init__(self, variable: BaseRemoteVariable, after: int) -> None:
        self._reference = weakref.ref(variable)
        self.after = after

    def key(self) -> Any:
        """Returns a key that is equal for equal reads of different traces."""
        return self.after, IdentityKey(self.variable(), self._reference)

    def variable(self) -> BaseRemoteVariable:
        variable = self._reference()
        assert variable is not None, "the frame of a trace keeps its variables alive"
        return variable


def read_rows(variable: BaseRemoteVariable, indices: ArrayLike, after: int) -> Any:
    """Returns traced rows of ``variable``, read after the first ``after`` updates of the trace."""
    return _primitive().bind(indices, read=_ReadKey(variable, after))


def read_all(variable: BaseRemoteVariable, after: int) -> Any:
    """Returns the traced value of ``variable``, read after the first ``after`` updates of the trace."""
    return _primitive().bind(read=_ReadKey(variable, after))


def find_reads(jaxpr: Jaxpr) -> list[Read]:
    """Returns the remote reads among the equations of a jaxpr, in order."""
    reads = []
    for eqn in filter(is_read, jaxpr.eqns):
        indices = eqn.invars[0] if eqn.invars else None
        key = eqn.params["read"]
        reads.append(Read(key.variable(), eqn.outvars[0], indices, key.after))
    return reads


def is_read(eqn: Equation) -> bool:
    """Returns whether an equation is a remote read."""
    return eqn.primitive is _primitive()
