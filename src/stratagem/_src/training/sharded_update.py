"""``ShardedUpdate``: an optimizer step on sharded variables or sharded optimizer state (ZeRO)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.reduce_scatter import reduce_scatter_each
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.types import ArrayLike
from stratagem._src.mesh.dispatch_queue import launch
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.layout import REPLICATED, Layout, Padded, Sharded, Value
from stratagem._src.partitioner.partitioned_call import call_partitioned, partition_over_replicas
from stratagem._src.values.per_replica import SpmdPerReplica
from stratagem._src.variables import frames, updates
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable, ShardedOperand
from stratagem._src.variables.shard_layout import ShardLayout
from stratagem._src.variables.variable import Variable

__all__ = ["ShardedUpdate"]

Step = Callable[[list[Any], list[Any], list[Any]], tuple[list[Any], list[Any]]]
"""Maps gradients, state and values to the next values and state; all are full, unsharded arrays."""


class ShardedUpdate:
    """Runs an optimizer step in which each replica updates its shards.

    The step is written for full arrays, and the partitioner keeps its meaning: an operation on all of an
    array, or on several arrays, such as a norm, is computed over all shards.

    Args:
        step: The step.
        variables: The variables to update.
        held: The variables that hold the optimizer state.
        name: Name of the step in messages about waiting workers.

    Attributes:
        group: The replicas that it was made for.
    """

    def __init__(
        self, step: Step, variables: Sequence[Variable], held: Sequence[Variable], name: str
    ) -> None:
        self._variables = list(variables)
        self._held = list(held)
        self._name = name
        sharded = [v for v in (*held, *variables) if isinstance(v, FullyShardedVariable)]
        self.group: ReplicaGroup = sharded[0].group
        # A gradient is sharded like the variable, or like the state of the same shape (ZeRO-1: the variable
        # is replicated and its state is sharded).
        layouts = {v.shard_layout.shape: v.shard_layout for v in sharded}
        self._layouts = [layouts.get(tuple(dim or 0 for dim in v.shape)) for v in variables]
        self._wanted = [_layout_of(v) for v in (*variables, *held)]
        num_variables, num_held = len(self._variables), len(self._held)

        def flat(*arrays: ArrayLike) -> list[Any]:
            gradients, rest = arrays[:num_variables], arrays[num_variables:]
            values, after = step(list(gradients), list(rest[:num_held]), list(rest[num_held:]))
            return [*values, *after]

        self._flat = flat
        given = [REPLICATED] * num_variables + [_layout_of(v) for v in (*held, *variables)]
        self._over_replicas = partition_over_replicas(flat, given, self._wanted, self.group)
        self._program = jax.jit(self._over_replicas)

    def reduce_scatter(
        self, gradients: Sequence[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Reduce-scatters the gradients of which each replica needs only a shard; returns others unchanged.

        Args:
            gradients: The replicas' gradients, one for each variable.
            options: Communication options, such as the dtype on the wire.

        Returns:
            A ``ShardedOperand`` in place of each gradient that was reduced.
        """
        results = list(gradients)
        frame = frames.current_frame()
        sent: list[tuple[int, ShardLayout]] = []
        for i, (gradient, layout) in enumerate(zip(gradients, self._layouts, strict=True)):
            if layout is None or not isinstance(gradient, SpmdPerReplica):
                continue
            known = None if frame is None else frame.reduced_shard(gradient.local)
            if known is None:
                sent.append((i, layout))
            else:
                results[i] = ShardedOperand(known)
        local = [jnp.asarray(gradients[i].local) for i, _ in sent]
        summed = reduce_scatter_each(local, [layout for _, layout in sent], self.group, options)
        for (i, _), shard in zip(sent, summed, strict=True):
            results[i] = ShardedOperand(shard)
        return results

    def apply(self, gradients: Sequence[Any], kept: Sequence[bool]) -> None:
        """Updates the variables and the state.

        Args:
            gradients: A reduced gradient for each variable: an array, or the ``ShardedOperand`` that
                ``reduce_scatter`` returned.
            kept: For each array of the state, whether the step only reads it.
        """
        frame = frames.current_frame()
        inputs = [
            *map(self._gradient_value, gradients, self._layouts),
            *(self._value_of(v) for v in (*self._held, *self._variables)),
        ]
        if frame is not None and frame.spmd:
            # Inside the program of one replica: arrays are this replica's shards.
            results = call_partitioned(self._flat, inputs, self._wanted, self.group)
        elif frame is not None:
            # Traced in cross-replica context: arrays are global, a shard_map divides them.
            results = self._over_replicas(*(value.array for value in inputs))
        else:
            arrays = tuple(
                value.array if value.layout != REPLICATED else self.group.replicate(value.array)
                for value in inputs
            )
            results = launch(self._program, arrays, self.group, self._name)
        written = [*self._variables, *self._held]
        keeps = [*[False] * len(self._variables), *kept]
        for variable, result, keep in zip(written, results, keeps, strict=True):
            if keep:
                continue
            if isinstance(variable, FullyShardedVariable):
                variable.apply(updates.ASSIGN, ShardedOperand(result.astype(variable.dtype)))
            else:
                variable.assign(self.group.local_view(result))

    def _gradient_value(self, gradient: ArrayLike, layout: ShardLayout | None) -> Value:
        if not isinstance(gradient, ShardedOperand):
            return Value(gradient, REPLICATED)
        assert layout is not None
        return Value(gradient.array, _layout(layout))

    def _value_of(self, variable: Variable) -> Value:
        if not isinstance(variable, FullyShardedVariable):
            return Value(variable.read_value(), REPLICATED)
        frame = frames.current_frame()
        array = variable.snapshot() if frame is None else frame.read(variable)
        return Value(array, _layout_of(variable))


def _layout_of(variable: Variable) -> Layout:
    return (
        _layout(variable.shard_layout) if isinstance(variable, FullyShardedVariable) else REPLICATED
    )


def _layout(layout: ShardLayout) -> Layout:
    """Returns the layout in the partitioner's terms."""
    return Padded(layout.dim, layout.shape[layout.dim]) if layout.padding else Sharded(layout.dim)
