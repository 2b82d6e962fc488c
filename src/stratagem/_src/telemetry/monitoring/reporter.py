"""``Reporter``: sends a sample of this task's measurements to the job's collector once a second."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.core.errors import StratagemError
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import Recorder, begin_recording, end_recording
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR, CollectorAddress
from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.transport import Identity, Message, TransportClient

__all__ = ["SAMPLE", "Reporter", "WarningHandler"]


_STATM = Path("/proc/self/statm")

SAMPLE = "observation/sample"
_SAMPLE_INTERVAL = 1.0
_SEND_TIMEOUT = 5.0
_SHUTDOWN_TIMEOUT = 10.0
_logger = logging.getLogger("stratagem")


class Reporter:
    """Records measurements of this task, and sends samples from a background thread until closed.

    If the collector cannot be reached, the sample is dropped; that is not an error of the task.

    Args:
        collector: The collector that receives the samples.
        seconds: The time between two samples.
    """

    def __init__(self, collector: CollectorAddress, *, seconds: float = _SAMPLE_INTERVAL) -> None:
        self._seconds = seconds
        recorder = begin_recording()
        self._handler = WarningHandler(recorder)
        _logger.addHandler(self._handler)
        self._sampler = _Sampler(collector.task, recorder)
        self._client = TransportClient(
            collector.address,
            collector.credentials,
            wanted=COLLECTOR,
            own=Identity("observed task"),
            name="the job's collector",
        )
        self._closed = threading.Event()
        self._background = Background("the reporter to the job's collector")
        self._background.start(self._run, name="observation-reporter")

    def close(self) -> None:
        """Sends the last sample and stops."""
        if self._closed.is_set() or not self._background.process.is_here:
            return
        self._closed.set()
        if not self._background.join(_SHUTDOWN_TIMEOUT):
            self._send(_SHUTDOWN_TIMEOUT)
        self._client.close()
        _logger.removeHandler(self._handler)
        end_recording()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            self._send(_SEND_TIMEOUT)

    def _send(self, timeout: float) -> None:
        sample = self._sampler.sample()
        try:
            self._client.call(SAMPLE, Message(sample.to_bytes()), timeout=timeout)
        except (StratagemError, OSError) as error:
            _logger.debug("A sample did not reach the job's collector: %s", error)


class WarningHandler(logging.Handler):
    """A logging handler that records warnings and errors as notes of the task.

    >>> import logging
    >>> from stratagem._src.telemetry.measurement.recorder import Recorder
    >>> from stratagem._src.telemetry.monitoring.reporter import WarningHandler
    >>> recorder, log = Recorder(), logging.getLogger("stratagem")
    >>> handler = WarningHandler(recorder)
    >>> log.addHandler(handler)
    >>> log.warning("Lost a worker.")
    >>> log.removeHandler(handler)
    >>> recorder.take_notes()[0]["text"]
    'Lost a worker.'
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        """Records a warning or error."""
        kind = "error" if record.levelno >= logging.ERROR else "warning"
        self._recorder.note(kind, record.getMessage())


class _Sampler:
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
        self._cpu_seconds, self._time = time.process_time(), time.monotonic()

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
            _resident_bytes(),
            {name: dict(metrics) for name, metrics in self._recorder.metrics() if metrics},
            self._recorder.current_activity,
            self._cores_in_use(),
            self._recorder.take_notes(),
        )

    def _cores_in_use(self) -> float:
        """Returns the CPU time of all threads since the last call, as a number of busy cores."""
        used, now = time.process_time(), time.monotonic()
        cpu_seconds, seconds = used - self._cpu_seconds, now - self._time
        self._cpu_seconds, self._time = used, now
        return cpu_seconds / seconds if seconds > 0 else 0.0


def _as_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values as numbers, without arrays that have been donated meanwhile."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        with contextlib.suppress(RuntimeError):
            numbers[name] = float(np.asarray(value).reshape(()))
    return numbers


def _resident_bytes() -> int | None:
    """Returns the resident memory of this process, if the system reports it.

    >>> from stratagem._src.telemetry.monitoring.reporter import _resident_bytes
    >>> (_resident_bytes() or 2**20) >= 2**20
    True
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
