"""``CrossDeviceOps``: how values travel between replicas when they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from stratagem.collectives.options import CommunicationOptions
from stratagem.core.errors import ShapeMismatchError
from stratagem.core.indexed_slices import IndexedSlices
from stratagem.core.launch import launch, process_watch
from stratagem.core.reduce_op import ReduceOp
from stratagem.core.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem.core.tracing import is_tracer
from stratagem.values.array_operators import array_of
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica, SpmdPerReplica

__all__ = [
    "CrossDeviceOps",
    "component_shapes",
    "find_group",
    "first_replica",
    "gather",
    "gather_spmd",
    "run_on_replicas",
    "spmd_map",
]


class CrossDeviceOps:
    """Base class of algorithms that reduce and broadcast between devices.

    Pass one to ``MirroredStrategy(cross_device_ops=...)``. Subclasses implement
    ``reduce_implementation``; ``batch_reduce_implementation`` and ``broadcast_implementation`` have
    defaults on top of it. The implementation gets a ``PerReplica`` whose ``values`` are the replicas'
    arrays. Written with ``jax.numpy`` it works eagerly and in compiled steps alike: eagerly the arrays
    have been copied to the first replica's device, and in a compiled step ``values`` gathers them.

    >>> import stratagem as sg
    >>> import jax.numpy as jnp
    >>> class Largest(sg.distribute.CrossDeviceOps):
    ...     def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
    ...         return jnp.stack(per_replica_value.values).max(axis=0)
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=Largest())
    >>> per_replica = strategy.experimental_distribute_values_from_function(
    ...     lambda ctx: float(ctx.replica_id_in_sync_group))
    >>> float(strategy.reduce("SUM", per_replica, axis=None))
    1.0
    """

    # Whether an eager implementation gets all components on one device, where jax.numpy can combine
    # them, or where they are.
    _colocate_components = True

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Returns ``per_replica_value`` reduced to one value, on the destinations."""
        return self.batch_reduce(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduces several values, which may travel together.

        Args:
            reduce_op: How to combine the replicas' values.
            value_destination_pairs: Each value, with what says where the result is wanted: a
                ``ReplicaGroup``, or a distributed value or variable.
            options: Packing.

        Returns:
            One array for each pair, on every device of the group.
        """
        op = ReduceOp(reduce_op)
        options = options or CommunicationOptions()
        group = find_group([value for value, _ in value_destination_pairs])
        results: list[Any] = [None] * len(value_destination_pairs)
        dense: list[int] = []
        for position, (value, _) in enumerate(value_destination_pairs):
            if isinstance(value, IndexedSlices):
                results[position] = _reduce_slices(op, value, group)
            else:
                dense.append(position)
        if dense:
            pairs = [value_destination_pairs[position] for position in dense]
            reduced = self._reduce_dense(op, pairs, group, options)
            for position, result in zip(dense, reduced, strict=True):
                results[position] = result
        return results

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Returns ``tensor`` as a ``Mirrored`` value with a copy on every destination."""
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """Returns one value's reduction. To be implemented by subclasses."""
        raise NotImplementedError(
            f"{type(self).__name__} must implement reduce_implementation(reduce_op, "
            "per_replica_value, destinations, options)."
        )

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[PerReplica, Any]],
        options: CommunicationOptions,
    ) -> list[Any]:
        """Returns the reductions of several values."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Returns ``tensor`` on every destination."""
        group = (
            destinations if isinstance(destinations, ReplicaGroup) else find_group([destinations])
        )
        if is_tracer(tensor):
            return Mirrored(group, tensor)
        return Mirrored(group, group.replicate(array_of(tensor)))

    def _reduce_dense(
        self,
        op: ReduceOp,
        pairs: Sequence[tuple[Any, Any]],
        group: ReplicaGroup,
        options: CommunicationOptions,
    ) -> list[Any]:
        values = [value for value, _ in pairs]
        destinations = [destination for _, destination in pairs]
        if isinstance(values[0], SpmdPerReplica):
            return self._reduce_spmd(op, [v.local for v in values], destinations, group, options)
        if any(value.staged for value in values):
            return spmd_map(
                lambda *parts: self._reduce_spmd(op, parts, destinations, group, options),
                values,
                group,
            )
        for value in values:
            check_same_shape(f"reduce with {op.name}", value.values)
        prepared = [_cast_components(op, value, group) for value in values]
        if self._colocate_components:
            home = group.devices[0]
            prepared = [
                PerReplica([jax.device_put(part, home) for part in value.values], group)
                for value in prepared
            ]
        results = self.batch_reduce_implementation(
            op, list(zip(prepared, destinations, strict=True)), options
        )
        return [
            _restore(op, value.values[0], group.replicate(array_of(result)))
            for value, result in zip(values, results, strict=True)
        ]

    def _reduce_spmd(
        self,
        op: ReduceOp,
        parts: Sequence[Any],
        destinations: Sequence[Any],
        group: ReplicaGroup,
        options: CommunicationOptions,
    ) -> list[Any]:
        parts = [jnp.asarray(array_of(part)) for part in parts]

        def implementation(casted: Sequence[Any]) -> list[Any]:
            pairs = [
                (SpmdPerReplica(group, part), destination)
                for part, destination in zip(casted, destinations, strict=True)
            ]
            return [
                jnp.asarray(array_of(result))
                for result in self.batch_reduce_implementation(op, pairs, options)
            ]

        casted = [_cast(op, part) for part in parts]
        if op in (ReduceOp.MIN, ReduceOp.MAX):
            results = _with_extremum_gradient(implementation)(casted)
        else:
            results = implementation(casted)
        return [_restore(op, part, result) for part, result in zip(parts, results, strict=True)]


