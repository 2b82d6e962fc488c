"""Where Keras code runs: in which replica, and within which trace."""

from __future__ import annotations

from stratagem._src.current_strategy import context
from stratagem._src.strategies.replica_context import ReplicaContext

__all__ = ["eager_replica", "one_of_several"]


def one_of_several() -> ReplicaContext | None:
    """Returns the context of the replica that runs, if there are several."""
    replica = context.get_replica_context()
    if isinstance(replica, ReplicaContext) and replica.num_replicas_in_sync > 1:
        return replica
    return None


def eager_replica() -> ReplicaContext | None:
    """Returns the context of the replica that runs, if there are several, each in a thread."""
    replica = one_of_several()
    return replica if replica is not None and replica.replica_index is not None else None
