"""``TPUStrategy``: synchronous data parallelism on the cores of a TPU, on one host or many."""

from __future__ import annotations

import logging

from stratagem._src.cluster.resolvers.tpu_cluster_resolver import TPUClusterResolver
from stratagem._src.control_plane.tpu_system import tpu_devices
from stratagem._src.core.errors import DeviceError
from stratagem._src.mesh.device_assignment import DeviceAssignment
from stratagem._src.mesh.logical_devices import group_of_assignment, group_with_rules
from stratagem._src.mesh.sharding_rules import LayoutMap, ShardingRules
from stratagem._src.strategies.logical_device_layouts import LogicalDeviceLayouts
from stratagem._src.strategies.mirrored import checked_rules
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended

__all__ = ["ExperimentalTPUStrategy", "TPUExtended", "TPUStrategy"]

_logger = logging.getLogger("stratagem")


class TPUStrategy(LogicalDeviceLayouts):
    """Synchronous data parallelism on the cores of a TPU, with variables mirrored on all cores.

    Without a device assignment every core is a replica. With one, a replica can have several cores, its
    logical devices, and the ``experimental_…_logical_device…`` methods define how values are laid out over
    them. XLA compiles one program for all cores.

    Differs from tf.distribute: ``run`` also works eagerly, on the first logical device of each replica.

    Args:
        tpu_cluster_resolver: The TPU. Default: the one that JAX finds. A resolver with ``platform="cpu"``
            uses virtual CPU devices in place of TPU cores.
        experimental_device_assignment: Which cores belong to which replica.
        experimental_spmd_xla_partitioning: Programs are always partitioned with SPMD. ``True`` makes
            ``experimental_assign_to_logical_device`` an error, as in TensorFlow.
        sharding_rules: How variables are sharded over the cores of a replica, as in ``MirroredStrategy``.
            Without a device assignment a replica has consecutive cores, as many as the rules' axes say.

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
        sharding_rules: ShardingRules | LayoutMap | None = None,
    ) -> None:
        rules = checked_rules(sharding_rules)
        assignment = experimental_device_assignment
        if assignment is not None and not isinstance(assignment, DeviceAssignment):
            raise DeviceError(
                f"experimental_device_assignment must be a DeviceAssignment, got {assignment!r}. Make "
                "one with tpu.experimental.DeviceAssignment.build(topology, ...)."
            )
        group = (
            group_with_rules(tuple(tpu_devices(tpu_cluster_resolver)), 1, rules)
            if assignment is None
            else group_of_assignment(assignment.devices, rules)
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
        """The components of the strategy, for library code."""
        extended = self._extended
        assert isinstance(extended, TPUExtended)
        return extended

    @property
    def cluster_resolver(self) -> TPUClusterResolver | None:
        """The resolver that the strategy was created with."""
        return self._resolver


class ExperimentalTPUStrategy(TPUStrategy):
    """``TPUStrategy`` with the deprecated arguments of ``experimental``.

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
    """Places a copy of every variable on every core."""

    @property
    def num_hosts(self) -> int:
        """Number of hosts that have a replica."""
        return len({device.process_index for device in self.replica_group.devices})

    @property
    def num_replicas_per_host(self) -> int:
        """Number of replicas of each host."""
        return self.replica_group.size // self.num_hosts
