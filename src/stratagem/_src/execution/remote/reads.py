"""Reads of variables that another process holds, as operations of a traced program.

They never run as such: before the program is compiled each becomes an input of it, which is fetched
before the program runs.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import jax

from stratagem._src.execution.static_key import KeyedParameter, SameObject
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable

__all__ = ["Read", "find_reads", "is_read", "read_all", "read_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A read in a jaxpr.

    Attributes:
        variable: What is read.
        result: The jaxpr's variable that stands for what was read.
        indices: The row numbers, as an atom of the jaxpr; ``None`` for the whole value.
        after: How many of the trace's updates come before it, if only the server knows their effect.
    """

    variable: RemotelyHeldVariable
    result: Any
    indices: Any = None
    after: int = 0


@functools.cache
def _primitive() -> Any:
    primitive = jax_core().Primitive("read_remote_variable")

    def abstract_result(*indices: Any, read: _ReadKey) -> Any:
        variable = read.variable()
        shape = indices[0].shape + variable.row_shape if indices else variable.program_shape
        return jax.core.ShapedArray(shape, variable.dtype)

    primitive.def_abstract_eval(abstract_result)
    return primitive


class _ReadKey(KeyedParameter):
    """What is read; equal only to itself, so that two reads never become one.

    JAX remembers parameters of operations for long, so that it must not hold the variable.
    """

    __slots__ = ("_reference", "after")

    def __init__(self, variable: RemotelyHeldVariable, after: int) -> None:
        self._reference = weakref.ref(variable)
        self.after = after

    def key(self) -> Any:
        """Returns what is equal for reads, of several traces, that are the same."""
        return self.after, SameObject(self.variable(), self._reference)

    def variable(self) -> RemotelyHeldVariable:
        variable = self._reference()
        assert variable is not None, "the frame of a trace keeps what is read alive"
        return variable


def read_rows(variable: RemotelyHeldVariable, indices: Any, after: int) -> Any:
    """Returns traced rows of ``variable``, read after that many of the trace's updates."""
    return _primitive().bind(indices, read=_ReadKey(variable, after))


def read_all(variable: RemotelyHeldVariable, after: int) -> Any:
    """Returns the traced value of ``variable``, read after that many of the trace's updates."""
    return _primitive().bind(read=_ReadKey(variable, after))


def find_reads(jaxpr: Any) -> list[Read]:
    """Returns the reads among the equations of a jaxpr, in order."""
    reads = []
    for eqn in filter(is_read, jaxpr.eqns):
        indices = eqn.invars[0] if eqn.invars else None
        key = eqn.params["read"]
        reads.append(Read(key.variable(), eqn.outvars[0], indices, key.after))
    return reads


def is_read(eqn: Any) -> bool:
    """Returns whether an equation is a read."""
    return eqn.primitive is _primitive()
