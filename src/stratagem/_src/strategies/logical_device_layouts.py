"""``LogicalDeviceLayouts``: layouts of values over a replica's logical devices (model parallelism)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import ContextError, DeviceError, NotAnArrayError
from stratagem._src.core.types import Tensor
from stratagem._src.current_strategy import context
from stratagem._src.mesh.logical_devices import (
    PartitionedGroup,
    check_partition,
    num_logical_devices,
)
from stratagem._src.strategies.base import Strategy
from stratagem._src.values.array_operators import operand_of
from stratagem._src.values.per_replica import PerReplica

__all__ = ["LogicalDeviceLayouts"]


class LogicalDeviceLayouts(Strategy):
    """A strategy whose replicas may have several logical devices each."""

    _may_assign = True

    def experimental_assign_to_logical_device(self, tensor: Tensor, logical_device_id: int) -> Any:
        """Returns ``tensor`` unsharded on logical device ``logical_device_id``.

        Differs from tf.distribute: all logical devices run one program, so the value is replicated on the
        others too, and they compute it as well.

        Args:
            tensor: An array of this replica.
            logical_device_id: Which of the replica's logical devices.

        Raises:
            ValueError: If there is no such logical device, or the strategy was made with
                ``experimental_spmd_xla_partitioning=True``.
            ContextError: Outside of ``run``.
        """
        if not self._may_assign:
            raise DeviceError(
                "experimental_assign_to_logical_device cannot be used with "
                "experimental_spmd_xla_partitioning=True. Use "
                "experimental_replicate_to_logical_devices, or leave the argument out."
            )
        count = num_logical_devices(self.replica_group)
        if not 0 <= operator.index(logical_device_id) < count:
            raise DeviceError(
                f"logical_device_id must be from 0 to {count - 1}, because a replica has {count} "
                f"logical device(s), got {logical_device_id}."
            )
        return self._lay_out(tensor, (), "experimental_assign_to_logical_device")

    def experimental_split_to_logical_devices(
        self, tensor: Tensor, partition_dimensions: Sequence[int]
    ) -> Any:
        """Returns ``tensor``, split over the logical devices of this replica.

        XLA splits what is computed from it as far as it can. Values do not change.

        Args:
            tensor: An array of this replica.
            partition_dimensions: Number of partitions of each dim. Their product is the number of logical
                devices.

        Raises:
            ValueError: If there is not one number for each dim, the product differs, or a dim is not
                divisible by its number.
            ContextError: Outside of ``run``.

        JAX equivalent: ``jax.lax.with_sharding_constraint``.
        """
        num_parts = [operator.index(count) for count in partition_dimensions]
        array = _replica_array(tensor)
        check_partition(array.shape, num_parts, num_logical_devices(self.replica_group))
        return self._lay_out(array, num_parts, "experimental_split_to_logical_devices")

    def experimental_replicate_to_logical_devices(self, tensor: Tensor) -> Any:
        """Returns ``tensor`` replicated on every logical device of this replica.

        Args:
            tensor: An array of this replica.

        Raises:
            ContextError: Outside of ``run``.

        JAX equivalent: ``jax.lax.with_sharding_constraint`` with an empty ``PartitionSpec``.
        """
        return self._lay_out(tensor, (), "experimental_replicate_to_logical_devices")

    def _lay_out(self, tensor: Tensor, num_parts: Sequence[int], caller: str) -> Any:
        """Returns ``tensor`` with a sharding constraint in a compiled step; unchanged in an eager one.

        Args:
            tensor: An array of this replica.
            num_parts: Number of partitions of each dim; empty to replicate.
            caller: The public method, for error messages.
        """
        array = _replica_array(tensor)
        replica = context.get_replica_context()
        if replica is None or replica.strategy is not self:
            raise ContextError(
                f"{caller}() applies to a value of one replica and must be called inside the function "
                "given to run() of the same strategy."
            )
        group = self.replica_group
        return group.constrain(array, num_parts) if isinstance(group, PartitionedGroup) else array


def _replica_array(tensor: Tensor) -> Any:
    if isinstance(tensor, PerReplica):
        raise NotAnArrayError(
            "A layout over logical devices is for one replica's array, got a PerReplica. Pass it to "
            "strategy.run(fn, args=...), which hands each replica its own."
        )
    return jnp.asarray(operand_of(tensor))
