"""Replicas with several devices each (model parallelism), their logical devices.

The mesh has the axis ``"replica"`` and axes for the logical devices of a replica: those of the strategy's
``ShardingRules``, or else one for each prime factor of their number, so that every way to shard an array
into that many shards is a choice of axes.

A replica that requests layouts is traced with ``"replica"`` as the only manual axis, and XLA partitions its
work over the other axes. JAX and XLA support less in such programs. So a replica without layouts is traced
with every axis manual, and each of its logical devices repeats all of the work.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from stratagem._src.core.errors import DeviceError, ShapeMismatchError
from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.compile_only_devices import is_compile_only
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.mesh.sharding_rules import Layout, ShardingRules, check_layout

__all__ = [
    "PartitionedGroup",
    "check_partition",
    "group_of_assignment",
    "group_with_rules",
    "grouped",
    "may_have_layouts",
    "num_logical_devices",
    "prime_factors",
    "request_layouts",
    "tracing_alone",
    "tracing_replica",
    "tracing_whole_batch",
    "whole_batch_group",
]

_layouts_requested = False


class PartitionedGroup(ReplicaGroup):
    """An ordered set of replicas with the same number of logical devices each.

    ``devices`` has the first logical device of each replica, which runs eager operations.

    JAX equivalent: a ``jax.sharding.Mesh`` with one axis for data and others for the model.

    Attributes:
        rules: The strategy's sharding rules, if it has any.
    """

    def __init__(
        self,
        logical_devices: tuple[tuple[jax.Device, ...], ...],
        rules: ShardingRules | None = None,
    ) -> None:
        super().__init__(tuple(of_replica[0] for of_replica in logical_devices))
        self.rules = rules
        self.logical_devices = logical_devices
        self.num_logical_devices = len(logical_devices[0])
        self.device_set = {device for of_replica in logical_devices for device in of_replica}
        factors = prime_factors(self.num_logical_devices)
        self._logical_axes = (
            {f"logical_{i}": size for i, size in enumerate(factors)}
            if rules is None
            else rules.axes
        )
        self.mesh = self._mesh_of(logical_devices)
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.sharded = NamedSharding(self.mesh, PartitionSpec(REPLICA_AXIS))
        self.serialize_programs = self.widens_bfloat16 = self.on_cpu
        here = slice(self.first_local, self.first_local + self.local_size)
        self._local_replicas = logical_devices[here]
        self._local_copies = tuple(device for cores in self._local_replicas for device in cores)
        self._check_processes()
        self._use_mesh(self._mesh_of(logical_devices))

    def _use_mesh(self, mesh: Mesh) -> None:
        """Sets the devices that programs are compiled for."""
        self.mesh = mesh
        self._mesh_in_replica = mesh.abstract_mesh.update_axis_types(
            {REPLICA_AXIS: AxisType.Manual}
        )

    def _mesh_of(self, logical_devices: Sequence[Sequence[jax.Device]]) -> Mesh:
        """Returns the mesh of some replicas."""
        sizes = self._logical_axes.values()
        return Mesh(
            np.array(logical_devices).reshape(len(logical_devices), *sizes),
            (REPLICA_AXIS, *self._logical_axes),
        )

    def _check_processes(self) -> None:
        for cores in self.logical_devices:
            if len({device.process_index for device in cores}) > 1:
                raise DeviceError(
                    "The devices of a replica must belong to one process, got "
                    f"{', '.join(map(str, cores))}. Use a devices_per_replica that divides the number of a "
                    "worker's devices, or a DeviceAssignment whose replicas fit a host."
                )

    def assemble(self, parts: Sequence[Any]) -> jax.Array:
        """Returns the global array of one shard for each local replica; the shapes must be equal."""
        return self._assemble_rows(
            [part if np.ndim(part) else part.reshape((1,)) for part in map(_as_array, parts)]
        )

    def _assemble_rows(self, pieces: Sequence[Any]) -> jax.Array:
        blocks = [
            jax.device_put(row, device)
            for row, of_replica in zip(pieces, self._local_replicas, strict=True)
            for device in of_replica
        ]
        shape = (self.size * pieces[0].shape[0], *pieces[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharded, blocks)

    # --- layouts of values ----------------------------------------------------------------------------

    def constrain(self, array: Tensor, num_parts: Sequence[int]) -> Any:
        """Returns ``array`` sharded over the logical devices, if the replica is traced with layouts.

        Args:
            array: One replica's array.
            num_parts: The number of shards along each of its dims; empty to replicate it.
        """
        return self._constrain(array, PartitionSpec(*self._axes_for(num_parts)))

    def constrain_layout(self, array: Tensor, layout: Layout, what: str = "an array") -> Any:
        """Returns ``array`` with a layout, if it is traced with layouts; otherwise unchanged.

        Args:
            array: One replica's array; where the whole batch is traced, that of all replicas.
            layout: The layout. The axis of the replicas has no effect on one replica's array.
            what: What the array is, for messages.

        Raises:
            ShapeMismatchError: If the layout does not fit the shape.
        """
        assert self.rules is not None
        whole_batch = whole_batch_group() is self
        data = self.rules.data
        sizes = {**self.rules.axes, data: self.size if whole_batch else 1}
        check_layout(array.shape, layout, sizes, what)
        layout = self._with_batch_axes(layout, array.shape, sizes)
        renamed = {data: (REPLICA_AXIS,) if whole_batch else ()}
        spec = [
            tuple(name for axis in axes for name in renamed.get(axis, (axis,))) or None
            for axes in layout
        ]
        return self._constrain(array, PartitionSpec(*spec))

    def _with_batch_axes(
        self, layout: Layout, shape: Sequence[int], sizes: Mapping[str, int]
    ) -> Layout:
        """Returns a layout whose batch dim is sharded over the batch axes too, if that is possible."""
        assert self.rules is not None
        data, used = self.rules.data, {axis for axes in layout for axis in axes}
        dim = next((dim for dim, axes in enumerate(layout) if data in axes), None)
        if dim is None or used & set(self.rules.batch):
            return layout
        axes = (*layout[dim], *self.rules.batch)
        if shape[dim] % math.prod(sizes[axis] for axis in axes):
            return layout
        return (*layout[:dim], axes, *layout[dim + 1 :])

    def constrain_batch(self, array: Tensor) -> Any:
        """Returns a batch whose rows are sharded as the rules say; unchanged if they cannot be."""
        rules = self.rules
        if rules is None or not rules.batch or not array.ndim:
            return array
        if whole_batch_group() is self and array.shape[0] % self.size:
            return array
        return self.constrain_layout(array, ((rules.data,),))

    def _constrain(self, array: Tensor, spec: PartitionSpec) -> Any:
        request_layouts()
        # The result depends only on the mesh, which is part of the key of JAX's trace caches.
        mesh = jax.sharding.get_abstract_mesh()
        if mesh not in (self._mesh_in_replica, self.mesh.abstract_mesh):
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))

    def _axes_for(self, num_parts: Sequence[int]) -> list[tuple[str, ...]]:
        """Returns, for each number of shards, mesh axes whose sizes multiply to it."""
        if self.rules is not None:
            return self._named_axes_for(num_parts)
        # Every axis has a prime size, so each prime factor of a count takes one axis of that size.
        free = dict(self._logical_axes)
        chosen = []
        for count in num_parts:
            axes = []
            for factor in prime_factors(count):
                axis = next(name for name, size in free.items() if size == factor)
                del free[axis]
                axes.append(axis)
            chosen.append(tuple(axes))
        return chosen

    def _named_axes_for(self, num_parts: Sequence[int]) -> list[tuple[str, ...]]:
        for dims in itertools.product(range(len(num_parts)), repeat=len(self._logical_axes)):
            pairs = list(zip(self._logical_axes.items(), dims, strict=True))
            sizes = [
                math.prod(s for (_, s), d in pairs if d == dim) for dim in range(len(num_parts))
            ]
            if sizes == list(num_parts):
                return [
                    tuple(name for (name, _), d in pairs if d == dim)
                    for dim in range(len(num_parts))
                ]
        if not num_parts:
            return []
        raise ShapeMismatchError(
            f"The parts of each dim must be sizes of the axes {dict(self._logical_axes)}, got "
            f"{list(num_parts)}. Use distribute.experimental.constrain(x, layout), which names them."
        )

    # --- arrays with a layout -------------------------------------------------------------------------

    def layout_sharding(self, layout: Layout) -> NamedSharding:
        """Returns the sharding of an array with a layout, replicated between the replicas."""
        spec = PartitionSpec(*(axes or None for axes in layout))
        return NamedSharding(self.replicated.mesh, spec)

    def lay_out(self, value: Tensor, layout: Layout) -> jax.Array:
        """Returns ``value`` as one array with a layout."""
        sharding = self.layout_sharding(layout)
        if isinstance(value, jax.Array) and value.sharding == sharding:
            return value
        return self._place(value, sharding)

    def of_local_replica(self, array: jax.Array, index: int) -> jax.Array:
        """Returns an array with a layout, as it is on the devices of one local replica."""
        assert isinstance(array.sharding, NamedSharding)
        devices = self._local_replicas[index]
        by_device = {shard.device: shard.data for shard in addressable_shards(array)}
        sharding = NamedSharding(self._mesh_of([devices]), array.sharding.spec)
        blocks = [by_device[device] for device in devices]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, blocks)

    def local_view(self, value: Tensor) -> Any:
        """Returns an array that is equal in all replicas as one that this process can compute with."""
        if (
            self.spans_processes
            and isinstance(value, jax.Array)
            and not is_tracer(value)
            and not value.is_fully_addressable
            and isinstance(value.sharding, NamedSharding)
            and not value.sharding.is_fully_replicated
            and REPLICA_AXIS not in jax.tree.leaves(tuple(value.sharding.spec))
        ):
            return jax.device_put(self.of_local_replica(value, 0), self.local_devices[0])
        return super().local_view(value)

    def __repr__(self) -> str:
        return f"PartitionedGroup({', '.join(self.device_names)}; {self.num_logical_devices} each)"


def group_of_assignment(
    logical_devices: Sequence[Sequence[jax.Device]], rules: ShardingRules | None = None
) -> ReplicaGroup:
    """Returns the group of replicas with these logical devices each.

    With one device for each replica and no rules it is the plain ``ReplicaGroup``, as in other strategies.

    Raises:
        DeviceError: If replicas differ in their number of devices, or a device is in two of them.
    """
    assignment = tuple(tuple(of_replica) for of_replica in logical_devices)
    counts = [len(of_replica) for of_replica in assignment]
    if not counts or min(counts) < 1 or len(set(counts)) > 1:
        raise DeviceError(
            f"Every replica needs the same number of devices, one or more, got {counts}."
        )
    devices = [device for of_replica in assignment for device in of_replica]
    if len(set(devices)) != len(devices):
        raise DeviceError(
            f"Each device can be in one replica once, got {[list(map(str, r)) for r in assignment]}."
        )
    if rules is None:
        return ReplicaGroup.of(devices) if counts[0] == 1 else _group(assignment, None)
    if counts[0] != rules.num_devices:
        raise DeviceError(
            f"A replica must have as many devices as the sizes of the axes {rules.axes} multiply to, "
            f"{rules.num_devices}, got {counts[0]}. Change the sizes, or the devices of a replica."
        )
    return _group(assignment, rules)


def group_with_rules(
    devices: Sequence[jax.Device], devices_per_replica: int, rules: ShardingRules | None
) -> ReplicaGroup:
    """Returns the group of replicas with consecutive devices, as many as the rules say, if there are any.

    Raises:
        DeviceError: If the number of devices of a replica does not divide the number of devices, or both
            arguments give it and differ.
    """
    if rules is None:
        return grouped(devices, devices_per_replica)
    if devices_per_replica not in (1, rules.num_devices):
        raise DeviceError(
            f"The axes of the sharding rules, {rules.axes}, give a replica {rules.num_devices} devices, "
            f"got devices_per_replica={devices_per_replica}. Leave devices_per_replica out."
        )
    count = rules.num_devices
    if len(devices) % count:
        raise DeviceError(
            f"The sizes of the axes {rules.axes} must multiply to a divisor of the number of devices, got "
            f"{count} for {len(devices)} devices. Change the sizes or the devices."
        )
    return group_of_assignment(
        [devices[i : i + count] for i in range(0, len(devices), count)], rules
    )


def grouped(devices: Sequence[jax.Device], devices_per_replica: int) -> ReplicaGroup:
    """Returns the group of replicas with ``devices_per_replica`` consecutive devices each.

    Raises:
        DeviceError: If the number is less than one, or does not divide the number of devices.
    """
    count = operator.index(devices_per_replica)
    if count < 1 or len(devices) % count:
        raise DeviceError(
            "devices_per_replica must be 1 or more, and divide the number of devices, got "
            f"{count} for {len(devices)} devices."
        )
    return group_of_assignment([devices[i : i + count] for i in range(0, len(devices), count)])


def num_logical_devices(group: ReplicaGroup) -> int:
    """Returns the number of devices of each replica."""
    return group.num_logical_devices if isinstance(group, PartitionedGroup) else 1


def request_layouts() -> None:
    """Notes that replicas may have layouts from now on."""
    global _layouts_requested
    _layouts_requested = True


def may_have_layouts(group: ReplicaGroup) -> bool:
    """Returns whether a replica of ``group`` may request layouts: whether any replica ever did.

    A request is not always visible while a replica is traced, because JAX caches traces of the functions in
    it (``jax.jit``, ``lax.scan``).
    """
    return _layouts_requested and isinstance(group, PartitionedGroup)


def tracing_replica(
    group: ReplicaGroup, *, with_layouts: bool
) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which one replica's program is traced for all replicas."""
    if not with_layouts:
        return contextlib.nullcontext()
    assert isinstance(group, PartitionedGroup)
    return jax.sharding.use_abstract_mesh(group._mesh_in_replica)


