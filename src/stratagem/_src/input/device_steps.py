"""Turns a worker's host steps into elements on its devices, in agreement with the other workers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

import jax

from stratagem._src.core.types import ElementSpec, IteratorState
from stratagem._src.input.agreement import Agreement, agreed_steps
from stratagem._src.input.input_options import InputOptions
from stratagem._src.input.pairing import Pairing
from stratagem._src.input.placement import place_step
from stratagem._src.input.worker_input import HostStep, HostSteps
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["PlaceSteps", "place_steps_on"]

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
