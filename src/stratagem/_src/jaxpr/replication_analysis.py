"""Replication analysis: which values of a replica's jaxpr may vary between replicas.

A value is replicated if it is computed from replicated values alone, or is the result of a reduction over
all replicas. Everything else is varying: values that depend on the replica's index, on host callbacks, on
effects, or on other collectives. JAX calls the same property ``vma``, varying manual axes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from stratagem._src.core.types import Atom, Equation, Jaxpr, Tensor
from stratagem._src.jax_compat.primitives import (
    AXIS_INDEX,
    CHECKPOINTS,
    COND,
    JIT,
    REPLICATING_COLLECTIVES,
    SCAN,
    UNSYNCHRONIZED_SOURCES,
    WHILE,
    calls_host,
    collective_axes,
    scan_counts,
)
from stratagem._src.jaxpr.walk import all_equations, inner_jaxprs
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = [
    "Body",
    "ReplicationAnalysis",
    "has_collectives",
    "has_side_effects",
    "is_replication_check",
    "mark_replicated",
    "name_of_call",
    "require_replicated",
]

_REPLICATED = "equal_in_all_replicas"
_REQUIRED_REPLICATED = "must_be_equal_in_all_replicas"


@functools.cache
def _identity(name: str) -> Any:
    def identity(value: Tensor) -> Any:
        return value

    identity.__name__ = name
    return jax.jit(identity)


@jax.custom_jvp
def mark_replicated(value: Tensor) -> Any:
    """Returns ``value``, marked in the jaxpr as the same in all replicas."""
    return _identity(_REPLICATED)(value)


@mark_replicated.defjvp
def _known_to_be_equal_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    # Only the value is replicated: the gradients that flow back through it differ between replicas.
    [value], [tangent] = primals, tangents
    return mark_replicated(value), tangent


def require_replicated(value: Tensor) -> Any:
    """Returns ``value``, marked in the jaxpr as required to be the same in all replicas."""
    return _identity(_REQUIRED_REPLICATED)(value)


def name_of_call(eqn: Equation) -> str | None:
    """Returns the name of the function that an equation calls, if ``jax.jit`` made it."""
    return eqn.params.get("name") if eqn.primitive.name in JIT else None


def is_replication_check(eqn: Equation) -> bool:
    """Returns whether an equation is a mark of ``require_replicated``."""
    return name_of_call(eqn) == _REQUIRED_REPLICATED


def has_collectives(equations: Iterable[Any]) -> bool:
    """Returns whether these equations, or the jaxprs in them, contain collectives over the replicas."""
    for eqn in equations:
        if eqn.primitive.name != AXIS_INDEX and REPLICA_AXIS in collective_axes(eqn):
            return True
        if any(has_collectives(inner.eqns) for inner in inner_jaxprs(eqn)):
            return True
    return False


def has_side_effects(eqn: Equation) -> bool:
    """Returns whether an equation has effects other than using a named axis."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


class Body(NamedTuple):
    """A jaxpr inside an equation.

    Attributes:
        param: The equation's parameter that it is in.
        position: Its position there, if the parameter is a tuple.
        varying: Whether each of its inputs may differ between replicas.
    """

    param: str
    position: int | None
    varying: list[bool]


