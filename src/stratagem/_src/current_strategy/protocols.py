"""Protocols through which lower packages use a strategy, its runtime and a replica context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stratagem._src.core.communication_options import CommunicationOptions
    from stratagem._src.core.reduce_op import ReduceOp
    from stratagem._src.core.types import Leaf, PyTree
    from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["ReplicaContextProtocol", "ReplicaRuntime", "StrategyProtocol"]


class ReplicaRuntime(Protocol):
    """What a strategy does for its variables and channels: it creates, reduces and synchronizes values.

    All methods are called in cross-replica context; ``create_variable`` also in replica context.
    """

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""

    # The arguments are those of `Variable`, which passes them on unchecked.
    def create_variable(self, *args: PyTree, **kwargs: PyTree) -> object:
        """Returns a new variable with the strategy's placement."""

    def reduce_value(self, op: ReduceOp, value: PyTree) -> Any:
        """Returns one per-replica value reduced over the replicas."""

    def reduce_values(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        """Returns each per-replica value reduced over the replicas, as one array."""

    @property
    def gradient_options(self) -> CommunicationOptions | None:
        """Communication options of gradient all-reduces."""

    def first_replica(self, value: PyTree) -> Any:
        """Returns the first replica's component of a structure of per-replica values."""

    def leader_value(self, value: PyTree, name: str) -> Any:
        """Returns the initial value of the variable ``name`` as the leader process has it."""

    @property
    def expects_values(self) -> bool:
        """Whether the next variable to be created gets another initial value than its own."""

    def expected_value(self, value: PyTree, name: str) -> Any | None:
        """Returns the value that replaces the initial value of the variable ``name``, if there is one."""

    def note_created(self, variable: Leaf, first: PyTree) -> None:
        """Notes that a variable has its initial value, and what is kept of that value."""


class StrategyProtocol(Protocol):
    """A strategy, as lower packages see it."""

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run together."""

    @property
    def extended(self) -> ReplicaRuntime:
        """The runtime that serves its variables and channels."""

    def scope(self) -> AbstractContextManager[object]:
        """Makes this strategy current: variables created in the block are placed by it."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls ``fn`` in every replica and returns the merged results."""


class ReplicaContextProtocol(Protocol):
    """One replica, as lower packages see it."""

    @property
    def strategy(self) -> StrategyProtocol:
        """The strategy that runs the replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run together."""

    @property
    def replica_index(self) -> int | None:
        """Index of the replica, or ``None`` where one SPMD program runs all of them."""

    @property
    def replica_id_in_sync_group(self) -> Any:
        """Rank of the replica among all replicas, as an array."""

    def all_reduce(
        self, reduce_op: ReduceOp | str, value: PyTree, options: CommunicationOptions | None = None
    ) -> Any:
        """Reduces ``value`` over all replicas."""

    def first_replica(self, value: PyTree) -> Any:
        """Returns the first replica's ``value`` in every replica."""

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls ``merge_fn(strategy, *args, **kwargs)`` once for all replicas."""

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn(strategy, value)`` once, with every array of ``value`` as a ``PerReplica``."""
