"""An optimizer's step where variables, or the state for them, lie in parts on the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.reduce_scatter import scatter_sums
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.divided_call import call_divided, over_replicas
from stratagem._src.partitioner.layout import WHOLE, Layout, Padded, Split, Value
from stratagem._src.values.per_replica import SpmdPerReplica
from stratagem._src.variables import access as state
from stratagem._src.variables import updates
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable, InParts
from stratagem._src.variables.shard_layout import Parts
from stratagem._src.variables.variable import Variable

__all__ = ["StepInParts"]

Step = Callable[[list[Any], list[Any], list[Any]], tuple[list[Any], list[Any]]]
"""From gradients, state and values to the next values and state, whole arrays all of them."""


class StepInParts:
    """Takes steps of which each replica does its part.

    The step is written for whole arrays, and every transformation means what it means there: what looks
    at all of an array, or at several of them, as a norm does, is computed of all parts.

    Args:
        step: What to do.
        variables: What is updated.
        held: The variables that hold the state.
        name: What it is, for messages of workers that wait.

    Attributes:
        group: The replicas that it was made for.
    """

    def __init__(
        self, step: Step, variables: Sequence[Variable], held: Sequence[Variable], name: str
    ) -> None:
        self._variables = list(variables)
        self._held = list(held)
        self._name = name
        divided = [v for v in (*held, *variables) if isinstance(v, FullyShardedVariable)]
        self.group: ReplicaGroup = divided[0].group
        parts = {v.parts.shape: v.parts for v in divided}
        self._parts = [parts.get(tuple(dim or 0 for dim in v.shape)) for v in variables]
        self._wanted = [_layout_of(v) for v in (*variables, *held)]
        num_variables, num_held = len(self._variables), len(self._held)

        def flat(*arrays: Any) -> list[Any]:
            gradients, rest = arrays[:num_variables], arrays[num_variables:]
            values, after = step(list(gradients), list(rest[:num_held]), list(rest[num_held:]))
            return [*values, *after]

        self._flat = flat
        given = [WHOLE] * num_variables + [_layout_of(v) for v in (*held, *variables)]
        self._over_replicas = over_replicas(flat, given, self._wanted, self.group)
        self._program = jax.jit(self._over_replicas)

    def scattered(
        self, gradients: Sequence[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Returns gradients of which each replica gets its part of the sum as that, others as they are.

        Args:
            gradients: What the replicas have, one for each variable.
            options: How they travel.
        """
        results = list(gradients)
        frame = state.current_frame()
        sent: list[tuple[int, Parts]] = []
        for i, (gradient, parts) in enumerate(zip(gradients, self._parts, strict=True)):
            if parts is None or not isinstance(gradient, SpmdPerReplica):
                continue
            known = None if frame is None else frame.known_sum(gradient.local)
            if known is None:
                sent.append((i, parts))
            else:
                results[i] = InParts(known)
        local = [jnp.asarray(gradients[i].local) for i, _ in sent]
        summed = scatter_sums(local, [parts for _, parts in sent], self.group, options)
        for (i, _), part in zip(sent, summed, strict=True):
            results[i] = InParts(part)
        return results

    def take(self, gradients: Sequence[Any], kept: Sequence[bool]) -> None:
        """Updates the variables and the state.

        Args:
            gradients: An array for each variable, or its part where ``scattered`` made one of it.
            kept: Which arrays of the state are only read.
        """
        frame = state.current_frame()
        inputs = [
            *map(self._gradient_value, gradients, self._parts),
            *(self._value_of(v) for v in (*self._held, *self._variables)),
        ]
        if frame is not None and frame.spmd:
            results = call_divided(self._flat, inputs, self._wanted, self.group)
        elif frame is not None:
            results = self._over_replicas(*(value.array for value in inputs))
        else:
            arrays = tuple(
                value.array if value.layout != WHOLE else self.group.replicate(value.array)
                for value in inputs
            )
            results = launch(self._program, arrays, self.group, self._name)
        written = [*self._variables, *self._held]
        keeps = [*[False] * len(self._variables), *kept]
        for variable, result, keep in zip(written, results, keeps, strict=True):
            if keep:
                continue
            if isinstance(variable, FullyShardedVariable):
                variable.apply(updates.ASSIGN, InParts(result.astype(variable.dtype)))
            else:
                variable.assign(self.group.local_view(result))

    def _gradient_value(self, gradient: Any, parts: Parts | None) -> Value:
        if not isinstance(gradient, InParts):
            return Value(gradient, WHOLE)
        assert parts is not None
        return Value(gradient.array, _layout(parts))

    def _value_of(self, variable: Variable) -> Value:
        if not isinstance(variable, FullyShardedVariable):
            return Value(variable.read_value(), WHOLE)
        frame = state.current_frame()
        array = variable.snapshot() if frame is None else frame.read(variable)
        return Value(array, _layout_of(variable))


def _layout_of(variable: Variable) -> Layout:
    return _layout(variable.parts) if isinstance(variable, FullyShardedVariable) else WHOLE


def _layout(parts: Parts) -> Layout:
    return Padded(parts.dim, parts.shape[parts.dim]) if parts.padding else Split(parts.dim)
