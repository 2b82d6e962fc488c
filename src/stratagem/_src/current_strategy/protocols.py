"""What the lower rooms may ask of a strategy, of its replicas and of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stratagem._src.core.communication_options import CommunicationOptions
    from stratagem._src.core.reduce_op import ReduceOp
    from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["ReplicaContextProtocol", "ReplicaRuntime", "StrategyProtocol"]


class ReplicaRuntime(Protocol):
    """What a strategy does for its variables and channels: it makes, combines and agrees on values.

    All of it is called in cross-replica context; ``create_variable`` also in a replica.
    """

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""

    # Its arguments are those of `Variable`, to which `Variable(...)` leaves checking them.
    def create_variable(self, *args: Any, **kwargs: Any) -> object:
        """Returns a new variable, placed as the strategy does."""

    def reduce_value(self, op: ReduceOp, value: Any) -> Any:
        """Returns one per-replica value combined over the replicas."""

    def reduce_values(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        """Returns each per-replica value combined over the replicas, as one array."""

    @property
    def gradient_options(self) -> CommunicationOptions | None:
        """How gradients travel."""

    def first_replica(self, value: Any) -> Any:
        """Returns the first replica's part of a structure of per-replica values."""

    def leader_value(self, value: Any, name: str) -> Any:
        """Returns the first value of the variable ``name`` as the leading process has it."""

    @property
    def expects_values(self) -> bool:
        """Whether the next variable that is created gets another first value than its own."""

    def expected_value(self, value: Any, name: str) -> Any | None:
        """Returns what the variable ``name`` is to have in place of its first value, if something."""

    def note_created(self, variable: Any, first: Any) -> None:
        """Notes that a variable has its first value, and what is kept of it."""


class StrategyProtocol(Protocol):
    """A strategy, as the rooms below see it."""

    @property
    def replica_group(self) -> ReplicaGroup:
        """The replicas' devices."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run together."""

    @property
    def extended(self) -> ReplicaRuntime:
        """What it does for its variables and channels."""

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
    """One replica, as the rooms below see it."""

    @property
    def strategy(self) -> StrategyProtocol:
        """The strategy that runs the replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run together."""

    @property
    def replica_index(self) -> int | None:
        """Index of the replica, or ``None`` where one program stands for all of them."""

    @property
    def replica_id_in_sync_group(self) -> Any:
        """Number of the replica among all of them, as an array."""

    def all_reduce(
        self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Combines ``value`` over all replicas."""

    def first_replica(self, value: Any) -> Any:
        """Returns the first replica's ``value`` in every replica."""

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls ``merge_fn(strategy, *args, **kwargs)`` once for all replicas."""

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: Any
    ) -> Any:
        """Calls ``fn(strategy, value)`` once, with every array of ``value`` as a ``PerReplica``."""
