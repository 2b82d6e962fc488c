"""``get_strategy`` and ``get_replica_context``: the current strategy and replica."""

from __future__ import annotations

from typing import Any

from stratagem._src.current_strategy import context
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.replica_context import ReplicaContext

__all__ = ["get_replica_context", "get_strategy"]


def get_strategy() -> Strategy:
    """Returns the current strategy; the default strategy outside of any scope.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    >>> with strategy.scope():
    ...     sg.distribute.get_strategy() is strategy
    True
    """
    current: Any = context.current_frame().strategy
    return current


# Not `| None`: inside a replica, where it is usually called, it is never None, and callers do not check it.
def get_replica_context() -> ReplicaContext | Any:
    """Returns the current replica's context, or ``None`` in cross-replica context.

    Outside of any strategy it is the default strategy's only replica.

    >>> get_replica_context().num_replicas_in_sync
    1
    """
    return context.current_frame().replica_context
