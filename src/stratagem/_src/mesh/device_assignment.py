"""``DeviceAssignment``: which cores belong to which replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import DeviceError
from stratagem._src.mesh.tpu_topology import Topology

__all__ = ["DeviceAssignment"]


class DeviceAssignment:
    """Assigns the cores of a TPU to replicas; the cores of a replica are its logical devices.

    Usually made by ``DeviceAssignment.build``.

    Args:
        topology: What ``initialize_tpu_system`` returned.
        core_assignment: Coordinates by replica and logical core; the shape is
            (replicas, cores of each, 4).

    Raises:
        DeviceError: If the shape is another, a core does not exist, or one is used twice.

    >>> import jax
    >>> topology = Topology(jax.devices("cpu")[:4])
    >>> assignment = DeviceAssignment.build(topology, computation_shape=[1, 1, 1, 2], num_replicas=2)
    >>> assignment.num_replicas, assignment.num_cores_per_replica
    (2, 2)
    >>> assignment.coordinates(replica=1, logical_core=0)
    (0, 0, 1, 0)
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        if not isinstance(topology, Topology):
            raise DeviceError(
                f"DeviceAssignment needs a Topology, got {topology!r}. Pass what "
                "tpu.experimental.initialize_tpu_system() returned."
            )
        cores = np.asarray(core_assignment, np.int32)
        if cores.ndim != 3 or cores.shape[2] != topology.mesh_rank or not cores.size:
            raise DeviceError(
                "core_assignment must have the shape (replicas, cores of each replica, "
                f"{topology.mesh_rank}), got {cores.shape}."
            )
        self._topology = topology
        self._core_assignment = cores
        self._devices = tuple(tuple(map(topology.device_at, of_replica)) for of_replica in cores)
        used = [device for of_replica in self._devices for device in of_replica]
        if len(set(used)) != len(used):
            raise DeviceError(
                f"Each core can be assigned once, got the core_assignment {cores.tolist()}."
            )

    @staticmethod
    def build(
        topology: Topology,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
    ) -> DeviceAssignment:
        """Returns an assignment of neighbouring cores to each replica.

        Args:
            topology: What ``initialize_tpu_system`` returned.
            computation_shape: The number of cores of a replica in each of the four dimensions of the
                topology; their product is its number of logical devices. Default: one core.
            computation_stride: Distance between a replica's neighbouring cores in each dimension;
                other replicas get the cores between them. Default: 1.
            num_replicas: The number of replicas to place.

        Raises:
            DeviceError: If a shape does not fit the topology, or too few replicas fit.
        """
        if not isinstance(topology, Topology):
            raise DeviceError(f"build() needs a Topology, got {topology!r}.")
        shape = _four_counts("computation_shape", computation_shape, topology)
        stride = _four_counts("computation_stride", computation_stride, topology)
        if num_replicas < 1:
            raise DeviceError(f"num_replicas must be at least 1, got {num_replicas}.")
        footprint = shape * stride
        missing = {tuple(at) for at in topology.missing_devices.tolist()}
        steps = np.array(list(np.ndindex(*shape))) * stride
        placed = []
        for block in np.ndindex(*(topology.mesh_shape // footprint)):
            for offset in np.ndindex(*stride):
                cores = np.array(block) * footprint + np.array(offset) + steps
                if not missing.intersection(map(tuple, cores.tolist())):
                    placed.append(cores)
        if len(placed) < num_replicas:
            raise DeviceError(
                f"{num_replicas} replica(s) of the computation_shape {shape.tolist()} with the stride "
                f"{stride.tolist()} must fit the topology of shape {topology.mesh_shape.tolist()}, but "
                f"only {len(placed)} fit. Use a smaller shape or fewer replicas."
            )
        # In the order of the hosts, because the input is sharded in that order.
        placed.sort(key=lambda cores: topology.devices.index(topology.device_at(cores[0])))
        return DeviceAssignment(topology, np.stack(placed[:num_replicas]))

    @property
    def topology(self) -> Topology:
        """The topology that the cores are in."""
        return self._topology

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return self._core_assignment.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """Number of cores, or logical devices, of each replica."""
        return self._core_assignment.shape[1]

    @property
    def core_assignment(self) -> np.ndarray[Any, Any]:
        """Coordinates by replica and logical core."""
        return self._core_assignment

    @property
    def devices(self) -> tuple[tuple[jax.Device, ...], ...]:
        """The cores by replica and logical core."""
        return self._devices

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """Returns the coordinates of a replica's logical core."""
        return tuple(self._core_assignment[replica, logical_core].tolist())

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """Returns the replicas that have this logical core on host ``task_id``.

        Raises:
            DeviceError: If there is none.
        """
        found = [
            replica
            for replica in range(self.num_replicas)
            if self._topology.task_ordinal_at_coordinates(self.coordinates(replica, logical_core))
            == task_id
        ]
        if not found:
            raise DeviceError(
                f"No replica has its logical core {logical_core} on host {task_id}. There are "
                f"{self.num_replicas} replica(s) on {self._topology.num_tasks} host(s)."
            )
        return found

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """Returns the index of a replica's logical core on its host."""
        at = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_ordinal_at_coordinates(at)

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Returns the full name of a replica's logical core."""
        at = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_name_at_coordinates(at, job)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """Returns the full name of the CPU of the host that has a replica's logical core."""
        at = self.coordinates(replica, logical_core)
        return self._topology.cpu_device_name_at_coordinates(at, job)

    def __repr__(self) -> str:
        return (
            f"DeviceAssignment(num_replicas={self.num_replicas}, "
            f"num_cores_per_replica={self.num_cores_per_replica})"
        )


def _four_counts(
    name: str, counts: Sequence[int] | None, topology: Topology
) -> np.ndarray[Any, Any]:
    given = np.asarray([1] * topology.mesh_rank if counts is None else counts)
    if given.shape != (topology.mesh_rank,) or given.dtype.kind != "i" or (given < 1).any():
        raise DeviceError(
            f"{name} must have {topology.mesh_rank} integers >= 1, one for each dimension of the "
            f"topology, got {counts}."
        )
    return given
