"""Which traces one program can serve: a key of all that a program is made of.

What a trace captured, and what of its result is not an array, can be exchanged and is not part of the key.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np

from stratagem._src.execution.jaxpr_key import jaxpr_key
from stratagem._src.execution.program import ResultLeaf
from stratagem._src.execution.remote.remote_access import NotedUpdate
from stratagem._src.execution.static_key import SameObject, static_key
from stratagem._src.execution.trace import TracedFunction
from stratagem._src.variables.variable import Variable

__all__ = ["own_results", "trace_key"]


def own_results(traced: TracedFunction) -> list[ResultLeaf]:
    """Returns the leaves of the function's own result."""
    num_operands = sum(map(len, traced.remote.operands()))
    return traced.results[: len(traced.results) - num_operands]


def trace_key(traced: TracedFunction) -> Any:
    """Returns what is equal for traces that one program can serve."""
    assert not traced.draws, "elements are drawn outside of a step"
    own = own_results(traced)
    operands = traced.results[len(own) :]
    return (
        traced.name,
        jaxpr_key(traced.jaxpr),
        tuple(map(_variable, traced.variables)),
        tuple(map(_variable, traced.written)),
        tuple(map(_leaf, own)),
        tuple((_leaf(leaf), _operand(leaf.static)) for leaf in operands),
        traced.structure,
        traced.group,
        tuple(map(_update, traced.remote.updates)),
    )


def _variable(variable: Variable) -> SameObject:
    return SameObject(variable, weakref.ref(variable))


def _leaf(leaf: ResultLeaf) -> tuple[Any, ...]:
    variable = None if leaf.variable is None else SameObject(leaf.variable(), leaf.variable)
    place = leaf.group, leaf.scalar, leaf.mirrored
    return leaf.output, variable, leaf.itself, leaf.is_static, *place


def _operand(value: Any) -> Any:
    """Returns the key of an operand that was known while tracing, and is a part of the program."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return SameObject(value, None) if isinstance(value, jax.Array) else static_key(value, [])


def _update(noted: NotedUpdate) -> tuple[Any, ...]:
    update = noted.update
    # Of what only a server carries out, the function that would do it here is never called.
    apply = None if update.server_only else SameObject(update.apply, None)
    kind = update.name, apply, update.sparse, update.reducible, update.body
    return _variable(noted.variable), *kind, jax.tree.structure(noted.operand)
