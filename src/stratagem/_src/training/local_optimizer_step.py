"""``LocalOptimizerStep``: what an optimizer does with variables of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.execution.conditionals import cond
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.training.gradient_pairs import dense_gradient
from stratagem._src.training.optimizer_step import OptimizerStep
from stratagem._src.training.state_variables import StateVariables
from stratagem._src.variables.central_variable import CentralVariable
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.fully_sharded_variable import InParts
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.variable import Variable

__all__ = ["LocalOptimizerStep"]

_ON_ALL_OR_ONE = (MirroredVariable, CentralVariable)  # and not in parts, as other state may be


class LocalOptimizerStep:
    """The updates of variables whose optimizer state is beside them, in variables too.

    Args:
        recipe: What the optimizer does.
        state: Its state.
    """

    def __init__(self, recipe: OptimizerStep, state: StateVariables) -> None:
        self._recipe = recipe
        self._state = state
        self._step = jax.jit(recipe.update)
        self._step_with_sums = jax.jit(recipe.update_with_sums)

    def scattered(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Variable],
        options: CommunicationOptions | None,
    ) -> Sequence[Any]:
        """Returns gradients of which each replica gets its part of the sum as that, others as they are.

        Args:
            gradients: What the replicas have, one for each variable.
            variables: The variables.
            options: How gradients travel.
        """
        self._state.build(variables)
        in_parts = self._state.step_in_parts()
        return gradients if in_parts is None else in_parts.scattered(gradients, options)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        """Updates variables by gradients that are summed over the replicas already.

        Args:
            gradients: Arrays, or parts where ``scattered`` made them.
            variables: The variables.
        """
        self._state.build(variables)
        in_parts = self._state.step_in_parts()
        if in_parts is not None:
            whole = [
                g if isinstance(g, InParts) else dense_gradient(g, v)
                for g, v in zip(gradients, variables, strict=True)
            ]
            in_parts.take(whole, self._state.read_only())
            return
        values = self._beside_state(variables)
        dense = [dense_gradient(*each) for each in zip(gradients, variables, values, strict=True)]
        if self._state.reduces_late(variables):
            self.accumulate(dense, variables)
        else:
            self._assign(*self._step(dense, self._state.read(), values))

    def accumulate(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Variable],
        options: CommunicationOptions | None = None,
    ) -> None:
        """Adds up gradients, and updates the variables when there are enough of them.

        So the replicas exchange gradients once for each update, and not in each of the calls for it.

        Args:
            gradients: Arrays, of each replica apart or of all together.
            variables: The variables.
            options: How sums of each replica travel.
        """
        self._state.build(variables)
        self._state.accumulate(gradients)
        steps = self._state.number("accumulated_steps", None)
        done = steps.read_value() + 1

        def step() -> None:
            values = self._beside_state(variables)
            sums = self._state.take_sums(options)
            self._assign(*self._step_with_sums(sums, self._state.read(), values))

        def keep() -> None:
            steps.assign(done)

        cond(done == self._recipe.accumulation_steps, step, keep)

    def _beside_state(self, variables: Sequence[Variable]) -> list[Any]:
        """Returns the values of variables, on the devices where the optimizer's state is.

        A variable that was created outside of the scope lies on one device; the state of an optimizer that
        replicas use lies on all of theirs, and JAX does not compute with both.
        """
        values = [variable.read_value() for variable in variables]
        held = next((v for v in self._state.held if isinstance(v, _ON_ALL_OR_ONE)), None)
        if held is None or held.group.spans_processes:  # there each computes with its own copies
            return values
        return [
            value
            if isinstance(variable, DistributedVariable) or is_tracer(value)
            else held.place(value)
            for variable, value in zip(variables, values, strict=True)
        ]

    def _assign(self, values: Sequence[Any], new_state: Any) -> None:
        for variable, value in zip(self._state.of, values, strict=True):
            variable.assign(value)
        self._state.write(new_state)
