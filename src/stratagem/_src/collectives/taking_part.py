"""Checks that all replicas of a program take part in its collectives, also inside conditionals.

A collective waits for all replicas. In a branch that some of them do not take it would wait for ever. So
a conditional or loop with collectives needs a predicate that is the same in all replicas, which shows in
the jaxpr: it does not depend on what differs between them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.core.tracing import all_equations, jax_core
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["check_taking_part", "known_to_be_equal", "must_be_equal"]

_EQUAL = "equal_in_all_replicas"
_MUST_BE_EQUAL = "must_be_equal_in_all_replicas"
_REDUCTIONS = {"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"}


@functools.cache
def _identity(name: str) -> Any:
    def identity(value: Any) -> Any:
        return value

    identity.__name__ = name
    return jax.jit(identity)


def known_to_be_equal(value: Any) -> Any:
    """Returns ``value``, noting for the check that it is the same in all replicas."""
    return _identity(_EQUAL)(value)


def must_be_equal(value: Any) -> Any:
    """Returns ``value``, which the check refuses if it may differ between replicas."""
    return _identity(_MUST_BE_EQUAL)(value)


def check_taking_part(jaxpr: Any, differs: Sequence[bool], num_replicas: int) -> None:
    """Checks that every collective of a replica's jaxpr is reached by all replicas or by none.

    Args:
        jaxpr: What one replica computes.
        differs: Of each input, whether replicas have values of their own.
        num_replicas: Number of replicas.

    Raises:
        ReplicaMismatchError: If some might not reach it.
    """
    if num_replicas > 1 and any(map(_needs_check, all_equations(jaxpr))):
        _Flow().outputs(jaxpr, differs)


def _needs_check(eqn: Any) -> bool:
    name = eqn.primitive.name
    return (name in ("cond", "while") and _has_collectives([eqn])) or _name_of_call(
        eqn
    ) == _MUST_BE_EQUAL


def _name_of_call(eqn: Any) -> str | None:
    return eqn.params.get("name") if eqn.primitive.name in ("jit", "pjit") else None


def _axes(eqn: Any) -> tuple[Any, ...]:
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return axes if isinstance(axes, tuple) else (axes,)


def _has_collectives(equations: Iterable[Any]) -> bool:
    for eqn in equations:
        if eqn.primitive.name != "axis_index" and REPLICA_AXIS in _axes(eqn):
            return True
        if any(_has_collectives(inner.eqns) for inner in _inner(eqn)):
            return True
    return False


def _inner(eqn: Any) -> list[Any]:
    """Returns the jaxprs in an equation."""
    kinds = (jax_core().Jaxpr, jax_core().ClosedJaxpr)
    leaves = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: isinstance(x, kinds))
    return [getattr(leaf, "jaxpr", leaf) for leaf in leaves if isinstance(leaf, kinds)]


class _Flow:
    """Follows through a jaxpr what may differ between replicas."""

    def outputs(self, jaxpr: Any, differs: Sequence[bool]) -> list[bool]:
        """Returns which outputs may differ, given which inputs do."""
        differing = {id(v) for v, flag in zip(jaxpr.invars, differs, strict=True) if flag}

        def of(atom: Any) -> bool:
            return id(atom) in differing

        for eqn in jaxpr.eqns:
            results = self._results(eqn, [of(atom) for atom in eqn.invars])
            differing |= {id(v) for v, flag in zip(eqn.outvars, results, strict=True) if flag}
        return [of(atom) for atom in jaxpr.outvars]

    def _results(self, eqn: Any, differs: list[bool]) -> list[bool]:
        name = eqn.primitive.name
        count = len(eqn.outvars)
        if name in _REDUCTIONS and REPLICA_AXIS in _axes(eqn):
            grouped = eqn.params.get("axis_index_groups") is not None
            return [grouped] * count
        if name == "axis_index" or "callback" in name or REPLICA_AXIS in _axes(eqn):
            return [True] * count
        if name == "cond":
            return self._of_cond(eqn, differs)
        if name == "while":
            return self._of_while(eqn, differs)
        if name == "scan":
            return self._of_scan(eqn, differs)
        called = _name_of_call(eqn)
        if called == _EQUAL:
            return [False] * count
        if called == _MUST_BE_EQUAL and any(differs):
            raise _mismatch("assigns a variable of which replicas have equal copies")
        inner = _inner(eqn)
        if len(inner) == 1 and _same_arity(eqn, inner[0]):
            return self.outputs(inner[0], differs)
        sources = any(
            e.primitive.name == "axis_index" for jaxpr in inner for e in all_equations(jaxpr)
        )
        return [any(differs) or sources] * count

    def _of_cond(self, eqn: Any, differs: list[bool]) -> list[bool]:
        predicate, *operands = differs
        if predicate and _has_collectives([eqn]):
            raise _mismatch("has a collective (all_reduce, an aggregated assign, ...)")
        branches = [self.outputs(branch.jaxpr, operands) for branch in eqn.params["branches"]]
        return [predicate or any(of_all) for of_all in zip(*branches, strict=True)]

    def _of_while(self, eqn: Any, differs: list[bool]) -> list[bool]:
        in_condition, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        of_condition, rest = differs[:in_condition], differs[in_condition:]
        of_body, carried = rest[:in_body], rest[in_body:]
        carried = self._settle(eqn.params["body_jaxpr"].jaxpr, of_body, carried, [])[0]
        (predicate,) = self.outputs(eqn.params["cond_jaxpr"].jaxpr, [*of_condition, *carried])
        if predicate and _has_collectives([eqn]):
            raise _mismatch("has a collective (all_reduce, an aggregated assign, ...)")
        return [predicate or flag for flag in carried]

    def _of_scan(self, eqn: Any, differs: list[bool]) -> list[bool]:
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
        carried, stacked = self._settle(
            eqn.params["jaxpr"].jaxpr,
            differs[:consts],
            differs[consts : consts + carry],
            differs[consts + carry :],
        )
        return [*carried, *stacked]

    def _settle(
        self, body: Any, consts: list[bool], carried: list[bool], elements: list[bool]
    ) -> tuple[list[bool], list[bool]]:
        """Returns what differs of the carried values after any number of turns, and of the rest."""
        while True:
            after = self.outputs(body, [*consts, *carried, *elements])
            merged = [a or b for a, b in zip(carried, after, strict=False)]
            if merged == carried:
                return merged, after[len(carried) :]
            carried = merged


def _same_arity(eqn: Any, jaxpr: Any) -> bool:
    return len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)


def _mismatch(what: str) -> ReplicaMismatchError:
    return ReplicaMismatchError(
        f"A conditional or loop {what}, but its predicate may differ between replicas, so that not all of "
        "them would take part. Make it the same in all of them, by "
        "get_replica_context().all_reduce('MAX', predicate) or from what all replicas share; or call the "
        "collective outside, and choose its result by jnp.where."
    )