def spmd_map(fn: Callable[..., Any], values: Sequence[PerReplica], group: ReplicaGroup) -> Any:
    """Calls ``fn`` inside one SPMD program with each replica's components; results are replicated.

    ``fn`` gets the local arrays of ``values`` and returns arrays that are equal in all replicas. Works
    while a function is traced.
    """
    arrays = [value.global_array(group) for value in values]
    if any(array is None for array in arrays):
        raise ShapeMismatchError(
            "In a compiled function every replica's value must have the same shape. Got "
            f"{[[np.shape(v) for v in value.values] for value in values]}. Run it eagerly instead."
        )
    scalars = [value.scalar for value in values]

    def body(*blocks: Any) -> Any:
        return fn(
            *(
                block.reshape(()) if scalar else block
                for block, scalar in zip(blocks, scalars, strict=True)
            )
        )

    mapped = jax.shard_map(
        body,
        mesh=group.mesh,
        in_specs=PartitionSpec(REPLICA_AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return mapped(*arrays)


def run_on_replicas(
    name: str,
    key: tuple[Any, ...],
    make_fn: Callable[[], Callable[..., Any]],
    values: Sequence[PerReplica],
    group: ReplicaGroup,
) -> Any:
    """Like ``spmd_map``, for concrete values: compiled once for each ``key`` and run now.

    Args:
        name: What is done.
        key: Tells programs apart.
        make_fn: Makes the function.
        values: The values.
        group: The replicas.
    """
    arrays = [value.global_array(group) for value in values]
    scalars = tuple(value.scalar for value in values)
    program = _program((name, *key, scalars, group), make_fn, scalars, group)
    return launch(program, tuple(arrays), group, name)


_programs: dict[tuple[Any, ...], Any] = {}


def _program(
    key: tuple[Any, ...],
    make_fn: Callable[[], Callable[..., Any]],
    scalars: tuple[bool, ...],
    group: ReplicaGroup,
) -> Any:
    if key not in _programs:
        fn = make_fn()

        def program(*arrays: Any) -> Any:
            wrapped = [
                PerReplica.from_global(group, array, scalar=scalar)
                for array, scalar in zip(arrays, scalars, strict=True)
            ]
            return spmd_map(fn, wrapped, group)

        _programs[key] = jax.jit(program)
    return _programs[key]


def find_group(values: Sequence[Any]) -> ReplicaGroup:
    """Returns the replicas that the values live on."""
    for value in values:
        for part in (value.values, value.indices) if isinstance(value, IndexedSlices) else (value,):
            group = getattr(part, "group", None) or getattr(part, "_group", None)
            if isinstance(group, ReplicaGroup):
                return group
            if isinstance(part, PerReplica):
                devices = [next(iter(component.devices())) for component in part.values]
                return ReplicaGroup.of(devices)
    raise ValueError(f"Expected per-replica values, got {list(values)!r}.")


def check_same_shape(what: str, components: Sequence[Any]) -> None:
    """Checks that every replica's array has the same shape and dtype.

    Raises:
        ShapeMismatchError: If not.
    """
    shapes = [np.shape(component) for component in components]
    if len(set(shapes)) > 1:
        raise ShapeMismatchError(
            f"{what} needs the same shape in every replica, got {shapes}. Give an axis to reduce "
            "along it first, or use gather()."
        )
    dtypes = [np.dtype(component.dtype).name for component in components]
    if len(set(dtypes)) > 1:
        raise ShapeMismatchError(f"{what} needs the same dtype in every replica, got {dtypes}.")


def _cast(op: ReduceOp, array: Any) -> Any:
    if op is ReduceOp.MEAN and not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))
    if array.dtype == jnp.bool_:
        return array.astype(jnp.int32)
    return array


def _restore(op: ReduceOp, before: Any, result: Any) -> Any:
    extremum = op in (ReduceOp.MIN, ReduceOp.MAX)
    return result.astype(jnp.bool_) if extremum and before.dtype == jnp.bool_ else result


def _cast_components(op: ReduceOp, value: PerReplica, group: ReplicaGroup) -> PerReplica:
    dtype = value.values[0].dtype
    if dtype != jnp.bool_ and (op is not ReduceOp.MEAN or jnp.issubdtype(dtype, jnp.inexact)):
        return value
    return PerReplica([_cast(op, component) for component in value.values], group)


