"""``Collector``: takes in what the tasks of a job tell of themselves, and what its launcher knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR
from stratagem._src.telemetry.monitoring.events_file import EventsFile
from stratagem._src.telemetry.monitoring.job_events import Event, SampleEvents, make_event
from stratagem._src.telemetry.monitoring.job_history import JobHistory
from stratagem._src.telemetry.monitoring.reporter import SAMPLE
from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.transport import Credentials, Endpoint, Message

__all__ = ["Collector"]


class Collector:
    """Listens to the tasks of a job while it is entered, and keeps its events.

    Args:
        host: By which the tasks reach it.
        secret: What they prove to know.
        events: The file for all events, if any.
        tell: Called with what the user should know.

    Raises:
        LaunchError: If the file cannot be written.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        events: Path | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._samples = SampleEvents()
        self._history = JobHistory()
        self._file = None if events is None else EventsFile(events)
        self._endpoint = Endpoint(
            f"{host}:0", {SAMPLE: self._take}, Credentials(secret=secret), COLLECTOR
        )

    @property
    def address(self) -> str:
        """Where tasks reach it."""
        return self._endpoint.address

    def note(self, event: str, /, **details: Any) -> None:
        """Takes in something that the launcher knows, as an event that happens now."""
        with self._lock:
            if event == "task_ended":
                self._samples.forget(details["task"])
            self._add(make_event(event, **details))

    def view(self, since: float = 0.0) -> dict[str, Any]:
        """Returns all that is known of the job, and of the past what came after a moment."""
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
            text = f"Events are not written any more: {error.strerror}."
            self._history.add(make_event("note", kind="error", text=text))
            self._tell(f"{text} The job goes on.")

    def __enter__(self) -> Self:
        self._endpoint.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._endpoint.shutdown()
        if self._file is not None:
            self._file.close()