def tracing_alone(group: ReplicaGroup) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which the only replica is traced, with the layouts that it requests."""
    if not isinstance(group, PartitionedGroup):
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(group.mesh.abstract_mesh)


class _Traced(threading.local):
    group: PartitionedGroup | None = None


_traced = _Traced()


@contextlib.contextmanager
def tracing_whole_batch(group: PartitionedGroup) -> Iterator[None]:
    """Returns the context in which a program for the batch of all replicas is traced, with layouts."""
    before, _traced.group = _traced.group, group
    try:
        with tracing_alone(group):
            yield
    finally:
        _traced.group = before


def whole_batch_group() -> PartitionedGroup | None:
    """Returns the replicas for whose whole batch this thread traces a program, if it does."""
    return _traced.group


def check_partition(shape: Sequence[int], num_parts: Sequence[int], num_devices: int) -> None:
    """Checks that an array can be sharded over ``num_devices`` as ``num_parts`` says.

    Raises:
        ShapeMismatchError: If there is not one integer >= 1 for each dim, their product is not the number
            of devices, or a dim is not divisible by its number.
    """
    if len(num_parts) != len(shape):
        raise ShapeMismatchError(
            "partition_dimensions needs one number for each dim of the tensor, got "
            f"{list(num_parts)} for the shape {tuple(shape)}."
        )
    if any(count < 1 for count in num_parts) or int(np.prod(num_parts)) != num_devices:
        raise ShapeMismatchError(
            f"partition_dimensions must be >= 1 and multiply to the {num_devices} logical device(s) of "
            f"a replica, got {list(num_parts)}. Use another devices_per_replica, or a DeviceAssignment "
            "with another computation_shape, or split into another number of parts."
        )
    for dim, (size, count) in enumerate(zip(shape, num_parts, strict=True)):
        if size % count:
            raise ShapeMismatchError(
                f"Every dim must be divisible by its partition_dimensions, got dim {dim} of size "
                f"{size} in {count} parts. Pad the tensor, or split along another dim."
            )


def prime_factors(number: int) -> tuple[int, ...]:
    """Returns the primes that multiply to ``number``, in ascending order.

    >>> prime_factors(12)
    (2, 2, 3)
    """
    factors = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return tuple(factors)


def _as_array(part: Tensor) -> Any:
    return part if isinstance(part, jax.Array) else np.asarray(part)


@functools.cache
def _group(
    logical_devices: tuple[tuple[jax.Device, ...], ...], rules: ShardingRules | None
) -> PartitionedGroup:
    # Imported here, as in `replica_group`.
    from stratagem._src.mesh.compile_only_group import CompileOnlyPartitionedGroup

    # Without rules the caller lowers the program itself, with arrays of the described devices.
    if rules is not None and is_compile_only(logical_devices[0][0]):
        return CompileOnlyPartitionedGroup(logical_devices, rules)
    return PartitionedGroup(logical_devices, rules)


when_backend_ends(_group.cache_clear)
