"""Keras metrics whose state is on parameter servers: workers add what they counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.types import Jaxpr
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.integrations.keras.keras_internals import (
    Argument,
    KerasObject,
    KerasVariable,
    in_stateless_scope,
)
from stratagem._src.integrations.keras.remote_apply import is_remote
from stratagem._src.jax_compat.primitives import JIT, SAME_ELEMENTS, SUMS
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["is_on_servers", "update_on_servers"]

_checked: WeakIdentityMap[Any, bool] = WeakIdentityMap()


def is_on_servers(metric: KerasObject) -> bool:
    """Returns whether the state of a metric is on servers, and not in a ``StatelessScope``.

    Some metrics create their state in the first update, which then is their own.
    """
    is_built = getattr(metric, "_built", True)
    return is_built and not in_stateless_scope() and any(map(is_remote, metric.variables))


def update_on_servers(
    metric: KerasObject, update_state: Callable[..., Any], *args: Argument, **kwargs: Argument
) -> None:
    """Calls ``update_state`` of a metric, and adds what it counts to the state on the servers.

    Many metrics read their state and assign the sum. Several workers would overwrite each other's.

    Raises:
        UnsupportedError: If the new state is not the sum of the old one and what was counted.
    """
    variables = list(metric.variables)

    def counted(before: list[Any]) -> list[Any]:
        with keras.StatelessScope(list(zip(variables, before, strict=True))) as scope:
            update_state(metric, *args, **kwargs)
        return [scope.get_current_value(variable) for variable in variables]

    if metric not in _checked:
        _check_sums(metric, variables, counted)
        _checked[metric] = True
    zeros = [jnp.zeros(tuple(v.shape), v.dtype) for v in variables]
    for variable, before, after in zip(variables, zeros, counted(zeros), strict=True):
        if after is not before:
            variable.assign_add(after)


def _check_sums(
    metric: KerasObject,
    variables: list[KerasVariable],
    counted: Callable[[list[Any]], list[Any]],
) -> None:
    examples = [jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in variables]
    traced = jax.make_jaxpr(counted)(examples).jaxpr
    results = _sums(traced, {v: i for i, v in enumerate(traced.invars)})
    wrong = [v.path for i, v in enumerate(variables) if results[i] != i]
    if wrong:
        raise UnsupportedError(
            "update_state() of a metric on parameter servers must add to its state, so that the sums of "
            f"several workers add up, but that of {metric.name!r} computes {wrong} in another way. Compute "
            "it in evaluate(), or from sums in result()."
        )


def _sums(jaxpr: Jaxpr, states: dict[Any, int]) -> list[int | None]:
    """Returns for each output of a jaxpr the state that it is a sum with; ``None`` if there is none.

    Args:
        jaxpr: The jaxpr.
        states: The inputs that are states, with their numbers; -1 for one that depends on states in
            another way.
    """
    known: dict[Any, int] = dict(states)

    def state_of(atom: Any) -> int | None:
        return None if isinstance(atom, jax_core().Literal) else known.get(atom)

    for eqn in jaxpr.eqns:
        used = [state for state in map(state_of, eqn.invars) if state is not None]
        if not used:
            continue
        found: Sequence[int | None]
        inner = eqn.params.get("jaxpr") if eqn.primitive.name in JIT else None
        if inner is not None:
            inside = {
                var: state
                for var, atom in zip(inner.jaxpr.invars, eqn.invars, strict=True)
                if (state := state_of(atom)) is not None
            }
            found = _sums(inner.jaxpr, inside)
        elif len(used) == 1 and eqn.primitive.name in SUMS | SAME_ELEMENTS:
            found = used
        else:
            found = [-1] * len(eqn.outvars)
        known.update((var, s) for var, s in zip(eqn.outvars, found, strict=True) if s is not None)
    return [state_of(atom) for atom in jaxpr.outvars]
