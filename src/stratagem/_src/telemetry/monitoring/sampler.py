"""``Sampler``: creates samples from the measurements of a recorder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.telemetry.measurement.recorder import Recorder
from stratagem._src.telemetry.monitoring.sample import Sample

__all__ = ["Sampler", "resident_bytes"]

_STATM = Path("/proc/self/statm")


class Sampler:
    """Creates samples; used by one thread.

    Args:
        task: The name of the task.
        recorder: The recorder of its measurements.
    """

    def __init__(self, task: str, recorder: Recorder) -> None:
        self._task = task
        self._recorder = recorder
        self._steps = 0
        self._examples = 0

    def sample(self) -> Sample:
        """Returns a sample of the time since the last call."""
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
            {name: dict(metrics) for name, metrics in self._recorder.metrics() if metrics},
            self._recorder.take_notes(),
        )


def _as_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values as numbers, without arrays that have been donated meanwhile."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        with contextlib.suppress(RuntimeError):
            numbers[name] = float(np.asarray(value).reshape(()))
    return numbers


def resident_bytes() -> int | None:
    """Returns the resident memory of this process, if the system reports it.

    >>> from stratagem._src.telemetry.monitoring.sampler import resident_bytes
    >>> (resident_bytes() or 2**20) >= 2**20
    True
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
