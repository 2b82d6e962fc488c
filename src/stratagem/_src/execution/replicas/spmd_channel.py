"""``SpmdChannel``: connects the replicas of one SPMD program while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import jax
import jax.numpy as jnp

from stratagem._src.collectives.all_gather import gather_spmd
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.values.regroup import map_values

__all__ = ["SpmdChannel", "local_value"]


class SpmdChannel:
    """Connects the replicas of one SPMD program."""

    index: int | None = None

    def __init__(
        self, strategy: StrategyProtocol, group: ReplicaGroup, frame: ReplicaFrame
    ) -> None:
        self._strategy = strategy
        self._group = group
        self._frame = frame

    def replica_id(self) -> jax.Array:
        """Returns the position on the mesh axis."""
        return jax.lax.axis_index(REPLICA_AXIS)

    def merge_call(
        self,
        merge_fn: Callable[Concatenate[StrategyProtocol, ...], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``merge_fn`` with traced arguments as per-replica values."""
        wrap = self._wrap_traced
        return self._merge(
            lambda strategy: merge_fn(
                strategy,
                *map_values(wrap, tuple(args)),
                **{key: map_values(wrap, value) for key, value in kwargs.items()},
            )
        )

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn`` with every array as a per-replica value."""
        wrapped = map_values(lambda leaf: SpmdPerReplica(self._group, leaf), value)
        return self._merge(lambda strategy: fn(strategy, wrapped))

    def all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Returns each leaf reduced over the replicas."""

        def reduce_all(strategy: StrategyProtocol, values: list[Any]) -> Any:
            return strategy.extended.reduce_values(op, values, options)

        reduced: list[Any] = self.merge_per_replica("all_reduce", reduce_all, leaves)
        self._frame.note_reduction(op, leaves, reduced)
        return reduced

    def all_gather(self, leaves: list[Any], axis: int) -> list[Any]:
        """Returns each leaf concatenated over the replicas."""
        self._frame.flush()
        return [gather_spmd(leaf, axis) for leaf in leaves]

    def _merge(self, fn: Callable[[StrategyProtocol], Any]) -> Any:
        self._frame.flush()
        # Cross-replica code reads variables as all replicas left them: their pending updates are applied
        # first, and its own ones before the replicas continue.
        with context.enter(context.Frame(self._strategy, None)):
            result = fn(self._strategy)
        self._frame.flush()
        return map_values(local_value, result)

    def _wrap_traced(self, leaf: Leaf) -> Any:
        return SpmdPerReplica(self._group, leaf) if is_tracer(leaf) else leaf


def local_value(leaf: Leaf) -> Any:
    """Returns what one replica sees of a value: its own component of a per-replica value."""
    if isinstance(leaf, SpmdPerReplica):
        return leaf.local
    if isinstance(leaf, PerReplica):
        if leaf._group is not None and leaf._group.spans_processes:
            raise ContextError(
                "A PerReplica that was made outside of a multi-process compiled function cannot be "
                "returned from merge_call inside it. Pass it as an argument of the function."
            )
        # There is one program for all replicas: each holds the values of all, and takes its own row.
        return jnp.stack(leaf.values)[jax.lax.axis_index(REPLICA_AXIS)]
    return leaf._value() if isinstance(leaf, Mirrored) else leaf
