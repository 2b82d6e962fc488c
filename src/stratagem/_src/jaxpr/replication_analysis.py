"""What may differ between replicas, as far as the jaxpr of one of them shows.

A value is equal in all replicas if it is computed from equal ones alone, or is the result of a reduction
over all replicas. Everything else may differ: what depends on the replica's index, on host callbacks, on
effects, on other exchanges between replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from stratagem._src.jax_compat.tracing import all_equations, inner_jaxprs
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = [
    "Body",
    "ReplicaFlow",
    "has_collectives",
    "is_demand",
    "known_to_be_equal",
    "lasting_effects",
    "must_be_equal",
    "name_of_call",
]

_EQUAL = "equal_in_all_replicas"
_MUST_BE_EQUAL = "must_be_equal_in_all_replicas"
_REDUCTIONS = {"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"}
_SOURCES = {"axis_index", "rng_uniform"}


@functools.cache
def _identity(name: str) -> Any:
    def identity(value: Any) -> Any:
        return value

    identity.__name__ = name
    return jax.jit(identity)


@jax.custom_jvp
def known_to_be_equal(value: Any) -> Any:
    """Returns ``value``, noting in the jaxpr that it is the same in all replicas."""
    return _identity(_EQUAL)(value)


@known_to_be_equal.defjvp
def _known_to_be_equal_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    # Of the value alone: gradients that come back through it are each replica's own.
    [value], [tangent] = primals, tangents
    return known_to_be_equal(value), tangent


def must_be_equal(value: Any) -> Any:
    """Returns ``value``, noting in the jaxpr that it must be the same in all replicas."""
    return _identity(_MUST_BE_EQUAL)(value)


def name_of_call(eqn: Any) -> str | None:
    """Returns the name of the function that an equation calls, if ``jax.jit`` made it."""
    return eqn.params.get("name") if eqn.primitive.name in ("jit", "pjit") else None


def is_demand(eqn: Any) -> bool:
    """Returns whether an equation is a note of ``must_be_equal``."""
    return name_of_call(eqn) == _MUST_BE_EQUAL


def has_collectives(equations: Iterable[Any]) -> bool:
    """Returns whether replicas exchange anything in these equations or in the jaxprs in them."""
    for eqn in equations:
        if eqn.primitive.name != "axis_index" and REPLICA_AXIS in _axes(eqn):
            return True
        if any(has_collectives(inner.eqns) for inner in inner_jaxprs(eqn)):
            return True
    return False


def lasting_effects(eqn: Any) -> bool:
    """Returns whether an equation has effects other than to name an axis."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


class Body(NamedTuple):
    """A jaxpr inside an equation.

    Attributes:
        param: The equation's parameter that it is in.
        position: Its position there, if that is a tuple.
        differs: Of each of its inputs, whether it may differ between replicas.
    """

    param: str
    position: int | None
    differs: list[bool]


