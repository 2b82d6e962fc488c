"""``LocalOptimizerStep``: applies an optimizer to variables of this process."""

from __future__ import annotations

import functools
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
from stratagem._src.variables.fully_sharded_variable import ShardedOperand
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.variable import Variable

__all__ = ["LocalOptimizerStep"]

_UNSHARDED = (MirroredVariable, CentralVariable)  # other state may be sharded


class LocalOptimizerStep:
    """Updates variables whose optimizer state is stored in variables of the same strategy.

    Args:
        recipe: The optimizer's update rule.
        state: Its state.
    """

    def __init__(self, recipe: OptimizerStep, state: StateVariables) -> None:
        self._recipe = recipe
        self._state = state

    # Of the state's recipe, which knows the variables once there is state.
    @functools.cached_property
    def _step(self) -> Any:
        return jax.jit(self._state.recipe.update)

    @functools.cached_property
    def _step_with_sums(self) -> Any:
        return jax.jit(self._state.recipe.update_with_sums)

    def reduce_scatter(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Variable],
        options: CommunicationOptions | None,
    ) -> Sequence[Any]:
        """Reduce-scatters the gradients of which each replica needs only a shard; returns others unchanged.

        Args:
            gradients: The replicas' gradients, one for each variable.
            variables: The variables.
            options: Communication options of the gradients.
        """
        self._state.build(variables)
        sharded = self._state.sharded_update()
        return gradients if sharded is None else sharded.reduce_scatter(gradients, options)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        """Updates variables with gradients that are already summed over the replicas.

        Args:
            gradients: Arrays, or the shards that ``reduce_scatter`` returned.
            variables: The variables.
        """
        self._state.build(variables)
        sharded = self._state.sharded_update()
        if sharded is not None:
            reduced = [
                g if isinstance(g, ShardedOperand) else dense_gradient(g, v)
                for g, v in zip(gradients, variables, strict=True)
            ]
            sharded.apply(reduced, self._state.read_only())
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
        """Accumulates gradients, and updates the variables every ``accumulation_steps`` calls.

        The replicas all-reduce gradients once per update instead of once per call.

        Args:
            gradients: Arrays, per replica or already reduced.
            variables: The variables.
            options: Communication options for the replicas' sums.
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

        if self._recipe.accumulation_steps == 1:
            step()
            return
        cond(done == self._recipe.accumulation_steps, step, keep)

    def _beside_state(self, variables: Sequence[Variable]) -> list[Any]:
        """Returns the values of variables, on the devices of the optimizer state.

        A variable that was created outside of the scope is on one device, but the state of an optimizer
        that replicas use is on all of theirs. JAX rejects a computation on arrays with different devices.
        """
        values = [variable.read_value() for variable in variables]
        held = next((v for v in self._state.held if isinstance(v, _UNSHARDED)), None)
        if held is None or held.group.spans_processes:  # there each process uses its local copies
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
