"""Walks over the equations of a jaxpr and of the jaxprs in them, and rewrites them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax

from stratagem._src.core.types import Equation, Jaxpr, StaticValue
from stratagem._src.jax_compat.tracing import jax_core

__all__ = [
    "all_equations",
    "inner_jaxprs",
    "map_inner_jaxprs",
    "mentioned_variables",
    "rewrite_equations",
]

BodyRewrite: TypeAlias = Callable[[str, int | None, Jaxpr], Jaxpr]
"""From a parameter's name, the position in it if it is a sequence, and a closed jaxpr to another one."""


def all_equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Yields the equations of a jaxpr and of the jaxprs in them."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from all_equations(inner)


def inner_jaxprs(eqn: Equation) -> list[Jaxpr]:
    """Returns the jaxprs in an equation, without their constants."""
    # `cond` has a tuple of branches, `while` has two jaxprs, `scan` one. A search through all parameters
    # also finds those of primitives that this library does not know: one that is missed would hide a
    # collective in it from the check for deadlocks.
    leaves = jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr)
    return [getattr(leaf, "jaxpr", leaf) for leaf in leaves if _is_jaxpr(leaf)]


def _is_jaxpr(value: StaticValue) -> bool:
    return isinstance(value, (jax_core().Jaxpr, jax_core().ClosedJaxpr))


def mentioned_variables(jaxpr: Jaxpr) -> set[int]:
    """Returns the identities of the jaxpr's variables that are used or returned."""
    # By identity: a literal with an array in it cannot be hashed. Literals in the set do no harm.
    return {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}


def rewrite_equations(jaxpr: Jaxpr, rewrite: Callable[[Equation], Equation | None]) -> Jaxpr:
    """Returns a jaxpr with other equations, also in the jaxprs in them.

    What does not change stays the same object: JAX caches what it derives from a jaxpr by identity, and
    parameters may be named tuples.

    Args:
        jaxpr: The jaxpr.
        rewrite: From an equation to the one that replaces it, with the same operands and results;
            ``None`` to keep the equation and rewrite the jaxprs in it.
    """

    def rewrite_body(name: str, position: int | None, body: Jaxpr) -> Jaxpr:
        inner = rewrite_equations(body.jaxpr, rewrite)
        return body if inner is body.jaxpr else jax_core().ClosedJaxpr(inner, body.consts)

    def rewritten(eqn: Equation) -> Equation:
        changed = rewrite(eqn)
        return map_inner_jaxprs(eqn, rewrite_body) if changed is None else changed

    eqns = [rewritten(eqn) for eqn in jaxpr.eqns]
    # Almost every jaxpr of a step is unchanged by almost every pass.
    is_same = all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if is_same else jaxpr.replace(eqns=eqns)


def map_inner_jaxprs(eqn: Equation, change: BodyRewrite) -> Equation:
    """Returns an equation with other jaxprs in it; the equation itself if none changes.

    Args:
        eqn: The equation.
        change: Returns the closed jaxpr that replaces one, with the same inputs and outputs.
    """
    params = {name: _changed(value, change, name, None) for name, value in eqn.params.items()}
    is_same = all(params[name] is value for name, value in eqn.params.items())
    return eqn if is_same else eqn.replace(params=params)


def _changed(value: StaticValue, change: BodyRewrite, name: str, position: int | None) -> Any:
    core = jax_core()
    if isinstance(value, core.ClosedJaxpr):
        return change(name, position, value)
    if isinstance(value, core.Jaxpr):
        closed = core.ClosedJaxpr(value, ())
        changed = change(name, position, closed)
        # A plain Jaxpr, as in `jax.checkpoint`, cannot hold constants.
        return value if changed is closed or changed.consts else changed.jaxpr
    # Not subclasses: a named tuple is built from fields, not from one list.
    if type(value) in (tuple, list):
        items = [_changed(item, change, name, i) for i, item in enumerate(value)]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    return value
