"""``Sampler``: makes samples of what a recorder took in."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from stratagem._src.telemetry.measurement.memory import resident_bytes
from stratagem._src.telemetry.measurement.recorder import Recorder
from stratagem._src.telemetry.monitoring.sample import Sample

__all__ = ["Sampler"]


class Sampler:
    """Makes a sample every time that it is asked; by one thread.

    Args:
        task: What the task is called.
        recorder: What took in its measurements.
    """

    def __init__(self, task: str, recorder: Recorder) -> None:
        self._task = task
        self._recorder = recorder
        self._steps = 0
        self._examples = 0

    def sample(self) -> Sample:
        """Returns what the task has done since the last call."""
        interval = self._recorder.take()
        self._steps += interval.steps
        self._examples += interval.examples
        return Sample(
            self._task,
            os.getpid(),
            time.time(),
            self._steps,
            self._examples,
            interval,
            _as_numbers(self._recorder.take_reported()),
            resident_bytes(),
            {name: dict(figures) for name, figures in self._recorder.figures() if figures},
            self._recorder.take_notes(),
        )


def _as_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns those of the values that are known: an array may have been given away meanwhile."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        with contextlib.suppress(RuntimeError):
            numbers[name] = float(np.asarray(value).reshape(()))
    return numbers
