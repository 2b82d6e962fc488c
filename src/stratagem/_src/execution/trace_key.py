"""``trace_key``: the cache key of a trace; traces with equal keys can share one program.

The captured arrays of a trace, and the static leaves of its result, can be replaced for each run: they are
not part of the key.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np

from stratagem._src.core.types import StaticValue
from stratagem._src.execution.jaxpr_key import jaxpr_key
from stratagem._src.execution.program import ResultLeaf
from stratagem._src.execution.remote.remote_access import PendingUpdate
from stratagem._src.execution.static_key import IdentityKey, static_key
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.variables.variable import Variable

__all__ = ["own_results", "trace_key"]


def own_results(traced: TracedFunction) -> list[ResultLeaf]:
    """Returns the leaves of the function's result, without the operands of remote updates."""
    num_operands = sum(map(len, traced.remote.operands()))
    return traced.results[: len(traced.results) - num_operands]


def trace_key(traced: TracedFunction) -> Any:
    """Returns a key that is equal for traces which can share one program."""
    assert not traced.draws, "a step draws no elements itself"
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


def _variable(variable: Variable) -> IdentityKey:
    return IdentityKey(variable, weakref.ref(variable))


def _leaf(leaf: ResultLeaf) -> tuple[Any, ...]:
    variable = None if leaf.variable is None else IdentityKey(leaf.variable(), leaf.variable)
    place = leaf.group, leaf.scalar, leaf.mirrored
    return leaf.output, variable, leaf.itself, leaf.is_static, *place


def _operand(value: StaticValue) -> Any:
    """Returns the key of an operand that is a concrete value, and so a constant of the program."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return IdentityKey(value, None) if isinstance(value, jax.Array) else static_key(value, [])


def _update(noted: PendingUpdate) -> tuple[Any, ...]:
    update = noted.update
    # `apply` of an update that only the server can apply is never called here.
    apply = None if update.server_only else IdentityKey(update.apply, None)
    kind = update.name, apply, update.sparse, update.reducible, update.body
    return _variable(noted.variable), *kind, jax.tree.structure(noted.operand)
