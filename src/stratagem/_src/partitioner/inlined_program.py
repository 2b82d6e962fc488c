"""A jaxpr as one list of equations: calls are replaced by what they call, and nothing is idle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from stratagem._src.jaxpr.inline import Constant, called_jaxpr

__all__ = ["Constant", "Equation", "FlatProgram", "flatten", "unplaced"]

_PLACING = frozenset({"sharding_constraint", "reshard", "mesh_cast"})


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One operation.

    Attributes:
        primitive: What is done.
        params: Its static parameters.
        operands: Numbers of values, or constants.
        results: Numbers of the values that it makes.
        shapes: Their shapes in the whole program.
    """

    primitive: Any
    params: Mapping[str, Any]
    operands: tuple[int | Constant, ...]
    results: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return str(self.primitive.name)


@dataclass(slots=True)
class FlatProgram:
    """A program over numbered values.

    Attributes:
        inputs: Numbers of the values that it is given.
        equations: What it does, in an order that works.
        outputs: What it returns.
    """

    inputs: tuple[int, ...]
    equations: list[Equation] = field(default_factory=list)
    outputs: tuple[int | Constant, ...] = ()


def flatten(closed: ClosedJaxpr) -> FlatProgram:
    """Returns what a jaxpr does as one list of equations; its constants come before its inputs."""
    return _Flattening().run(closed.jaxpr)


class _Flattening:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._equations: list[Equation] = []

    def run(self, jaxpr: Jaxpr) -> FlatProgram:
        inputs = [next(self._numbers) for _ in (*jaxpr.constvars, *jaxpr.invars)]
        outputs = tuple(self._inline(jaxpr, inputs))
        return FlatProgram(tuple(inputs), _needed(self._equations, outputs), outputs)

    def _inline(self, jaxpr: Jaxpr, operands: Sequence[int | Constant]) -> list[int | Constant]:
        variables = (*jaxpr.constvars, *jaxpr.invars)
        known: dict[Any, int | Constant] = dict(zip(variables, operands, strict=True))

        def look_up(atom: Any) -> int | Constant:
            return Constant(unplaced(atom.val)) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            given = [look_up(atom) for atom in eqn.invars]
            if eqn.primitive.name in _PLACING:  # where values lie is decided here
                known[eqn.outvars[0]] = given[0]
                continue
            called = called_jaxpr(eqn)
            if eqn.primitive.name == "checkpoint":
                called = ClosedJaxpr(eqn.params["jaxpr"], ())
                given = self._kept_apart(given, eqn) if eqn.params["prevent_cse"] else given
            if called is not None:
                consts = [Constant(unplaced(const)) for const in called.consts]
                returned = self._inline(called.jaxpr, [*consts, *given])
                known.update(zip(eqn.outvars, returned, strict=True))
                continue
            results = tuple(next(self._numbers) for _ in eqn.outvars)
            shapes = _shapes(eqn.outvars)
            self._equations.append(
                Equation(eqn.primitive, _without_places(eqn.params), tuple(given), results, shapes)
            )
            known.update(zip(eqn.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    def _kept_apart(self, given: Sequence[int | Constant], eqn: Any) -> list[int | Constant]:
        """What is computed again in the backward pass must not be joined with the first time."""
        results = tuple(next(self._numbers) for _ in given)
        shapes = _shapes(eqn.invars)
        primitive = jax.lax.optimization_barrier_p
        self._equations.append(Equation(primitive, {}, tuple(given), results, shapes))
        return list(results)


def unplaced(constant: Any) -> Any:
    """Returns a constant that lies on the replicas as one that each of them can make its own."""
    if not isinstance(constant, jax.Array) or len(constant.sharding.device_set) == 1:
        return constant
    if jnp.issubdtype(constant.dtype, jax.dtypes.extended):
        return constant.addressable_data(0)
    return np.asarray(constant)


def _without_places(params: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out where JAX wants a result to lie, because of a constant that lies on the replicas."""
    return {k: None if k in ("sharding", "out_sharding") else v for k, v in params.items()}


def _shapes(atoms: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(atom.aval.shape) for atom in atoms)


def _needed(equations: Sequence[Equation], outputs: Sequence[int | Constant]) -> list[Equation]:
    """Leaves out what no output depends on: it could ask for an exchange between replicas."""

    def backwards() -> Iterator[Equation]:
        needed = {output for output in outputs if isinstance(output, int)}
        for equation in reversed(equations):
            if needed.intersection(equation.results):
                needed.update(o for o in equation.operands if isinstance(o, int))
                yield equation

    return list(backwards())[::-1]