class ReplicationAnalysis:
    """Propagates through a jaxpr which values may vary between replicas."""

    def outputs(self, jaxpr: Jaxpr, varying: Sequence[bool]) -> list[bool]:
        """Returns which outputs may vary, given which inputs do."""
        varying_values = {id(v) for v, flag in zip(jaxpr.invars, varying, strict=True) if flag}

        def of(atom: Atom) -> bool:
            return id(atom) in varying_values

        for eqn in jaxpr.eqns:
            results = self.results(eqn, [of(atom) for atom in eqn.invars])
            varying_values |= {id(v) for v, flag in zip(eqn.outvars, results, strict=True) if flag}
        return [of(atom) for atom in jaxpr.outvars]

    def results(self, eqn: Equation, varying: Sequence[bool]) -> list[bool]:
        """Returns which results of one equation may vary, given which operands do."""
        name = eqn.primitive.name
        count = len(eqn.outvars)
        if name in REPLICATING_COLLECTIVES and REPLICA_AXIS in collective_axes(eqn):
            # A reduction within groups of replicas gives each group its own result.
            grouped = eqn.params.get("axis_index_groups") is not None
            return [grouped] * count
        if (
            name in UNSYNCHRONIZED_SOURCES
            or calls_host(eqn)
            or REPLICA_AXIS in collective_axes(eqn)
        ):
            return [True] * count
        if name == COND:
            return self._cond_results(eqn, varying)
        if name == WHILE:
            return self._while_results(eqn, varying)
        if name == SCAN:
            return self._scan_results(eqn, varying)
        if name_of_call(eqn) == _REPLICATED:
            return [False] * count
        if is_replication_check(eqn) and any(varying):
            self.diverges("assigns a variable that is mirrored in all replicas")
        inner = inner_jaxprs(eqn)
        if len(inner) == 1 and _same_arity(eqn, inner[0]):
            # A call (jit, custom_jvp, ...): its operands are the inputs of the inner jaxpr.
            return self.outputs(inner[0], varying)
        # Anything else is assumed to mix all of its operands.
        sources = any(
            e.primitive.name in UNSYNCHRONIZED_SOURCES or has_side_effects(e)
            for jaxpr in inner
            for e in all_equations(jaxpr)
        )
        return [any(varying) or sources or has_side_effects(eqn)] * count

    def diverges(self, what: str) -> None:
        """Called for a conditional or loop whose replicas may diverge although they must not.

        Args:
            what: What it does that all replicas must take part in.
        """

    def bodies(self, eqn: Equation, varying: Sequence[bool]) -> list[Body]:
        """Returns the jaxprs in a loop, a conditional or a checkpointed call; empty for other equations."""
        name = eqn.primitive.name
        if name == COND:
            count = len(eqn.params["branches"])
            return [Body("branches", i, list(varying[1:])) for i in range(count)]
        if name == WHILE:
            of_condition, of_body, carried = self._while_inputs(eqn, varying)
            return [
                Body("cond_jaxpr", None, [*of_condition, *carried]),
                Body("body_jaxpr", None, [*of_body, *carried]),
            ]
        if name == SCAN:
            consts, carried, elements, _ = self._scan_inputs(eqn, varying)
            return [Body("jaxpr", None, [*consts, *carried, *elements])]
        if name in CHECKPOINTS:
            return [Body("jaxpr", None, list(varying))]
        return []

    def _cond_results(self, eqn: Equation, varying: Sequence[bool]) -> list[bool]:
        predicate, *operands = varying
        if predicate and has_collectives([eqn]):
            self.diverges("has a collective (all_reduce, an aggregated assign, ...)")
        branches = [self.outputs(branch.jaxpr, operands) for branch in eqn.params["branches"]]
        return [predicate or any(of_all) for of_all in zip(*branches, strict=True)]

    def _while_inputs(
        self, eqn: Equation, varying: Sequence[bool]
    ) -> tuple[list[bool], list[bool], list[bool]]:
        in_condition, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        of_condition, rest = list(varying[:in_condition]), list(varying[in_condition:])
        of_body, carried = rest[:in_body], rest[in_body:]
        carried = self._fixed_point(eqn.params["body_jaxpr"].jaxpr, of_body, carried, [])[0]
        return of_condition, of_body, carried

    def _while_results(self, eqn: Equation, varying: Sequence[bool]) -> list[bool]:
        of_condition, _, carried = self._while_inputs(eqn, varying)
        (predicate,) = self.outputs(eqn.params["cond_jaxpr"].jaxpr, [*of_condition, *carried])
        if predicate and has_collectives([eqn]):
            self.diverges("has a collective (all_reduce, an aggregated assign, ...)")
        return [predicate or flag for flag in carried]

    def _scan_inputs(
        self, eqn: Equation, varying: Sequence[bool]
    ) -> tuple[list[bool], list[bool], list[bool], list[bool]]:
        """Returns which of the constants, carried values, elements and stacked results vary."""
        consts, carry = scan_counts(eqn.params)
        of_consts, elements = list(varying[:consts]), list(varying[consts + carry :])
        carried, stacked = self._fixed_point(
            eqn.params["jaxpr"].jaxpr, of_consts, list(varying[consts : consts + carry]), elements
        )
        return of_consts, carried, elements, stacked

    def _scan_results(self, eqn: Equation, varying: Sequence[bool]) -> list[bool]:
        _, carried, _, stacked = self._scan_inputs(eqn, varying)
        return [*carried, *stacked]

    def _fixed_point(
        self, body: Jaxpr, consts: list[bool], carried: list[bool], elements: list[bool]
    ) -> tuple[list[bool], list[bool]]:
        """Returns which carried values vary after any number of iterations, and which other results do.

        Values only ever change from replicated to varying, so the iteration ends.
        """
        while True:
            after = self.outputs(body, [*consts, *carried, *elements])
            merged = [a or b for a, b in zip(carried, after, strict=False)]
            if merged == carried:
                return merged, after[len(carried) :]
            carried = merged


def _same_arity(eqn: Equation, jaxpr: Jaxpr) -> bool:
    return len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)