class ReplicaFlow:
    """Follows through a jaxpr what may differ between replicas."""

    def outputs(self, jaxpr: Any, differs: Sequence[bool]) -> list[bool]:
        """Returns which outputs may differ, given which inputs do."""
        differing = {id(v) for v, flag in zip(jaxpr.invars, differs, strict=True) if flag}

        def of(atom: Any) -> bool:
            return id(atom) in differing

        for eqn in jaxpr.eqns:
            results = self.results(eqn, [of(atom) for atom in eqn.invars])
            differing |= {id(v) for v, flag in zip(eqn.outvars, results, strict=True) if flag}
        return [of(atom) for atom in jaxpr.outvars]

    def results(self, eqn: Any, differs: Sequence[bool]) -> list[bool]:
        """Returns which results of one equation may differ, given which operands do."""
        name = eqn.primitive.name
        count = len(eqn.outvars)
        if name in _REDUCTIONS and REPLICA_AXIS in _axes(eqn):
            grouped = eqn.params.get("axis_index_groups") is not None
            return [grouped] * count
        if name in _SOURCES or "callback" in name or REPLICA_AXIS in _axes(eqn):
            return [True] * count
        if name == "cond":
            return self._of_cond(eqn, differs)
        if name == "while":
            return self._of_while(eqn, differs)
        if name == "scan":
            return self._of_scan(eqn, differs)
        if name_of_call(eqn) == _EQUAL:
            return [False] * count
        if is_demand(eqn) and any(differs):
            self.diverges("assigns a variable of which replicas have equal copies")
        inner = inner_jaxprs(eqn)
        if len(inner) == 1 and _same_arity(eqn, inner[0]):
            return self.outputs(inner[0], differs)
        sources = any(
            e.primitive.name in _SOURCES or lasting_effects(e)
            for jaxpr in inner
            for e in all_equations(jaxpr)
        )
        return [any(differs) or sources or lasting_effects(eqn)] * count

    def diverges(self, what: str) -> None:
        """Called for a conditional or loop in which replicas may part though they must not.

        Args:
            what: What it does that all replicas must take part in.
        """

    def bodies(self, eqn: Any, differs: Sequence[bool]) -> list[Body]:
        """Returns the jaxprs in a loop, a conditional or a checkpointed call; else nothing."""
        name = eqn.primitive.name
        if name == "cond":
            count = len(eqn.params["branches"])
            return [Body("branches", i, list(differs[1:])) for i in range(count)]
        if name == "while":
            of_condition, of_body, carried = self._while_inputs(eqn, differs)
            return [
                Body("cond_jaxpr", None, [*of_condition, *carried]),
                Body("body_jaxpr", None, [*of_body, *carried]),
            ]
        if name == "scan":
            consts, carried, elements, _ = self._scan_inputs(eqn, differs)
            return [Body("jaxpr", None, [*consts, *carried, *elements])]
        if name in ("checkpoint", "remat", "remat2"):
            return [Body("jaxpr", None, list(differs))]
        return []

    def _of_cond(self, eqn: Any, differs: Sequence[bool]) -> list[bool]:
        predicate, *operands = differs
        if predicate and has_collectives([eqn]):
            self.diverges("has a collective (all_reduce, an aggregated assign, ...)")
        branches = [self.outputs(branch.jaxpr, operands) for branch in eqn.params["branches"]]
        return [predicate or any(of_all) for of_all in zip(*branches, strict=True)]

    def _while_inputs(
        self, eqn: Any, differs: Sequence[bool]
    ) -> tuple[list[bool], list[bool], list[bool]]:
        in_condition, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        of_condition, rest = list(differs[:in_condition]), list(differs[in_condition:])
        of_body, carried = rest[:in_body], rest[in_body:]
        carried = self._settle(eqn.params["body_jaxpr"].jaxpr, of_body, carried, [])[0]
        return of_condition, of_body, carried

    def _of_while(self, eqn: Any, differs: Sequence[bool]) -> list[bool]:
        of_condition, _, carried = self._while_inputs(eqn, differs)
        (predicate,) = self.outputs(eqn.params["cond_jaxpr"].jaxpr, [*of_condition, *carried])
        if predicate and has_collectives([eqn]):
            self.diverges("has a collective (all_reduce, an aggregated assign, ...)")
        return [predicate or flag for flag in carried]

    def _scan_inputs(
        self, eqn: Any, differs: Sequence[bool]
    ) -> tuple[list[bool], list[bool], list[bool], list[bool]]:
        """Returns what differs of the constants, the carried values, the elements, the results."""
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
        of_consts, elements = list(differs[:consts]), list(differs[consts + carry :])
        carried, stacked = self._settle(
            eqn.params["jaxpr"].jaxpr, of_consts, list(differs[consts : consts + carry]), elements
        )
        return of_consts, carried, elements, stacked

    def _of_scan(self, eqn: Any, differs: Sequence[bool]) -> list[bool]:
        _, carried, _, stacked = self._scan_inputs(eqn, differs)
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


def _axes(eqn: Any) -> tuple[Any, ...]:
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return axes if isinstance(axes, tuple) else (axes,)


def _same_arity(eqn: Any, jaxpr: Any) -> bool:
    return len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)
