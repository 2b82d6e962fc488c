"""Inlines a program over the global batch, without the shardings that JAX found for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from stratagem._src.core.types import Equation, EquationParams, Jaxpr, JaxprConstant
from stratagem._src.jax_compat.primitives import CHECKPOINTS, SHARDING_PRIMITIVES
from stratagem._src.jaxpr.dead_code import eliminate_dead_code
from stratagem._src.jaxpr.inline import Constant, FlatEquation, FlatJaxpr, Operand

__all__ = ["FlatProgram", "flatten", "unsharded_constant"]


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """A program over numbered values.

    Attributes:
        inputs: Numbers of its constants, then of its inputs.
        equations: The equations, in topological order.
        outputs: The values that it returns.
    """

    inputs: list[int]
    equations: list[FlatEquation]
    outputs: list[Operand]


def flatten(closed: ClosedJaxpr) -> FlatProgram:
    """Returns a jaxpr as one list of equations. Its constants are inputs, before the other inputs."""
    flat, jaxpr = _UnshardedJaxpr(), closed.jaxpr
    inputs = [flat.new_value() for _ in (*jaxpr.constvars, *jaxpr.invars)]
    outputs = flat.add(jaxpr, inputs)
    # Without dead code: the rule of an equation that nothing uses might require a collective.
    return FlatProgram(inputs, eliminate_dead_code(flat.equations, outputs), outputs)


class _UnshardedJaxpr(FlatJaxpr):
    """Inlines all calls, and leaves out shardings: the partitioner chooses the layouts."""

    def __init__(self) -> None:
        super().__init__(lambda eqn: True)

    def constant(self, value: JaxprConstant) -> Constant:
        """Returns a constant without its sharding."""
        return Constant(unsharded_constant(value))

    def add_equation(
        self, eqn: Equation, scope: tuple[Jaxpr, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Adds one equation, a checkpointed call, or nothing for an equation that only shards."""
        if eqn.primitive.name in SHARDING_PRIMITIVES:
            return operands
        if eqn.primitive.name in CHECKPOINTS:
            return self._add_checkpointed(eqn, scope, operands)
        unsharded = eqn.replace(params=_without_shardings(eqn.params))
        return super().add_equation(unsharded, scope, operands)

    def _add_checkpointed(
        self, eqn: Equation, scope: tuple[Jaxpr, int], operands: tuple[Operand, ...]
    ) -> Sequence[Operand]:
        """Inlines a checkpointed call like any other: its operations have rules, the call has none."""
        given: Sequence[Operand] = operands
        if eqn.params["prevent_cse"] and eqn.invars:
            # Otherwise XLA merges the recomputation in the backward pass with the forward pass (CSE), and
            # keeps all the activations that the checkpoint is there to drop.
            avals = [atom.aval for atom in eqn.invars]
            traced = jax.make_jaxpr(lambda *xs: jax.lax.optimization_barrier(xs))(*avals)
            given = super().add_equation(traced.jaxpr.eqns[0], scope, operands)
        return self.add(eqn.params["jaxpr"], given)


def unsharded_constant(constant: JaxprConstant) -> Any:
    """Returns a constant without its sharding over the replicas, so that each replica can embed it."""
    if not isinstance(constant, jax.Array) or len(constant.sharding.device_set) == 1:
        return constant
    if jnp.issubdtype(constant.dtype, jax.dtypes.extended):
        return constant.addressable_data(0)
    return np.asarray(constant)


def _without_shardings(params: EquationParams) -> dict[str, Any]:
    """Drops the shardings that JAX inferred for a result from a constant that is on the replicas."""
    return {k: None if k in ("sharding", "out_sharding") else v for k, v in params.items()}
