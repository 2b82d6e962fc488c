"""Calls an update function for each replica's copy of a variable (``extended.update``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate

import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.replica_context import ReplicaContext
from stratagem._src.values.per_replica import SpmdPerReplica
from stratagem._src.values.regroup import map_values, regroup, select_replica
from stratagem._src.variables import frames
from stratagem._src.variables.variable import Variable

if TYPE_CHECKING:
    from stratagem._src.strategies.base import Strategy

__all__ = ["call_in_each_replica"]


class _UpdateChannel:
    """The channel inside ``extended.update``: it rejects collectives, because replicas run one by one."""

    def __init__(self, index: int | None) -> None:
        self.index = index

    def replica_id(self) -> np.int32:
        return np.int32(self.index or 0)

    def merge_call(
        self,
        merge_fn: Callable[Concatenate[StrategyProtocol, ...], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        raise _no_collectives("merge_call")

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        raise _no_collectives(label)

    def all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        raise _no_collectives("all_reduce")

    def all_gather(self, leaves: list[Any], axis: int) -> list[Any]:
        raise _no_collectives("all_gather")


def _no_collectives(what: str) -> ContextError:
    return ContextError(
        f"{what} cannot be used inside extended.update(). Reduce values before, with "
        "extended.reduce_to(...)."
    )


def call_in_each_replica(
    strategy: Strategy,
    group: ReplicaGroup,
    fn: Callable[Concatenate[Variable, ...], Any],
    variable: Variable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls ``fn(variable, *args)`` for each replica's copy, with each replica's arguments."""
    frame = frames.current_frame()
    if frame is None:
        results = []
        for index in range(group.local_size):
            replica = ReplicaContext(strategy, _UpdateChannel(index))
            local_args, local_kwargs = select_replica(index, (args, kwargs))
            with context.enter(context.Frame(strategy, replica)):
                results.append(fn(variable, *local_args, **local_kwargs))
        return regroup(group, results)
    if not frame.spmd:
        raise ContextError(
            f"extended.update() of {variable.name!r} (ON_READ) in a compiled function must be called "
            "from merge_call inside strategy.run()."
        )
    local_args, local_kwargs = map_values(
        lambda leaf: leaf.local if isinstance(leaf, SpmdPerReplica) else leaf, (args, kwargs)
    )
    replica = ReplicaContext(strategy, _UpdateChannel(None))
    with context.enter(context.Frame(strategy, replica)):
        result = fn(variable, *local_args, **local_kwargs)
    return map_values(
        lambda leaf: SpmdPerReplica(group, leaf) if hasattr(leaf, "dtype") else leaf, result
    )
