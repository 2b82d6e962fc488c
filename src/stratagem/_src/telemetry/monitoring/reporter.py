"""``Reporter``: sends a sample of this task's measurements to the job's collector once a second."""

from __future__ import annotations

import logging
import threading

from stratagem._src.core.errors import StratagemError
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import Recorder, begin_recording, end_recording
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR, CollectorAddress
from stratagem._src.telemetry.monitoring.sampler import Sampler
from stratagem._src.transport import Identity, Message, TransportClient

__all__ = ["SAMPLE", "Reporter", "WarningHandler"]

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
        self._sampler = Sampler(collector.task, recorder)
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
