"""``Collector``: receives the samples of a job's tasks and the events of its launcher."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR
from stratagem._src.telemetry.monitoring.events_file import EventsFile
from stratagem._src.telemetry.monitoring.job_events import (
    Event,
    JSONValue,
    SampleEvents,
    make_event,
)
from stratagem._src.telemetry.monitoring.job_history import JobHistory
from stratagem._src.telemetry.monitoring.reporter import SAMPLE
from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.transport import Credentials, Message, TransportServer

__all__ = ["Collector"]


class Collector:
    """Receives samples from the tasks of a job while entered, and keeps the job's events.

    Args:
        host: The host at which tasks reach the collector.
        secret: The secret that tasks must prove to know.
        events: The file for all events, if any.
        notify: Called with messages for the user.

    Raises:
        LaunchError: If the file cannot be written.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        events: Path | None = None,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._samples = SampleEvents()
        self._history = JobHistory()
        self._file = None if events is None else EventsFile(events)
        self._server = TransportServer(
            f"{host}:0", {SAMPLE: self._take}, Credentials(secret=secret), COLLECTOR
        )

    @property
    def address(self) -> str:
        """The address at which tasks reach the collector."""
        return self._server.address

    def note(self, event: str, /, **details: JSONValue) -> None:
        """Records an event of the launcher, with the current time."""
        with self._lock:
            if event == "task_ended":
                self._samples.forget(details["task"])
            self._add(make_event(event, **details))

    def view(self, since: float = 0.0) -> dict[str, Any]:
        """Returns the current state of the job, and its history after the time ``since``."""
        with self._lock:
            return self._history.view(time.time(), since)

    def _take(self, message: Message) -> Message:
        sample = Sample.from_bytes(message.body)
        with self._lock:
            for event in self._samples.of(sample):
                self._add(event)
        return Message()

    def _add(self, event: Event) -> None:
        self._history.add(event)
        if self._file is None:
            return
        try:
            self._file.write(event)
        except OSError as error:
            self._file.close()
            self._file = None
            text = f"Stopped writing events: {error.strerror}."
            self._history.add(make_event("note", kind="error", text=text))
            self._notify(f"{text} The job continues.")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        if self._file is not None:
            self._file.close()
