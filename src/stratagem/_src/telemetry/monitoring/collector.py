"""``Collector``: receives the samples of a job's tasks and the events of its launcher."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.process.private_files import make_private_directory, open_private_file
from stratagem._src.telemetry.monitoring.collector_address import COLLECTOR
from stratagem._src.telemetry.monitoring.job_events import (
    Event,
    JSONValue,
    SampleEvents,
    make_event,
)
from stratagem._src.telemetry.monitoring.job_history import JobHistory
from stratagem._src.telemetry.monitoring.log_sender import LOGS, NOT_WANTED, parse_lines
from stratagem._src.telemetry.monitoring.recovery_times import RecoveryTimes
from stratagem._src.telemetry.monitoring.reporter import SAMPLE
from stratagem._src.telemetry.monitoring.sample import Sample
from stratagem._src.telemetry.monitoring.strict_json import strict_json
from stratagem._src.telemetry.monitoring.task_logs import TaskLogs
from stratagem._src.transport import Credentials, Message, TransportServer

__all__ = ["Collector", "EventsFile"]


class Collector:
    """Receives samples from the tasks of a job while entered, and keeps the job's events.

    Args:
        host: The host at which tasks reach the collector.
        secret: The secret that tasks must prove to know.
        events: The file for all events, if any.
        notify: Called with messages for the user.
        logs: Keeps the output of tasks, if anybody can look at it.

    Raises:
        LaunchError: If the file cannot be written.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        events: Path | None = None,
        notify: Callable[[str], None] = lambda text: None,
        logs: TaskLogs | None = None,
    ) -> None:
        self._notify = notify
        self._logs = logs
        self._lock = threading.Lock()
        self._samples = SampleEvents()
        self._recoveries = RecoveryTimes()
        self._history = JobHistory()
        self._file = None if events is None else EventsFile(events)
        self._server = TransportServer(
            f"{host}:0",
            {SAMPLE: self._take, LOGS: self._take_logs},
            Credentials(secret=secret),
            COLLECTOR,
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

    def _take_logs(self, message: Message) -> Message:
        if self._logs is None:
            return Message(NOT_WANTED)
        for task, lines in parse_lines(message.body):
            self._logs.add(task, lines)
        return Message()

    def _add(self, event: Event) -> None:
        for each in (event, *self._recoveries.notes_after(event)):
            self._keep(each)

    def _keep(self, event: Event) -> None:
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


class EventsFile:
    """Appends events as they happen; a reader of the file sees complete lines.

    Args:
        path: The file; a new one is readable by this user only, and an existing one is appended to.

    Raises:
        LaunchError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            make_private_directory(path.parent)
            self._file = open_private_file(path, append=True)
        except OSError as error:
            raise LaunchError(
                f"--events must be a writable file, got {path} ({error.strerror}). Use another one."
            ) from None

    def write(self, event: Event) -> None:
        """Appends an event completely or not at all.

        Raises:
            OSError: If writing fails, for example because the disk is full.
        """
        line = f"{strict_json(event)}\n".encode()
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full: take the partial line back
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
