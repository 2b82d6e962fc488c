"""``Channel``: the protocol by which a replica communicates with the others, however it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Protocol

import jax
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy.protocols import StrategyProtocol

__all__ = ["Channel"]


class Channel(Protocol):
    """The connection between one replica and the others.

    Attributes:
        index: The replica's index, or ``None`` where one SPMD program runs all replicas.
    """

    index: int | None

    def replica_id(self) -> jax.Array | np.int32:
        """Returns the replica's index as an ``int32`` array."""

    def merge_call(
        self,
        merge_fn: Callable[Concatenate[StrategyProtocol, ...], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``merge_fn(strategy, *args, **kwargs)`` once for all replicas."""

    def merge_per_replica(
        self, label: str, fn: Callable[[StrategyProtocol, Any], Any], value: PyTree
    ) -> Any:
        """Calls ``fn(strategy, value)`` once, with every array of ``value`` as a ``PerReplica``."""

    def all_reduce(
        self, op: ReduceOp, leaves: list[Any], options: CommunicationOptions | None
    ) -> list[Any]:
        """Returns each leaf reduced over the replicas."""

    def all_gather(self, leaves: list[Any], axis: int) -> list[Any]:
        """Returns each leaf concatenated over the replicas."""
