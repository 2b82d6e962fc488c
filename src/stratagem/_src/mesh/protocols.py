"""What the lower rooms may ask of a strategy and of a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["ReplicaContextProtocol", "StrategyProtocol"]


class ReplicaContextProtocol(Protocol):
    """One replica, as variables and collectives see it."""

    @property
    def strategy(self) -> Any:
        """The strategy that runs the replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run together."""

    @property
    def replica_index(self) -> int | None:
        """Index of the replica, or ``None`` where one program stands for all of them."""

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: Any = None) -> Any:
        """Combines ``value`` over all replicas."""

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Calls ``merge_fn`` once for all replicas."""


class StrategyProtocol(Protocol):
    """A strategy, as variables and collectives see it."""

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run together."""

    @property
    def extended(self) -> Any:
        """The strategy's lower-level interface."""
