"""Computes the initial values of variables that a function creates while it is traced."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.types import Jaxpr
from stratagem._src.execution.buffer_donation import borrow_pinned
from stratagem._src.execution.passes import LiftContext
from stratagem._src.jaxpr.dead_code import equations_for
from stratagem._src.jaxpr.walk import mentioned_variables
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.locking import STORAGE_LOCK
from stratagem._src.variables.variable import Variable

__all__ = ["initialize_created"]


def initialize_created(
    created: Sequence[Variable],
    traced: Jaxpr,
    context: LiftContext,
    arrays: list[Any],
    group: ReplicaGroup | None,
) -> None:
    """Computes the initial values of variables that have none yet.

    Args:
        created: The variables that were created while tracing.
        traced: The jaxpr after the lifts. Its last outputs are the initial values.
        context: What the lifts found.
        arrays: The arrays of the traced call.
        group: The replicas, if the function uses several or particular devices.
    """
    if all(variable.initialized for variable in created):
        return
    jaxpr, variables = _only_for_last_outputs(traced, len(created)), context.variables
    consts = context.traced_consts()
    mentioned = mentioned_variables(jaxpr)
    is_used = [id(invar) in mentioned for invar in jaxpr.invars[: len(variables)]]
    with STORAGE_LOCK:
        pinned = iter([borrow_pinned(v, group) for v in itertools.compress(variables, is_used)])
    values = [next(pinned) if used else None for used in is_used]

    def initial_values(values: list[Any], arrays: list[Any]) -> list[Any]:
        return jax.core.eval_jaxpr(jaxpr, consts, *values, *arrays)

    names = ", ".join(variable.name for variable in created)
    home = group.home if group is not None else None
    computed = launch(jax.jit(initial_values), (values, arrays), home, f"creation of {names}")
    for variable, value in zip(created, computed, strict=True):
        if not variable.initialized:
            variable.initialize(value.addressable_data(0))


def _only_for_last_outputs(jaxpr: Jaxpr, count: int) -> Any:
    """Returns ``jaxpr`` reduced to its last outputs and what they depend on; effects are dropped."""
    outvars = jaxpr.outvars[len(jaxpr.outvars) - count :]
    return jaxpr.replace(
        eqns=equations_for(jaxpr.eqns, outvars),
        outvars=outvars,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
