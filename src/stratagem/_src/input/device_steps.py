"""Turns a worker's host steps into elements on its devices, in agreement with the other workers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.types import ElementSpec, IteratorState, Leaf
from stratagem._src.input.agreement import Agreement, agreed_steps
from stratagem._src.input.input_options import InputOptions
from stratagem._src.input.pairing import Pairing
from stratagem._src.input.worker_input import HostStep, HostSteps
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.per_replica import PerReplica

if TYPE_CHECKING:
    from stratagem._src.input.worker_input import HostStep

__all__ = ["PlaceSteps", "place_step", "place_steps_on"]

DeviceSteps = Generator[tuple[Any, Any], None, None]

PlaceSteps = Callable[[HostSteps, Any, threading.Event], DeviceSteps]
"""Takes host steps, the state before them and an event that is set when the iterator is closed; yields
pairs of an element and the state after it."""


def place_steps_on(
    group: ReplicaGroup, options: InputOptions, spec: ElementSpec, pairing: Pairing | None
) -> PlaceSteps:
    """Returns the function that places the steps of one dataset on the devices of ``group``.

    Args:
        group: The replicas.
        options: The input options; ``experimental_fetch_to_device=False`` keeps batches on the host.
        spec: The spec of an element, if known.
        pairing: The pairing with the same dataset on the other workers, if there are any.
    """
    return functools.partial(_place_steps, group, options, spec, pairing)


def _place_steps(
    group: ReplicaGroup,
    options: InputOptions,
    spec: ElementSpec,
    pairing: Pairing | None,
    steps: HostSteps,
    state: IteratorState,
    closed: threading.Event,
) -> DeviceSteps:
    if not group.spans_processes:
        return _placed(steps, group, options)
    assert pairing is not None
    agreement = Agreement(pairing.start_iteration(), jax.process_index(), closed)
    agreed = agreed_steps(agreement, steps, group.local_size, spec, state)
    return _report_failures(_placed(agreed, group, options), agreement)


def _placed(steps: Iterable[HostStep], group: ReplicaGroup, options: InputOptions) -> DeviceSteps:
    for step in steps:
        element = place_step(step, group, fetch_to_device=options.experimental_fetch_to_device)
        yield element, step.state


def _report_failures(steps: DeviceSteps, agreement: Agreement) -> DeviceSteps:
    """Yields the steps; if one fails, tells the other workers, which would wait for it otherwise."""
    try:
        yield from steps
    except Exception as error:
        agreement.report_failure(error)
        raise


def place_step(step: HostStep, group: ReplicaGroup, *, fetch_to_device: bool) -> Any:
    """Returns a step's element with one value per replica.

    With a single replica the value is not wrapped in ``PerReplica``.
    """
    structure: Any
    if step.local_batch is not None:
        leaves, structure = structures.flatten(step.local_batch)
        return jax.tree.unflatten(structure, _place_local_batch(leaves, group, fetch_to_device))
    assert step.replica_batches is not None
    if group.size == 1:
        return structures.map_structure(
            lambda leaf: group.replicate(leaf) if fetch_to_device and _fits_device(leaf) else leaf,
            step.replica_batches[0],
        )
    flattened = [structures.flatten(batch) for batch in step.replica_batches]
    structure = flattened[0][1]
    for index, (_, other) in enumerate(flattened):
        if other != structure:
            raise InvalidArgumentError(
                "The batches of one step must have the same structure, got "
                f"{structure} for replica 0 and {other} for replica {index}."
            )
    columns: Any = zip(*(leaves for leaves, _ in flattened), strict=True)
    return jax.tree.unflatten(
        structure,
        [_place_shards(column, group, fetch_to_device, uneven=step.uneven) for column in columns],
    )


def _place_local_batch(leaves: list[Any], group: ReplicaGroup, fetch_to_device: bool) -> list[Any]:
    if not fetch_to_device or group.spans_processes:
        return [
            _place_shards(np.split(np.asarray(leaf), group.local_size), group, fetch_to_device)
            for leaf in leaves
        ]
    return [
        PerReplica.from_global(group, group.shard_rows(leaf), scalar=False)
        if _fits_device(leaf)
        else PerReplica(np.split(leaf, group.size), group)
        for leaf in leaves
    ]


def _place_shards(
    shards: Sequence[Any], group: ReplicaGroup, fetch_to_device: bool, *, uneven: bool = False
) -> PerReplica:
    if not fetch_to_device:
        return PerReplica(shards, group, uneven=uneven)
    if all(isinstance(shard, (np.ndarray, np.generic)) and _fits_device(shard) for shard in shards):
        # Assembles the global array here, in the prefetch thread, and not when the step needs it.
        value = PerReplica(shards, group, uneven=uneven)
        array = value.global_array(group)
        if array is not None:
            return PerReplica.from_global(group, array, scalar=value.scalar)
    pairs = zip(shards, group.local_devices, strict=True)
    placed = [_put(shard, device) for shard, device in pairs]
    return PerReplica(placed, group, uneven=uneven)


def _put(leaf: Leaf, place: jax.Device | jax.sharding.Sharding) -> Any:
    return jax.device_put(leaf, place) if _fits_device(leaf) else leaf


def _fits_device(leaf: Leaf) -> bool:
    """Returns whether an array can be placed on a device; strings stay on the host.

    Raises:
        InvalidArgumentError: If 64-bit numbers would not survive JAX's 32-bit mode.
    """
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return not isinstance(leaf, (bytes, str))
    if is_host_only(dtype):
        return False
    try:
        guard_int64(leaf)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{error} Or leave batches on the host with "
            "InputOptions(experimental_fetch_to_device=False)."
        ) from None
    return True
