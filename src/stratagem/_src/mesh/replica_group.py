"""``ReplicaGroup``: the devices of the replicas, and how values are sharded over them.

Per-replica values of equal shape are one global array, sharded on axis 0 over the mesh axis
``"replica"``: replica ``i`` owns the ``i``-th block of rows, and a scalar counts as one row. Values
that are the same in all replicas are one replicated global array. Both go in and out of compiled steps
without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.compile_only_devices import is_compile_only
from stratagem._src.jax_compat.concrete_array import is_on_one_device
from stratagem._src.jax_compat.device_arrays import put_copies, put_pieces
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.devices import canonical_name

__all__ = ["REPLICA_AXIS", "ReplicaGroup"]

REPLICA_AXIS = "replica"


class ReplicaGroup:
    """An ordered set of devices, one for each replica.

    They may belong to several processes. Then the methods of this class create and return only the shards
    on the devices of this process.

    Groups of the same devices are the same object: use ``ReplicaGroup.of(devices)``.

    JAX equivalent: a one-dimensional ``jax.sharding.Mesh``.

    Attributes:
        devices: The device of each replica, on which its values are.
        mesh: The devices that programs are compiled for.
        attached: Whether this process can run programs on them; see ``CompileOnlyGroup``.
    """

    attached = True

    def __init__(self, devices: tuple[jax.Device, ...]) -> None:
        self.devices = devices
        self.device_set: set[jax.Device] = set(devices)
        self.size: int = len(devices)
        here = devices[0].client.process_index()
        self.local_devices: tuple[jax.Device, ...] = tuple(
            device for device in devices if device.process_index == here
        )
        self.local_size: int = len(self.local_devices)
        self.first_local: int = devices.index(self.local_devices[0]) if self.local_devices else 0
        self.spans_processes: bool = self.local_size < self.size
        self._local_copies = self.local_devices
        self.mesh: Mesh = Mesh(np.array(devices), (REPLICA_AXIS,))
        self.replicated: NamedSharding = NamedSharding(self.mesh, PartitionSpec())
        self.sharded: NamedSharding = NamedSharding(self.mesh, PartitionSpec(REPLICA_AXIS))
        self.platform: str = devices[0].platform
        self.on_cpu: bool = self.platform == "cpu"
        self.serialize_programs: bool = self.size > 1 and self.on_cpu
        self.widens_bfloat16 = False

    @classmethod
    def of(cls, devices: Sequence[jax.Device]) -> ReplicaGroup:
        """Returns the group of these devices; a ``CompileOnlyGroup`` if they are only described."""
        return _group(tuple(devices))

    @functools.cached_property
    def has_equal_blocks(self) -> bool:
        """Whether all processes have the same number of one-device replicas, in the order of processes."""
        if not self.local_size or self.size % self.local_size or len(self.device_set) > self.size:
            return False
        processes = [device.process_index for device in self.devices]
        return processes == [number // self.local_size for number in range(self.size)]

    @functools.cached_property
    def local_device_names(self) -> tuple[str, ...]:
        """Full names of the devices of this process."""
        return tuple(canonical_name(device) for device in self.local_devices)

    @functools.cached_property
    def device_names(self) -> tuple[str, ...]:
        """Full names of the devices."""
        return tuple(canonical_name(device) for device in self.devices)

    @functools.cached_property
    def replicas_by_device(self) -> dict[int, int]:
        """The replica of each device of this process, by the JAX id of the device."""
        rows = self.mesh.devices.reshape(self.size, -1)
        first, last = self.first_local, self.first_local + self.local_size
        return {device.id: n for n in range(first, last) for device in rows[n]}

    def named_sharding(self, split: int | None) -> NamedSharding:
        """Returns the sharding of an array that is sharded along a dim, or replicated for ``None``."""
        if split is None:
            return self.replicated
        return NamedSharding(self.replicated.mesh, PartitionSpec(*[None] * split, REPLICA_AXIS))

    @property
    def home(self) -> ReplicaGroup:
        """The replicas on the devices that their values are on."""
        return self

    def program_sharding(self, sharding: NamedSharding) -> NamedSharding:
        """Returns the sharding that a program has for an array that this group has placed."""
        return sharding

    def global_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the global array that holds one ``shape`` for each replica."""
        if not shape:
            return (self.size,)
        return (self.size * shape[0], *shape[1:])

    def local_shape(self, shape: Sequence[int], scalar: bool) -> tuple[int, ...]:
        """Returns the shape of one replica's shard of a global array."""
        return () if scalar else (shape[0] // self.size, *shape[1:])

    def assemble(self, parts: Sequence[Any]) -> jax.Array:
        """Returns the global array of one shard for each local replica; the shapes must be equal."""
        if not any(isinstance(part, jax.Array) for part in parts):
            return self._assemble_rows([_rows_on_host(part) for part in parts])
        blocks = [
            _rows_on_device(part, device)
            for part, device in zip(parts, self.local_devices, strict=True)
        ]
        shape = (self.size * blocks[0].shape[0], *blocks[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharded, blocks)

    def shard_rows(self, rows: np.ndarray[Any, Any]) -> jax.Array:
        """Returns the global array of rows that every process has, sharded over the replicas."""
        rows = _rows_on_host(rows)  # once, not for each part
        count = rows.shape[0] // self.size
        starts = range(
            self.first_local * count, (self.first_local + self.local_size) * count, count
        )
        return self._assemble_rows([rows[start : start + count] for start in starts])

    def _assemble_rows(self, pieces: Sequence[np.ndarray[Any, Any]]) -> jax.Array:
        shape = (self.size * pieces[0].shape[0], *pieces[0].shape[1:])
        return put_pieces(pieces, shape, self.sharded, self.local_devices)

    def split(self, array: jax.Array, scalar: bool) -> tuple[jax.Array, ...]:
        """Returns each local replica's shard of a global array, on its own device."""
        blocks = self.shards(array)
        return tuple(block.reshape(()) for block in blocks) if scalar else blocks

    def shards(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """Returns the array's shard on each local device, in the order of the replicas."""
        if self.local_size == 1:
            return (array.addressable_data(0),)
        pieces = {shard.device: shard.data for shard in addressable_shards(array)}
        return tuple(pieces[device] for device in self.local_devices)

    def replicate(self, value: Tensor) -> jax.Array:
        """Returns ``value`` as one array with a copy on every device."""
        if isinstance(value, jax.Array) and value.sharding == self.replicated:
            return value
        if isinstance(value, np.ndarray):
            copies = [guard_int64(value)] * len(self._local_copies)
            return put_pieces(copies, value.shape, self.replicated, self._local_copies)
        if not self.spans_processes:
            if is_on_one_device(value):
                return put_copies(value, self.replicated, self._local_copies)
            return jax.device_put(value, self.replicated)
        # Every process contributes its own copies; device_put would compare them over the network.
        view = self.local_view(value)
        placed = [jax.device_put(view, device) for device in self._local_copies]
        shape = np.shape(placed[0])
        return jax.make_array_from_single_device_arrays(shape, self.replicated, placed)

    def shard_along(self, value: Tensor, dim: int) -> jax.Array:
        """Returns ``value`` as one array that is sharded along ``dim``."""
        return self._place(value, self.named_sharding(dim))

    def _place(self, value: Tensor, sharding: NamedSharding) -> jax.Array:
        if not self.spans_processes:
            return jax.device_put(value, sharding)
        # As in `replicate`.
        local = self.local_view(value)
        places = sharding.addressable_devices_indices_map(np.shape(local))
        blocks = [jax.device_put(local[index], device) for device, index in places.items()]
        return jax.make_array_from_single_device_arrays(np.shape(local), sharding, blocks)

    def local_view(self, value: Tensor) -> Any:
        """Returns a replicated array as one that this process can compute with on its own."""
        if not self.spans_processes or not isinstance(value, jax.Array) or is_tracer(value):
            return value
        return value if value.is_fully_addressable else value.addressable_data(0)

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplicaGroup:
        return self  # groups of the same devices are the same object

    def __repr__(self) -> str:
        return f"ReplicaGroup({', '.join(self.device_names)})"


def _rows_on_host(part: Tensor) -> np.ndarray[Any, Any]:
    array = guard_int64(np.asarray(part))
    rows = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    return rows if rows.ndim else rows.reshape((1,))


def _rows_on_device(part: Tensor, device: jax.Device) -> jax.Array:
    block = jax.device_put(guard_int64(part), device)
    return block if block.ndim else block.reshape((1,))


@functools.cache
def _group(devices: tuple[jax.Device, ...]) -> ReplicaGroup:
    # Imported here: it is a kind of ReplicaGroup, which few programs need.
    from stratagem._src.mesh.compile_only_group import CompileOnlyGroup

    compile_only = bool(devices) and is_compile_only(devices[0])
    return CompileOnlyGroup(devices) if compile_only else ReplicaGroup(devices)


when_backend_ends(_group.cache_clear)
