"""All-gather: concatenates the replicas' arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collectives.replica_programs import run_on_replicas, spmd_map
from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.types import Tensor
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica

__all__ = ["component_shapes", "first_replica", "gather", "gather_spmd"]


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
    every = process_monitor().all_gather_object("shapes", local, f"gather of {local}")
    return [tuple(shape) for shapes in every for shape in shapes]


def _gather_across(value: PerReplica, axis: int, sizes: Sequence[int], group: ReplicaGroup) -> Any:
    """Gathers across processes. XLA's all-gather needs equal shapes, so smaller arrays are padded."""
    if jnp.issubdtype(value.values[0].dtype, jax.dtypes.prng_key):
        # Keys cannot be padded; their data can.
        numbers = PerReplica([jax.random.key_data(part) for part in value.values], group)
        implementation = jax.random.key_impl(value.values[0])
        gathered = _gather_across(numbers, axis, sizes, group)
        return jax.random.wrap_key_data(gathered, impl=implementation)
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
    # Replicas with [a, b, c] and [d] gather [a, b, c, d, 0, 0]: the pieces are [0:3] and [3:4].
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


def gather_spmd(local: Tensor, axis: int) -> Any:
    """Returns all replicas' ``local`` concatenated along ``axis``, inside the SPMD program."""
    local = jnp.asarray(local)
    return jax.lax.all_gather(local, REPLICA_AXIS, axis=_check_axis(local.ndim, axis), tiled=True)


def _check_axis(ndim: int, axis: int) -> int:
    if not isinstance(axis, (int, np.integer)):
        raise InvalidArgumentError(f"gather needs one axis, an integer, got {axis!r}.")
    if not -ndim <= axis < ndim:
        raise ShapeMismatchError(
            f"gather needs an axis of the value, which has {ndim} dimensions, got axis {axis}."
        )
    return axis % ndim
