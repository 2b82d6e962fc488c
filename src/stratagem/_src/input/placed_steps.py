"""From a worker's steps on the host to elements on its devices, agreed on with the other workers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

import jax

from stratagem._src.input.agreement import Agreement, agreed_steps
from stratagem._src.input.input_options import InputOptions
from stratagem._src.input.pairing import Pairing
from stratagem._src.input.placement import place_step
from stratagem._src.input.worker_input import HostSteps
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["PlaceSteps", "place_steps_on"]

PlacedSteps = Generator[tuple[Any, Any], None, None]

PlaceSteps = Callable[[HostSteps, Any, threading.Event], PlacedSteps]
"""From the steps, the state before them, and an event set when nobody wants more, to pairs of an
element and the state after it."""


def place_steps_on(
    group: ReplicaGroup, options: InputOptions, spec: Any, pairing: Pairing | None
) -> PlaceSteps:
    """Returns how the steps of one dataset are placed on ``group``.

    Args:
        group: The replicas.
        options: Whether they are put on the devices.
        spec: Of an element, if it is known.
        pairing: With the same dataset of the other workers, if there are any.
    """
    return functools.partial(_place_steps, group, options, spec, pairing)


def _place_steps(
    group: ReplicaGroup,
    options: InputOptions,
    spec: Any,
    pairing: Pairing | None,
    steps: HostSteps,
    state: Any,
    closed: threading.Event,
) -> PlacedSteps:
    if not group.spans_processes:
        return _placed(steps, group, options)
    assert pairing is not None
    agreement = Agreement(pairing.begin(), jax.process_index(), closed)
    agreed = agreed_steps(agreement, steps, group.local_size, spec, state)
    return _telling(_placed(agreed, group, options), agreement)


def _placed(steps: HostSteps, group: ReplicaGroup, options: InputOptions) -> PlacedSteps:
    for step in steps:
        element = place_step(step, group, fetch_to_device=options.experimental_fetch_to_device)
        yield element, step.state


def _telling(steps: PlacedSteps, agreement: Agreement) -> PlacedSteps:
    """Yields the steps; when one fails, the other workers do not wait for the next."""
    try:
        yield from steps
    except Exception as error:
        agreement.tell(error)
        raise
