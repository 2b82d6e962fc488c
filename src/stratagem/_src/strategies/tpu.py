"""``TPUStrategy``: synchronous training on the cores of a TPU, of one host or many."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver
from stratagem._src.core.errors import ContextError, DeviceError, NotAnArrayError
from stratagem._src.membership.tpu_system import tpu_devices
from stratagem._src.mesh.device_assignment import DeviceAssignment
from stratagem._src.mesh.logical_devices import (
    PartitionedGroup,
    check_partition,
    group_of_assignment,
)
from stratagem._src.runtime import context
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.values.array_operators import operand_of
from stratagem._src.values.per_replica import PerReplica

__all__ = ["ExperimentalTPUStrategy", "TPUExtended", "TPUStrategy"]

_logger = logging.getLogger("stratagem")


class TPUStrategy(Strategy):
    """Runs replicas in step on the cores of a TPU, with variables mirrored on all cores.

    Without a device assignment every core is a replica. With one, a replica can have several cores, its
    logical devices, and the ``experimental_…_logical_device…`` methods say how values are laid out over
    them. XLA compiles one program for all cores.

    Differs from tf.distribute: ``run`` also works eagerly, on the first logical device of each replica.

    Args:
        tpu_cluster_resolver: Which TPU; default: the one that JAX finds. A resolver made with
            ``platform="cpu"`` has virtual CPU devices stand in for TPU cores.
        experimental_device_assignment: Which cores belong to which replica.
        experimental_spmd_xla_partitioning: Programs are partitioned in this way in any case. ``True``
            makes ``experimental_assign_to_logical_device`` an error, as in TensorFlow.

    Raises:
        CloudError: If JAX finds no TPU.

    >>> import stratagem as sg
    >>> resolver = sg.distribute.cluster_resolver.TPUClusterResolver("local", platform="cpu")
    >>> topology = sg.tpu.experimental.initialize_tpu_system(resolver)
    >>> assignment = sg.tpu.experimental.DeviceAssignment.build(
    ...     topology, computation_shape=[1, 1, 1, 2], num_replicas=2)
    >>> strategy = sg.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)
    >>> strategy.num_replicas_in_sync, strategy.extended.num_logical_devices
    (2, 2)
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        assignment = experimental_device_assignment
        if assignment is not None and not isinstance(assignment, DeviceAssignment):
            raise DeviceError(
                f"experimental_device_assignment must be a DeviceAssignment, got {assignment!r}. Make "
                "one with tpu.experimental.DeviceAssignment.build(topology, ...)."
            )
        group = group_of_assignment(
            [(device,) for device in tpu_devices(tpu_cluster_resolver)]
            if assignment is None
            else assignment.devices
        )
        self._resolver = tpu_cluster_resolver
        self._may_assign = not experimental_spmd_xla_partitioning
        extended = TPUExtended(self, group)
        super().__init__(extended)
        _logger.info(
            "Using %s with %d replica(s) of %d core(s)",
            type(self).__name__,
            group.size,
            extended.num_logical_devices,
        )

    @property
    def extended(self) -> TPUExtended:
        """The parts that the strategy is made of."""
        extended = self._extended
        assert isinstance(extended, TPUExtended)
        return extended

    @property
    def cluster_resolver(self) -> TPUClusterResolver | None:
        """The resolver that the strategy was made with."""
        return self._resolver

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Returns ``tensor``, not split: it is whole on logical device ``logical_device_id``.

        Differs from tf.distribute: all logical devices run one program, so the value is whole on the
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
        count = self.extended.num_logical_devices
        if not 0 <= operator.index(logical_device_id) < count:
            raise DeviceError(
                f"logical_device_id must be from 0 to {count - 1}, because a replica has {count} "
                f"logical device(s), got {logical_device_id}."
            )
        return self.extended.lay_out(tensor, (), "experimental_assign_to_logical_device")

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Returns ``tensor``, split over the logical devices of this replica.

        XLA splits what is computed from it as far as it can. Values do not change.

        Args:
            tensor: An array of this replica.
            partition_dimensions: Into how many parts each dim is split. Their product is the number of
                logical devices.

        Raises:
            ValueError: If there is not one number for each dim, the product is another, or a dim is not
                divisible by its number.
            ContextError: Outside of ``run``.

        JAX equivalent: ``jax.lax.with_sharding_constraint``.
        """
        num_parts = [operator.index(count) for count in partition_dimensions]
        array = _replica_array(tensor)
        check_partition(array.shape, num_parts, self.extended.num_logical_devices)
        return self.extended.lay_out(array, num_parts, "experimental_split_to_logical_devices")

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Returns ``tensor``, whole on every logical device of this replica.

        Args:
            tensor: An array of this replica.

        Raises:
            ContextError: Outside of ``run``.

        JAX equivalent: ``jax.lax.with_sharding_constraint`` with an empty ``PartitionSpec``.
        """
        return self.extended.lay_out(tensor, (), "experimental_replicate_to_logical_devices")


class ExperimentalTPUStrategy(TPUStrategy):
    """``TPUStrategy`` with the arguments that it had under ``experimental``.

    Args:
        tpu_cluster_resolver: As for ``TPUStrategy``.
        device_assignment: Which cores belong to which replica; default: every core is one.

    >>> import stratagem as sg
    >>> resolver = sg.distribute.cluster_resolver.TPUClusterResolver("local", platform="cpu")
    >>> topology = sg.tpu.experimental.initialize_tpu_system(resolver)
    >>> one_core = sg.tpu.experimental.DeviceAssignment(topology, [[[0, 0, 0, 0]]])
    >>> sg.distribute.experimental.TPUStrategy(resolver, one_core).num_replicas_in_sync
    1
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        device_assignment: DeviceAssignment | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)


class TPUExtended(MultiWorkerExtended):
    """Puts a copy of every variable on every core."""

    @property
    def num_logical_devices(self) -> int:
        """Number of cores of each replica."""
        group = self.replica_group
        return group.num_logical_devices if isinstance(group, PartitionedGroup) else 1

    @property
    def num_hosts(self) -> int:
        """Number of hosts that have a replica."""
        return len({device.process_index for device in self.replica_group.devices})

    @property
    def num_replicas_per_host(self) -> int:
        """Number of replicas of each host."""
        return self.replica_group.size // self.num_hosts

    def lay_out(self, tensor: Any, num_parts: Sequence[int], caller: str) -> Any:
        """Returns ``tensor`` with each dim split into so many parts, where a step is compiled.

        Args:
            tensor: An array of this replica.
            num_parts: One number for each dim, or none to have it whole everywhere.
            caller: Who asks, for error messages.
        """
        array = _replica_array(tensor)
        replica = context.get_replica_context()
        if replica is None or replica.strategy is not self._strategy:
            raise ContextError(
                f"{caller}() lays out a value of one replica and must be called inside the function "
                "given to run() of the same strategy."
            )
        group = self.replica_group
        return group.constrain(array, num_parts) if isinstance(group, PartitionedGroup) else array


def _replica_array(tensor: Any) -> Any:
    if isinstance(tensor, PerReplica):
        raise NotAnArrayError(
            "A layout over logical devices is for one replica's array, got a PerReplica. Pass it to "
            "strategy.run(fn, args=...), which hands each replica its own."
        )
    return jnp.asarray(operand_of(tensor))
