"""``Reporter``: tells the collector of the job once a second what this task measures."""

from __future__ import annotations

import logging
import threading

from stratagem._src.core.errors import StratagemError
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.log_notes import LogNotes
from stratagem._src.telemetry.measurement.recorder import begin_recording, end_recording
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR, CollectorAddress
from stratagem._src.telemetry.monitoring.sampler import Sampler
from stratagem._src.transport import Caller, Identity, Message

__all__ = ["SAMPLE", "Reporter"]

SAMPLE = "observation/sample"
_SECONDS_BETWEEN_SAMPLES = 1.0
_SECONDS_TO_SEND = 5.0
_SECONDS_TO_END = 10.0
_logger = logging.getLogger("stratagem")


class Reporter:
    """Has this task measured, and sends samples from a thread of its own until it is closed.

    A collector that cannot be reached is no error of the task: its sample is left out.

    Args:
        collector: Where they go.
        seconds: How long after one another.
    """

    def __init__(
        self, collector: CollectorAddress, *, seconds: float = _SECONDS_BETWEEN_SAMPLES
    ) -> None:
        self._seconds = seconds
        recorder = begin_recording()
        self._notes = LogNotes(recorder)
        _logger.addHandler(self._notes)
        self._sampler = Sampler(collector.task, recorder)
        self._caller = Caller(
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
        """Sends the last sample and ends."""
        if self._closed.is_set() or not self._background.process.is_here:
            return
        self._closed.set()
        if not self._background.join(_SECONDS_TO_END):
            self._send(_SECONDS_TO_END)
        self._caller.close()
        _logger.removeHandler(self._notes)
        end_recording()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            self._send(_SECONDS_TO_SEND)

    def _send(self, timeout: float) -> None:
        sample = self._sampler.sample()
        try:
            self._caller.call(SAMPLE, Message(sample.to_bytes()), timeout=timeout)
        except (StratagemError, OSError) as error:
            _logger.debug("A sample did not reach the job's collector: %s", error)
