"""Inspects the current trace of JAX, and jaxprs."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.types import Jaxpr, PyTree, Tensor, Trace

__all__ = [
    "active_trace",
    "computes_in",
    "computing_trace",
    "in_trace",
    "is_tracer",
    "jax_core",
    "outputs_that_depend_on_inputs",
    "trace_state",
    "under_jit",
    "under_trace",
    "with_constvars",
    "without_consts",
]


_context: Any
_evaluates: Any
try:
    from jax._src import core

    _context, _evaluates = core.trace_ctx, core.eval_trace
    _ = _context.trace, _context.set_trace
except (ImportError, AttributeError):  # pragma: no cover  (another version of JAX)
    _context = None


@functools.cache
def jax_core() -> Any:
    """Returns ``jax.extend.core``. Imported lazily: it takes a third of this library's import time."""
    return importlib.import_module("jax.extend.core")


def is_tracer(value: Tensor) -> bool:
    """Returns whether ``value`` is a tracer: an array whose value is not known yet."""
    return isinstance(value, jax.core.Tracer)


def trace_state() -> Any:
    """Returns a token that compares equal while the same trace is active."""
    trace = _innermost_trace()  # which also makes sure that there is one
    if not getattr(trace, "sees_through", False):
        return jax_core().get_opaque_trace_state(convention="stratagem")
    with in_trace(_seen_through(trace)):
        return jax_core().get_opaque_trace_state(convention="stratagem")


def active_trace() -> Any:
    """Returns the innermost trace that computes, for ``in_trace``; recording traces do not count."""
    return _seen_through(_innermost_trace())


def computing_trace() -> Any:
    """Returns the innermost trace that runs or stages operations; those that differentiate do not count."""
    trace = active_trace()
    # They pass on operations whose operands have no derivative.
    while type(trace).__name__ in _DIFFERENTIATES:
        trace = _seen_through(trace.parent_trace)
    return trace


_DIFFERENTIATES = ("JVPTrace", "LinearizeTrace")


def computes_in(trace: Trace) -> bool:
    """Returns whether ``computing_trace()`` is ``trace``."""
    return computing_trace() is trace


def _innermost_trace() -> Any:
    if _context is None:
        with jax_core().take_current_trace() as trace:
            return trace
    trace = _context.trace
    if trace is None:
        # Since JAX 0.11 there is none while JAX evaluates an operation, where a signal handler may run. If
        # that raises, none is left for this thread, in which no operation could be evaluated any more.
        trace = _evaluates
        _context.set_trace(trace)
    return trace


def _seen_through(trace: Trace) -> Any:
    """Returns the trace that computes what traces of a gradient tape record."""
    while getattr(trace, "sees_through", False):
        trace = trace.parent_trace
    return trace


def in_trace(trace: Trace) -> contextlib.AbstractContextManager[Any]:
    """Stages operations of the block into ``trace``, whichever trace is innermost.

    Args:
        trace: A trace around the caller, from ``active_trace``.
    """
    context: contextlib.AbstractContextManager[Any] = jax_core().set_current_trace(trace)
    return context


@functools.cache
def _clean_state() -> Any:
    with jax.core.eval_context():
        return trace_state()


def under_trace() -> bool:
    """Returns whether any JAX transformation is active in this thread."""
    return bool(trace_state() != _clean_state())


def under_jit() -> bool:
    """Returns whether operations are staged into a program instead of evaluated."""
    return under_trace() and is_tracer(jnp.zeros(()))


def with_constvars(jaxpr: Jaxpr, constvars: Sequence[Any], **changes: Any) -> Any:
    """Returns ``jaxpr`` with other constants and other changes."""
    if hasattr(jaxpr, "consts"):
        # Since JAX 0.11 a jaxpr holds a value for each constant, and treats the other constvars as inputs.
        changes["consts"] = [None] * len(constvars)
    return jaxpr.replace(constvars=list(constvars), **changes)


def without_consts(jaxpr: Jaxpr) -> Any:
    """Returns the same program, which does not keep the values of its constants alive.

    While a converted NumPy array is alive, JAX uses it again for the array that it was made from, although
    that may have changed since.
    """
    return with_constvars(jaxpr, jaxpr.constvars) if getattr(jaxpr, "consts", None) else jaxpr


def outputs_that_depend_on_inputs(fn: Callable[..., Any], *args: PyTree) -> list[bool]:
    """Returns whether each array that ``fn`` returns depends on the values of the arguments.

    >>> outputs_that_depend_on_inputs(lambda x: (jnp.zeros_like(x), x + 1), 2.0)
    [False, True]
    """
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    dependent = {id(v) for v in jaxpr.invars}
    for eqn in jaxpr.eqns:
        if any(id(v) in dependent for v in eqn.invars):
            dependent |= {id(v) for v in eqn.outvars}
    return [id(v) in dependent for v in jaxpr.outvars]
