"""Inlines a jaxpr: one list of equations without calls and without dead code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from stratagem._src.core.types import Atom, JaxprConstant
from stratagem._src.jaxpr.inline import Constant, called_jaxpr

__all__ = ["Constant", "Equation", "FlatProgram", "flatten", "unsharded_constant"]

_SHARDING_PRIMITIVES = frozenset({"sharding_constraint", "reshard", "mesh_cast"})


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One equation over numbered values.

    Attributes:
        primitive: The primitive.
        params: Its static parameters.
        operands: Numbers of values, or constants.
        results: Numbers of the values that it computes.
        shapes: The shapes of the results in the global program.
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
        inputs: Numbers of its inputs.
        equations: The equations, in topological order.
        outputs: Numbers of the values that it returns, or constants.
    """

    inputs: tuple[int, ...]
    equations: list[Equation] = field(default_factory=list)
    outputs: tuple[int | Constant, ...] = ()


def flatten(closed: ClosedJaxpr) -> FlatProgram:
    """Returns a jaxpr as one list of equations. Its constants are inputs, before the other inputs."""
    return _Flattening().run(closed.jaxpr)


class _Flattening:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._equations: list[Equation] = []

    def run(self, jaxpr: Jaxpr) -> FlatProgram:
        inputs = [next(self._numbers) for _ in (*jaxpr.constvars, *jaxpr.invars)]
        outputs = tuple(self._inline(jaxpr, inputs))
        return FlatProgram(tuple(inputs), _eliminate_dead_code(self._equations, outputs), outputs)

    def _inline(self, jaxpr: Jaxpr, operands: Sequence[int | Constant]) -> list[int | Constant]:
        variables = (*jaxpr.constvars, *jaxpr.invars)
        known: dict[Any, int | Constant] = dict(zip(variables, operands, strict=True))

        def look_up(atom: Atom) -> int | Constant:
            return (
                Constant(unsharded_constant(atom.val)) if isinstance(atom, Literal) else known[atom]
            )

        for eqn in jaxpr.eqns:
            given = [look_up(atom) for atom in eqn.invars]
            if eqn.primitive.name in _SHARDING_PRIMITIVES:  # the partitioner chooses the layouts
                known[eqn.outvars[0]] = given[0]
                continue
            called = called_jaxpr(eqn)
            # A checkpointed call is inlined like any other, behind a barrier that keeps its recomputation.
            if eqn.primitive.name == "checkpoint":
                called = ClosedJaxpr(eqn.params["jaxpr"], ())
                given = self._with_cse_barrier(given, eqn) if eqn.params["prevent_cse"] else given
            if called is not None:
                consts = [Constant(unsharded_constant(const)) for const in called.consts]
                returned = self._inline(called.jaxpr, [*consts, *given])
                known.update(zip(eqn.outvars, returned, strict=True))
                continue
            results = tuple(next(self._numbers) for _ in eqn.outvars)
            shapes = _shapes(eqn.outvars)
            self._equations.append(
                Equation(
                    eqn.primitive, _without_shardings(eqn.params), tuple(given), results, shapes
                )
            )
            known.update(zip(eqn.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    def _with_cse_barrier(self, given: Sequence[int | Constant], eqn: Any) -> list[int | Constant]:
        """Puts an optimization barrier around the operands of a checkpointed call.

        Otherwise XLA merges the recomputation in the backward pass with the forward pass (CSE).
        """
        results = tuple(next(self._numbers) for _ in given)
        shapes = _shapes(eqn.invars)
        primitive = jax.lax.optimization_barrier_p
        self._equations.append(Equation(primitive, {}, tuple(given), results, shapes))
        return list(results)


def unsharded_constant(constant: JaxprConstant) -> Any:
    """Returns a constant without its sharding over the replicas, so that each replica can embed it."""
    if not isinstance(constant, jax.Array) or len(constant.sharding.device_set) == 1:
        return constant
    if jnp.issubdtype(constant.dtype, jax.dtypes.extended):
        return constant.addressable_data(0)
    return np.asarray(constant)


def _without_shardings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Drops the shardings that JAX inferred for a result from a constant that is on the replicas."""
    return {k: None if k in ("sharding", "out_sharding") else v for k, v in params.items()}


def _shapes(atoms: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(atom.aval.shape) for atom in atoms)


def _eliminate_dead_code(
    equations: Sequence[Equation], outputs: Sequence[int | Constant]
) -> list[Equation]:
    """Drops equations that no output depends on: their rules might require a collective."""

    def backwards() -> Iterator[Equation]:
        live = {output for output in outputs if isinstance(output, int)}
        for equation in reversed(equations):
            if live.intersection(equation.results):
                live.update(o for o in equation.operands if isinstance(o, int))
                yield equation

    return list(backwards())[::-1]
