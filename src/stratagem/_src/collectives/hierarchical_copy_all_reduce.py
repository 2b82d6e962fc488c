"""``HierarchicalCopyAllReduce``: reduce within groups of devices, then between the groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.collectives.cross_device_ops import find_group
from stratagem._src.collectives.packed_ops import PackedOps
from stratagem._src.collectives.packing import apply_in_packs
from stratagem._src.collectives.point_to_point import accumulator, finish
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import Tensor
from stratagem._src.jaxpr.replication_analysis import mark_replicated
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica

__all__ = ["HierarchicalCopyAllReduce"]


class HierarchicalCopyAllReduce(PackedOps):
    """Reduces with copies in two levels: to a leader in each group of devices, then to one leader.

    The result is copied back the same way. Use it on machines where devices within a group have faster
    links than the groups.

    Args:
        num_packs: As in ``NcclAllReduce``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(
    ...     ["CPU:0", "CPU:1"], cross_device_ops=sg.distribute.HierarchicalCopyAllReduce())
    """

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[PerReplica, Any]],
        options: CommunicationOptions,
    ) -> list[Any]:
        """Returns the reduced values."""
        values = [value for value, _ in value_destination_pairs]
        group = find_group(values)
        accumulate = accumulator(reduce_op)
        parts = [value.local for value in values if isinstance(value, SpmdPerReplica)]
        if not parts:
            return [
                finish(reduce_op, _reduce_eagerly(value.values, group, accumulate), group.size)
                for value in values
            ]
        packs = self._packing.with_options(options).plan(parts, group)
        return apply_in_packs(
            lambda pack: finish(reduce_op, _reduce_spmd(pack, group.size, accumulate), group.size),
            parts,
            packs,
        )


def group_size(num_replicas: int) -> int:
    """Returns the size of a group: the largest divisor up to the square root, but at least 2.

    >>> [group_size(n) for n in (1, 2, 4, 6, 8, 16)]
    [1, 2, 2, 2, 2, 4]
    """
    divisors = [d for d in range(1, num_replicas + 1) if num_replicas % d == 0]
    fitting = [d for d in divisors if 1 < d <= math.isqrt(num_replicas)]
    return fitting[-1] if fitting else num_replicas


def _reduce_eagerly(
    components: Sequence[Any], group: ReplicaGroup, accumulate: Callable[[Sequence[Any]], Any]
) -> Any:
    size = group_size(group.size)
    subtotals = []
    for leader in range(0, group.size, size):
        members = components[leader : leader + size]
        copies = [jax.device_put(member, group.devices[leader]) for member in members]
        subtotals.append(accumulate(copies))
    return accumulate([jax.device_put(subtotal, group.devices[0]) for subtotal in subtotals])


def _reduce_spmd(
    value: Tensor, num_replicas: int, accumulate: Callable[[Sequence[Any]], Any]
) -> Any:
    size = group_size(num_replicas)
    leaders = range(0, num_replicas, size)
    index = jax.lax.axis_index(REPLICA_AXIS)

    def copy(array: Tensor, routes: list[tuple[int, int]]) -> Any:
        return jax.lax.ppermute(array, REPLICA_AXIS, routes)

    # For 4 replicas in groups of 2: replicas 1 and 3 copy to their leaders, then leader 2 to replica 0.
    #     up_in_group = [[(1, 0), (3, 2)]], up_to_root = [[(2, 0)]]
    # In the other replicas `ppermute` gives zeros, and so wrong totals. The copies back, in reverse,
    # overwrite them: 0 to 2, then 0 to 1 and 2 to 3.
    up_in_group = [[(leader + k, leader) for leader in leaders] for k in range(1, size)]
    up_to_root = [[(leader, 0)] for leader in leaders[1:]]
    subtotal = accumulate([value, *(copy(value, routes) for routes in up_in_group)])
    result = accumulate([subtotal, *(copy(subtotal, routes) for routes in up_to_root)])
    for routes in [*up_to_root, *up_in_group]:
        back = [(receiver, sender) for sender, receiver in routes]
        receives = jnp.isin(index, jnp.array([receiver for _, receiver in back]))
        result = jnp.where(receives, copy(result, back), result)
    return mark_replicated(result)
