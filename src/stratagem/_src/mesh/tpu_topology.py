"""``Topology``: the coordinates of the cores of a TPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import DeviceError
from stratagem._src.mesh.devices import canonical_name

__all__ = ["Topology", "stand_in_mesh_shape"]

_RANK = 4


class Topology:
    """The coordinates of TPU cores: x, y and z of the chip, and the core on the chip.

    ``initialize_tpu_system`` returns one. The slices of a multislice TPU are next to each other along x.
    Devices without coordinates, such as virtual CPU devices, are arranged in pairs of pairs of pairs.

    Differs from tf.distribute: it consists of ``jax.Device`` objects and cannot be serialized.

    Args:
        devices: The cores of one or several hosts, the same number from each.

    Raises:
        DeviceError: If there are none, hosts differ in their number of cores, or two cores have the
            same coordinates.

    >>> import jax
    >>> topology = Topology(jax.devices("cpu")[:4])
    >>> topology.mesh_shape.tolist(), topology.num_tasks, topology.num_tpus_per_task
    ([1, 1, 2, 2], 1, 4)
    >>> topology.device_at((0, 0, 1, 0)) == jax.devices("cpu")[2]
    True
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self._devices = tuple(sorted(devices, key=lambda device: device.process_index))
        if not self._devices:
            raise DeviceError("A Topology needs at least one device, got none.")
        coordinates = _coordinates(self._devices)
        self._mesh_shape = coordinates.max(axis=0) + 1
        self._position = {tuple(at): i for i, at in enumerate(coordinates.tolist())}
        if len(self._position) != len(self._devices):
            raise DeviceError(
                f"Every core needs coordinates of its own, got {coordinates.tolist()}. Make the "
                "topology of different devices, as jax.devices('tpu') lists them."
            )
        tasks = sorted({device.process_index for device in self._devices})
        counts = [sum(d.process_index == task for d in self._devices) for task in tasks]
        if len(set(counts)) > 1:
            raise DeviceError(
                f"Every TPU host must have the same number of cores, got {counts} by host."
            )
        self._device_coordinates = coordinates.reshape(len(tasks), counts[0], _RANK)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """All cores, host by host."""
        return self._devices

    @property
    def mesh_shape(self) -> np.ndarray[Any, Any]:
        """The extent of the cores in each dimension."""
        return self._mesh_shape

    @property
    def mesh_rank(self) -> int:
        """The number of dimensions."""
        return _RANK

    @property
    def device_coordinates(self) -> np.ndarray[Any, Any]:
        """Coordinates by host and by core of the host; the shape is (hosts, cores, 4)."""
        return self._device_coordinates

    @property
    def num_tasks(self) -> int:
        """Number of hosts."""
        return self._device_coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """Number of cores of each host."""
        return self._device_coordinates.shape[1]

    @property
    def missing_devices(self) -> np.ndarray[Any, Any]:
        """The coordinates within the mesh shape that have no core."""
        missing = [at for at in np.ndindex(*self._mesh_shape) if at not in self._position]
        return np.array(missing, np.int32).reshape(-1, _RANK)

    def device_at(self, device_coordinates: Sequence[int]) -> jax.Device:
        """Returns the core with these coordinates.

        Raises:
            DeviceError: If there is none.
        """
        return self._devices[self._index_at(device_coordinates)]

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Returns the index of the host of a core."""
        return self._index_at(device_coordinates) // self.num_tpus_per_task

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """Returns the index of a core on its host."""
        return self._index_at(device_coordinates) % self.num_tpus_per_task

    def tpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """Returns the full name of a core, in the job of that name if given."""
        return _in_job(canonical_name(self.device_at(device_coordinates)), job)

    def cpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """Returns the full name of the CPU of a core's host."""
        name = self.tpu_device_name_at_coordinates(device_coordinates, job)
        return f"{name.partition('/device:')[0]}/device:CPU:0"

    def _index_at(self, device_coordinates: Sequence[int]) -> int:
        at = tuple(int(coordinate) for coordinate in device_coordinates)
        if at not in self._position:
            raise DeviceError(
                f"The topology has no core at {at}: its shape is {self._mesh_shape.tolist()}"
                f" with {len(self._devices)} cores."
            )
        return self._position[at]

    def __repr__(self) -> str:
        return f"Topology(mesh_shape={self._mesh_shape.tolist()}, num_tasks={self.num_tasks})"


def stand_in_mesh_shape(count: int) -> tuple[int, int, int, int]:
    """Returns the mesh shape of ``count`` devices that have no coordinates.

    >>> stand_in_mesh_shape(8), stand_in_mesh_shape(6)
    ((1, 2, 2, 2), (3, 1, 1, 2))
    """
    inner = []
    for _ in range(_RANK - 1):
        inner.append(2 if count % 2 == 0 else 1)
        count //= inner[-1]
    core, z, y = inner
    return count, y, z, core


def _coordinates(devices: Sequence[jax.Device]) -> np.ndarray[Any, Any]:
    """Returns each device's coordinates, counted from 0."""
    if any(getattr(device, "coords", None) is None for device in devices):
        return np.array(list(np.ndindex(stand_in_mesh_shape(len(devices)))), np.int32)
    found = np.array([(*device.coords, device.core_on_chip) for device in devices], np.int32)
    found -= found.min(axis=0)
    slices = np.array([getattr(device, "slice_index", None) or 0 for device in devices], np.int32)
    found[:, 0] += (slices - slices.min()) * (found[:, 0].max() + 1)
    return found


def _in_job(name: str, job: str | None) -> str:
    return name if job is None else f"/job:{job}/{name.split('/', 2)[2]}"
