"""``lay_out_program``: lets XLA partition a program for the whole batch by layouts (GSPMD)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from stratagem._src.core.types import Tensor
from stratagem._src.mesh.logical_devices import PartitionedGroup

__all__ = ["lay_out_program"]


def lay_out_program(
    closed: ClosedJaxpr, state: Sequence[jax.Array], group: PartitionedGroup
) -> Callable[..., list[Any]]:
    """Returns a function that computes what a jaxpr computes, partitioned over all devices.

    Compile it with ``jax.jit``. The partitioner of this library divides a program between replicas of one
    device each; where a replica has several, and variables have layouts on them, XLA partitions it.

    Args:
        closed: The program. Its last results are the new state.
        state: The state before, whose layouts the new state keeps. All other results are replicated.
        group: The replicas.
    """
    compute = jaxpr_as_fun(closed)
    shardings = [array.sharding for array in state]

    def run(*arrays: Tensor) -> list[Any]:
        results = compute(*arrays)
        others = [group.replicated] * (len(results) - len(shardings))
        return list(map(jax.lax.with_sharding_constraint, results, [*others, *shardings]))

    return run
