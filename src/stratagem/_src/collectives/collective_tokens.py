"""``CollectiveTokens``: data dependencies that keep the collectives of one program in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.ffi_collectives import (
    collective_in_program,
    is_supported,
    num_backend_processes,
    pass_after,
    token_after,
)
from stratagem._src.core.types import ArraySpec, Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["CollectiveTokens", "shares_memory"]


def shares_memory(group: ReplicaGroup) -> bool:
    """Returns whether collectives of these replicas use our CPU backends instead of XLA's collectives."""
    return (
        group.spans_processes
        and group.on_cpu
        and group.has_equal_blocks
        and group.size == num_backend_processes() * group.local_size
    )


class CollectiveTokens:
    """The order of a replica's collectives, while its program is traced.

    XLA runs operations without data dependencies in any order, and in a different one in each process. A
    process that waits in one shared-memory collective while another waits in a different one is a deadlock.
    So there each collective takes a token that the one before it returns. Where XLA runs all collectives
    itself, no tokens are added.

    Args:
        group: The replicas.
        after: Values that must be computed before the first collective begins.

    Attributes:
        shares_memory: Whether the collectives of these replicas use our CPU backends.
        last: The token of the last collective, an array of one element; empty if there is none.
    """

    def __init__(self, group: ReplicaGroup, after: Sequence[Tensor] = ()) -> None:
        self._num_devices = group.local_size
        self.shares_memory = shares_memory(group)
        self.last: list[Any] = []
        if self.shares_memory:
            self._continue_after(after)

    def can_share(self, op: CollectiveOp, array: ArraySpec) -> bool:
        """Returns whether an array goes through our CPU backends."""
        return self.shares_memory and array.size > 0 and is_supported(op, array.dtype)

    def run_on_host(self, op: CollectiveOp, arrays: Sequence[Tensor]) -> list[Any]:
        """Returns the results of a collective of our CPU backends."""
        # The first collective waits for none: zeros have the type of a token.
        [before] = self.last or [np.zeros((1,), np.int32)]
        # Replicas are numbered process by process, so this is the device within the process.
        device = jax.lax.axis_index(REPLICA_AXIS) % self._num_devices
        results, token = collective_in_program(op, arrays, before, device, self._num_devices)
        self.last = [token]
        return results

    def run(self, collective: Callable[[Any], Any], operand: Tensor) -> Any:
        """Returns the result of one of XLA's collectives.

        Args:
            collective: A function with collectives in it; returns an array or a list of arrays.
            operand: An array that the collective depends on.
        """
        if not self.shares_memory or not is_supported(CollectiveOp.GATHER, operand.dtype):
            return collective(operand)
        results = collective(pass_after(operand, *self.last) if self.last else operand)
        self._continue_after(jax.tree.leaves(results))
        return results

    def _continue_after(self, values: Sequence[Tensor]) -> None:
        # All of them: XLA may compute one result of a loop without running the loop.
        passed = [value for value in values if is_supported(CollectiveOp.GATHER, value.dtype)]
        # Otherwise the former token stays, and with it the order of what came before.
        if passed:
            self.last = [token_after(*passed)]
