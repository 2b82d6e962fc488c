"""Finds the replica in which Keras code runs."""

from __future__ import annotations

from stratagem._src.current_strategy import context
from stratagem._src.strategies.replica_context import ReplicaContext

__all__ = ["eager_replica_context", "multi_replica_context"]


def multi_replica_context() -> ReplicaContext | None:
    """Returns the current replica context, if there are several replicas."""
    replica = context.get_replica_context()
    if isinstance(replica, ReplicaContext) and replica.num_replicas_in_sync > 1:
        return replica
    return None


def eager_replica_context() -> ReplicaContext | None:
    """Returns the current replica context, if there are several replicas that run eagerly in threads."""
    replica = multi_replica_context()
    return replica if replica is not None and replica.replica_index is not None else None
