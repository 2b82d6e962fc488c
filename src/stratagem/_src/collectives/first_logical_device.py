"""Runs debug callbacks once for each replica, for replicas with several logical devices.

Without layouts every logical device of a replica repeats all of its work. Only the first one runs the
``jax.debug`` callbacks.
"""

from __future__ import annotations

import math
from typing import Any

import jax

from stratagem._src.core.types import Equation, Jaxpr, PyTree, Tensor
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["on_first_logical_device"]

_CALLBACKS = ("debug_callback", "debug_print")


def on_first_logical_device(jaxpr: Jaxpr, group: ReplicaGroup) -> Any:
    """Returns a replica's jaxpr whose debug callbacks run on one device of each replica.

    Args:
        jaxpr: The jaxpr. All axes of the group's mesh must be manual where it is evaluated.
        group: The replicas.
    """
    axes = {name: size for name, size in group.mesh.shape.items() if name != REPLICA_AXIS}
    return jaxpr if math.prod(axes.values()) == 1 else _changed(jaxpr, axes)


def _changed(jaxpr: Jaxpr, axes: dict[Any, int]) -> Any:
    return jaxpr.replace(eqns=[_changed_equation(eqn, axes) for eqn in jaxpr.eqns])


def _changed_equation(eqn: Equation, axes: dict[Any, int]) -> Any:
    if eqn.primitive.name not in _CALLBACKS:
        return eqn.replace(params={k: _changed_param(v, axes) for k, v in eqn.params.items()})

    def call(*args: PyTree) -> None:
        eqn.primitive.bind(*args, **eqn.params)

    @jax.jit  # so that the trace has one equation
    def call_on_first(*args: PyTree) -> None:
        is_first = jax.lax.axis_index(tuple(axes)) == 0
        jax.lax.cond(is_first, call, lambda *args: None, *args)

    avals = [atom.aval for atom in eqn.invars]
    traced = jax.make_jaxpr(call_on_first, axis_env=list(axes.items()))(*avals)
    return traced.jaxpr.eqns[0].replace(invars=eqn.invars)


def _changed_param(value: Tensor, axes: dict[Any, int]) -> Any:
    if isinstance(value, jax_core().ClosedJaxpr):
        return value.replace(jaxpr=_changed(value.jaxpr, axes))
    if isinstance(value, jax_core().Jaxpr):
        return _changed(value, axes)
    if type(value) is tuple:
        return tuple(_changed_param(item, axes) for item in value)
    return value