def _reduce_slices(op: ReduceOp, slices: IndexedSlices, group: ReplicaGroup) -> IndexedSlices:
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ValueError(f"IndexedSlices can be reduced with SUM or MEAN, got {op.name}.")
    values = gather(slices.values, 0, group)
    if op is ReduceOp.MEAN:
        values = values / group.size
    return IndexedSlices(values, gather(slices.indices, 0, group), slices.dense_shape)


def gather(value: PerReplica, axis: int, group: ReplicaGroup) -> Any:
    """Returns the replicas' arrays concatenated along ``axis``, in the order of the replicas.

    Raises:
        ShapeMismatchError: If the other dimensions differ, or there is no such axis.
    """
    if isinstance(value, SpmdPerReplica):
        return gather_spmd(value.local, axis)
    if value.staged:
        return spmd_map(lambda part: gather_spmd(part, axis), [value], group)
    shapes = component_shapes(value, group)
    position = _check_axis(len(shapes[0]), axis)
    rests = {(*shape[:position], None, *shape[position + 1 :]) for shape in shapes}
    if len(rests) > 1:
        raise ShapeMismatchError(
            f"gather along axis {axis} needs equal shapes in every other dimension, got {shapes}."
        )
    if group.spans_processes:
        sizes = [shape[position] for shape in shapes]
        return group.replicate(_gather_across(value, position, sizes, group))
    parts = [jax.device_put(part, group.devices[0]) for part in value.values]
    return group.replicate(jnp.concatenate(parts, axis=position))


def component_shapes(value: PerReplica, group: ReplicaGroup) -> list[tuple[int, ...]]:
    """Returns the shape of every replica's array, also of those in other processes."""
    local = [np.shape(part) for part in value.values]
    if not group.spans_processes:
        return local
    every = process_watch().exchange("shapes", local, f"gather of {local}")
    return [tuple(shape) for shapes in every for shape in shapes]


def _gather_across(value: PerReplica, axis: int, sizes: Sequence[int], group: ReplicaGroup) -> Any:
    """Gathers from other processes, where every part must travel in the size of the largest."""
    largest = max(sizes)
    padded = [
        jnp.pad(
            part, [(0, largest - part.shape[axis] if i == axis else 0) for i in range(part.ndim)]
        )
        for part in value.values
    ]
    [gathered] = run_on_replicas(
        f"gather along axis {axis}",
        (),
        lambda: lambda part: [gather_spmd(part, axis)],
        [PerReplica(padded, group)],
        group,
    )
    local = group.local_view(gathered)
    if min(sizes) == largest:
        return local
    pieces = [
        jax.lax.slice_in_dim(local, i * largest, i * largest + size, axis=axis)
        for i, size in enumerate(sizes)
    ]
    return jnp.concatenate(pieces, axis=axis)


def first_replica(value: PerReplica, group: ReplicaGroup) -> Any:
    """Returns the first replica's array, in every replica."""
    if isinstance(value, SpmdPerReplica):
        return gather_spmd(jnp.asarray(value.local)[None], 0)[0]
    if value.staged and group.spans_processes:
        return spmd_map(lambda part: gather_spmd(part[None], 0)[0], [value], group)
    if value.staged:
        return value.values[0]
    if group.spans_processes:
        [first] = run_on_replicas(
            "broadcast of the first replica's value",
            (),
            lambda: lambda part: [gather_spmd(part[None], 0)[0]],
            [value],
            group,
        )
        return group.local_view(first)
    return group.replicate(value.values[0])


def gather_spmd(local: Any, axis: int) -> Any:
    """Returns all replicas' ``local`` concatenated along ``axis``, inside the SPMD program."""
    local = jnp.asarray(local)
    return jax.lax.all_gather(local, REPLICA_AXIS, axis=_check_axis(local.ndim, axis), tiled=True)


def _check_axis(ndim: int, axis: int) -> int:
    if not -ndim <= axis < ndim:
        raise ShapeMismatchError(
            f"gather needs an axis of the value, which has {ndim} dimensions, got axis {axis}."
        )
    return axis % ndim


def _with_extremum_gradient(
    implementation: Callable[[Sequence[Any]], list[Any]],
) -> Callable[[Sequence[Any]], list[Any]]:
    """Gives MIN and MAX a derivative: the replicas that hold the extremum share it."""

    @jax.custom_jvp
    def reduced(parts: list[Any]) -> list[Any]:
        return implementation(parts)

    @reduced.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (parts,), (part_tangents,) = primals, tangents
        results = reduced(parts)

        def tangent(part: Any, part_tangent: Any, result: Any) -> Any:
            if not jnp.issubdtype(part.dtype, jnp.inexact):
                return np.zeros(result.shape, jax.dtypes.float0)
            holds = (part == result).astype(part.dtype)
            share = part_tangent * holds / jax.lax.psum(holds, REPLICA_AXIS)
            return jax.lax.psum(share, REPLICA_AXIS)

        return results, [tangent(*z) for z in zip(parts, part_tangents, results, strict=True)]

    return lambda parts: reduced(list(parts))
