"""Reads of variables in a trace, which become inputs of its jaxpr.

The first read of a variable becomes a marker operation of the outermost trace, wherever inside it the read
takes place: in the body of a ``lax.scan``, inside ``jax.vmap``, ``jax.grad`` or ``jax.checkpoint``. The
marker is never executed. When the trace has ended, each marker becomes an input of the jaxpr.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import jax
from jax.dtypes import canonicalize_dtype

from stratagem._src.core.types import Jaxpr, Trace
from stratagem._src.jax_compat.tracing import in_trace, jax_core
from stratagem._src.jaxpr.walk import mentioned_variables
from stratagem._src.variables.variable import Variable

__all__ = ["LiftedJaxpr", "lift_reads", "read_first"]


class LiftedJaxpr(NamedTuple):
    """A jaxpr whose first inputs are the values of variables.

    Attributes:
        variables: The variables, in the order of their first reads.
        jaxpr: Takes their values, then the arguments of the traced function.
    """

    variables: list[Variable]
    jaxpr: Jaxpr


class _ReadOf:
    """Which variable an operation reads; equal only to itself.

    JAX caches parameters of operations for a long time, so this must not keep the variable alive.
    """

    __slots__ = ("aval", "reference")

    def __init__(self, variable: Variable, shape: tuple[int, ...]) -> None:
        self.reference = weakref.ref(variable)
        # As JAX stores it: float64 becomes float32 unless jax_enable_x64 is set.
        self.aval = jax.core.ShapedArray(shape, canonicalize_dtype(variable.dtype))

    def variable(self) -> Variable:
        variable = self.reference()
        assert variable is not None, "the frame of a trace keeps its variables alive"
        return variable


@functools.cache
def _primitive() -> Any:
    primitive = jax_core().Primitive("read_variable")

    def abstract_result(*, read: _ReadOf) -> Any:
        return read.aval

    primitive.def_abstract_eval(abstract_result)
    return primitive


def read_first(variable: Variable, shape: tuple[int, ...], trace: Trace) -> Any:
    """Returns a traced value of ``variable`` that belongs to ``trace``, active or not.

    The variable must be kept alive until the reads have been lifted.

    Args:
        variable: The variable.
        shape: Its shape, as the trace sees it.
        trace: An enclosing trace, from ``active_trace``.
    """
    with in_trace(trace):
        return _primitive().bind(read=_ReadOf(variable, shape))


def lift_reads(jaxpr: Jaxpr) -> LiftedJaxpr:
    """Returns ``jaxpr`` with the variables that it reads as its first inputs; unused reads are dropped."""
    # Only at the top: `read_first` puts markers into the outermost trace, never into the body of a loop.
    is_read = [eqn.primitive is _primitive() for eqn in jaxpr.eqns]
    rest = [eqn for eqn, read in zip(jaxpr.eqns, is_read, strict=True) if not read]
    mentioned = mentioned_variables(jaxpr)
    reads = [
        (eqn.params["read"].variable(), eqn.outvars[0])
        for eqn, read in zip(jaxpr.eqns, is_read, strict=True)
        if read and id(eqn.outvars[0]) in mentioned
    ]
    lifted = jaxpr.replace(
        invars=[*(var for _, var in reads), *jaxpr.invars],
        eqns=rest,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return LiftedJaxpr([variable for variable, _ in reads], lifted)
