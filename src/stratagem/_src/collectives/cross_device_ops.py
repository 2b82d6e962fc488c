"""``CrossDeviceOps``: the algorithms that reduce values across replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collectives.all_gather import gather, gather_spmd
from stratagem._src.collectives.destinations import check_destinations, placed_on
from stratagem._src.collectives.replica_programs import spmd_map
from stratagem._src.collectives.wire_dtype import is_half, on_wire, wire_dtype
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import InvalidArgumentError, NotAnArrayError, ShapeMismatchError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import DTypeLike, Tensor
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.array_operators import array_of, operand_of
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables.as_per_replica import is_per_replica, per_replica_of

__all__ = ["CrossDeviceOps", "check_same_shape", "find_group"]


class CrossDeviceOps:
    """Base class of algorithms that reduce and broadcast between devices.

    Pass one to ``MirroredStrategy(cross_device_ops=...)``. Subclasses implement
    ``reduce_implementation``; ``batch_reduce_implementation`` and ``broadcast_implementation`` have
    defaults on top of it. The implementation gets a ``PerReplica`` whose ``values`` are the replicas'
    arrays. An implementation with ``jax.numpy`` works both eagerly and in compiled steps: eagerly the
    arrays are copied to the first replica's device, and in a compiled step ``values`` gathers them.

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

    # Whether components are copied to one device before an eager reduction, so that jax.numpy can
    # combine them; otherwise the implementation gets each component on its replica's device.
    _colocate_components = True

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Returns ``per_replica_value`` reduced to one value on the destinations."""
        return self.batch_reduce(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduces several values, which may be fused into fewer collectives.

        Args:
            reduce_op: How to combine the replicas' values.
            value_destination_pairs: Pairs of a value and the destinations of its result: a distributed
                value, a variable, an array, or the name of a device. A value that is the same in all
                replicas is not reduced.
            options: Packing.

        Returns:
            For each pair a ``Mirrored`` value, or an array if the destination is one device.
        """
        for pair in value_destination_pairs:
            if not isinstance(pair, tuple):
                raise InvalidArgumentError(
                    f"value_destination_pairs must be pairs (value, destinations), got {pair!r}."
                )
            check_destinations(pair[1])
        values = [per_replica_of(value) for value, _ in value_destination_pairs]
        results = [
            value if is_per_replica(value) else jnp.asarray(operand_of(value)) for value in values
        ]
        distributed = [position for position, value in enumerate(values) if is_per_replica(value)]
        group = None
        if distributed:
            group = find_group([values[position] for position in distributed])
            pairs = [(values[i], value_destination_pairs[i][1]) for i in distributed]
            reduced = self.reduce_over(group, ReduceOp(reduce_op), pairs, options)
            for position, result in zip(distributed, reduced, strict=True):
                results[position] = result
        return [
            placed_on(destinations, result, group)
            for result, (_, destinations) in zip(results, value_destination_pairs, strict=True)
        ]

    def reduce_over(
        self,
        group: ReplicaGroup,
        op: ReduceOp,
        pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduces per-replica values of ``group`` and returns arrays that are on all of its devices.

        Args:
            group: The replicas.
            op: How to combine the values.
            pairs: Each value with its destinations, for ``batch_reduce_implementation``.
            options: Packing.
        """
        options = options or CommunicationOptions()
        results: list[Any] = [None] * len(pairs)
        dense: list[int] = []
        for position, (value, _) in enumerate(pairs):
            if isinstance(value, IndexedSlices):
                results[position] = _reduce_slices(op, value, group, options)
            else:
                dense.append(position)
        if dense:
            reduced = self._reduce_dense(op, [pairs[i] for i in dense], group, options)
            for position, result in zip(dense, reduced, strict=True):
                results[position] = result
        return results

    def broadcast(self, tensor: Tensor, destinations: Any) -> Any:
        """Returns ``tensor`` on the destinations.

        Args:
            tensor: An array, a number, a ``Mirrored`` value or a variable.
            destinations: A distributed value, a variable, an array, or the name of a device.

        Returns:
            A ``Mirrored`` value, or an array if the destination is one device.
        """
        check_destinations(destinations)
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """Returns the reduction of one value. Subclasses implement it."""
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

    def broadcast_implementation(self, tensor: Tensor, destinations: Any) -> Any:
        """Returns ``tensor`` on every destination."""
        if is_per_replica(tensor):
            raise NotAnArrayError(
                "broadcast() sends one value to all, got a PerReplica. Reduce it, or take one of its "
                "values."
            )
        return placed_on(destinations, jnp.asarray(operand_of(tensor)), None)

    def _reduce_dense(
        self,
        op: ReduceOp,
        pairs: Sequence[tuple[Any, Any]],
        group: ReplicaGroup,
        options: CommunicationOptions,
    ) -> list[Any]:
        # The replicas' values come in three forms: what one replica sees inside the program
        # (`SpmdPerReplica`), a global array of an outer trace (staged), or a concrete array on each
        # replica's device.
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
            _refuse_dtype(op, value.values[0].dtype)
            check_same_shape(f"reduce with {op.name}", value.values)
        prepared = [_cast_components(op, value, group, options) for value in values]
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
            _restore(op, value.values[0], group.replicate(array_of(result)), group, options)
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
        parts = [jnp.asarray(operand_of(part)) for part in parts]
        for part in parts:
            _refuse_dtype(op, part.dtype)

        def implementation(casted: Sequence[Any]) -> list[Any]:
            pairs = [
                (SpmdPerReplica(group, part), destination)
                for part, destination in zip(casted, destinations, strict=True)
            ]
            return [
                jnp.asarray(array_of(result))
                for result in self.batch_reduce_implementation(op, pairs, options)
            ]

        casted = [_cast(op, part, group, options) for part in parts]
        if group.widens_bfloat16:  # for MIN and MAX; sums are float32 already
            casted = [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in casted]
        if op in (ReduceOp.MIN, ReduceOp.MAX):
            results = _with_extremum_gradient(implementation)(casted)
        else:
            results = implementation(casted)
        return [
            _restore(op, part, result, group, options)
            for part, result in zip(parts, results, strict=True)
        ]


def find_group(values: Sequence[Any]) -> ReplicaGroup:
    """Returns the replica group of the values."""
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


def _cast(op: ReduceOp, array: Tensor, group: ReplicaGroup, options: CommunicationOptions) -> Any:
    """Returns an array in the dtype in which the replicas' values are combined."""
    scale = _scale_on_wire(op, array.dtype, group, options)
    scaled = array if scale == 1 else array / scale
    return scaled.astype(_dtype_across(op, array.dtype, group, options))


def _dtype_across(
    op: ReduceOp, dtype: DTypeLike, group: ReplicaGroup, options: CommunicationOptions
) -> Any:
    if op is ReduceOp.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.promote_types(dtype, jnp.float32)
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        if options.dtype is not None and jnp.issubdtype(dtype, jnp.floating):
            return wire_dtype(dtype, options)
        if dtype == jnp.float16:
            return jnp.float32  # an intermediate sum may overflow even if the result does not
        if dtype == jnp.bfloat16 and group.on_cpu:
            # On accelerators bfloat16 halves the traffic; its range is that of float32.
            return jnp.float32
    return jnp.int32 if dtype == jnp.bool_ else dtype


def _scale_on_wire(
    op: ReduceOp, dtype: DTypeLike, group: ReplicaGroup, options: CommunicationOptions
) -> int:
    """Returns the divisor of values that are sent in float16, where a sum may overflow if the mean fits."""
    # With 4 replicas of 20,000 the sum is 80,000, which float16 does not hold, although it holds the mean.
    # So each replica sends 5,000: their sum is 20,000, its quarter 5,000, and `_restore` multiplies by 4.
    # A power of two: dividing by it does not round.
    is_scaled = op is ReduceOp.MEAN and _dtype_across(op, dtype, group, options) == jnp.float16
    return 1 << (group.size - 1).bit_length() if is_scaled else 1


def _restore(
    op: ReduceOp, before: Tensor, result: Tensor, group: ReplicaGroup, options: CommunicationOptions
) -> Any:
    """Returns a combined result in the dtype that a reduction of arrays like ``before`` has."""
    if before.dtype == jnp.bool_:
        is_extremum = op in (ReduceOp.MIN, ReduceOp.MAX)
        return result.astype(jnp.bool_) if is_extremum else result
    is_converted = wire_dtype(before.dtype, options) != before.dtype
    if not is_half(before.dtype) and not is_converted:
        return result
    scale = _scale_on_wire(op, before.dtype, group, options)
    restored = result.astype(before.dtype)
    return restored if scale == 1 else restored * scale


def _cast_components(
    op: ReduceOp, value: PerReplica, group: ReplicaGroup, options: CommunicationOptions
) -> PerReplica:
    dtype = value.values[0].dtype
    if _dtype_across(op, dtype, group, options) == dtype:
        return value
    return PerReplica([_cast(op, component, group, options) for component in value.values], group)


def _refuse_dtype(op: ReduceOp, dtype: DTypeLike) -> None:
    if op in (ReduceOp.MIN, ReduceOp.MAX) and jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(f"{op.name} needs numbers that have an order, got {dtype.name}.")
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(
            "Keys of jax.random cannot be reduced over the replicas. Use the key of one replica, "
            "strategy.experimental_local_results(keys)[0], or all of them with strategy.gather(...)."
        )


def _reduce_slices(
    op: ReduceOp, slices: IndexedSlices, group: ReplicaGroup, options: CommunicationOptions
) -> IndexedSlices:
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ValueError(f"IndexedSlices can be reduced with SUM or MEAN, got {op.name}.")
    values = _gather_rows(slices.values, group, options)
    if op is ReduceOp.MEAN:
        values = values / group.size
    return IndexedSlices(values, gather(slices.indices, 0, group), slices.dense_shape)


def _gather_rows(rows: PerReplica, group: ReplicaGroup, options: CommunicationOptions) -> Any:
    if options.dtype is None:
        return gather(rows, 0, group)
    if not isinstance(rows, SpmdPerReplica) and rows.staged:
        return spmd_map(
            lambda part: gather_spmd(on_wire(part, options), 0).astype(part.dtype), [rows], group
        )
    if isinstance(rows, SpmdPerReplica):
        local = jnp.asarray(rows.local)
        return gather_spmd(on_wire(local, options), 0).astype(local.dtype)
    sent = PerReplica([on_wire(part, options) for part in rows.values], group)
    return gather(sent, 0, group).astype(rows.values[0].dtype)


def _with_extremum_gradient(
    implementation: Callable[[Sequence[Any]], list[Any]],
) -> Callable[[Sequence[Any]], list[Any]]:
    """Gives MIN and MAX a derivative: the replicas that hold the extremum share it equally."""

    @jax.custom_jvp
    def reduced(parts: list[Any]) -> list[Any]:
        return implementation(parts)

    @reduced.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (parts,), (part_tangents,) = primals, tangents
        results = reduced(parts)

        def tangent(part: Tensor, part_tangent: Tensor, result: Tensor) -> Any:
            if not jnp.issubdtype(part.dtype, jnp.inexact):
                return np.zeros(result.shape, jax.dtypes.float0)
            is_nan = jnp.isnan(part) & jnp.isnan(result)
            # NaN compares unequal to itself, but the replica that holds it determines the result.
            holds = ((part == result) | is_nan).astype(part.dtype)
            share = part_tangent * holds / jax.lax.psum(holds, REPLICA_AXIS)
            return jax.lax.psum(share, REPLICA_AXIS)

        return results, [tangent(*z) for z in zip(parts, part_tangents, results, strict=True)]

    return lambda parts: reduced(list(parts))
