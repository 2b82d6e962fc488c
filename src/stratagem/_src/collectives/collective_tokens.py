"""``CollectiveOrder``: the collectives of one program, one after the other where that is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collective_backends.shared_memory.workers import (
    can_exchange,
    exchange_in_program,
    num_sharing_processes,
    pass_after,
    token_after,
)
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["CollectiveOrder", "shares_memory"]


def shares_memory(group: ReplicaGroup) -> bool:
    """Returns whether the collectives of these replicas go through memory, or our own connections."""
    return (
        group.spans_processes
        and group.on_cpu
        and group.has_equal_blocks
        and group.size == num_sharing_processes() * group.local_size
    )


class CollectiveOrder:
    """The order in which a replica takes part in collectives, while its program is traced.

    Workers that share memory wait for each other in it, and XLA would have one of them wait there and
    another elsewhere. So there every collective begins after the one before it. Where XLA itself does all
    of them, nothing is added.

    Args:
        group: The replicas.
        after: What is there before the first of them begins.

    Attributes:
        shares_memory: Whether the collectives of these replicas go through memory.
        tokens: What is there after the last one: one array of one element, or nothing.
    """

    def __init__(self, group: ReplicaGroup, after: Sequence[Any] = ()) -> None:
        self._num_devices = group.local_size
        self.shares_memory = shares_memory(group)
        self.tokens: list[Any] = []
        if self.shares_memory:
            self._go_on_after(after)

    def can_share(self, combination: Combination, array: Any) -> bool:
        """Returns whether an array is exchanged through memory."""
        return self.shares_memory and array.size > 0 and can_exchange(combination, array.dtype)

    def exchange(self, combination: Combination, arrays: Sequence[Any]) -> list[Any]:
        """Returns what becomes of arrays that are exchanged through memory."""
        [before] = self.tokens or [np.zeros((1,), np.int32)]
        device = jax.lax.axis_index(REPLICA_AXIS) % self._num_devices
        results, token = exchange_in_program(combination, arrays, before, device, self._num_devices)
        self.tokens = [token]
        return results

    def run(self, collective: Callable[[Any], Any], operand: Any) -> Any:
        """Returns what a collective of XLA's makes of an array.

        Args:
            collective: A function with collectives in it; returns an array or a list of arrays.
            operand: An array that it needs before it begins.
        """
        if not self.shares_memory or not can_exchange(Combination.GATHER, operand.dtype):
            return collective(operand)
        results = collective(pass_after(operand, *self.tokens) if self.tokens else operand)
        self._go_on_after(jax.tree.leaves(results))
        return results

    def _go_on_after(self, values: Sequence[Any]) -> None:
        # All of them: XLA may know one of a loop's results without the loop.
        passed = [value for value in values if can_exchange(Combination.GATHER, value.dtype)]
        if passed:
            self.tokens = [token_after(*passed)]
