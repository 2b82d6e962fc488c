"""``EventsFile``: the events of a job, one line of JSON for each."""

from __future__ import annotations

import os
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.observation.job_events import Event
from stratagem._src.observation.plain_json import plain_json

__all__ = ["EventsFile"]


class EventsFile:
    """Writes events as they happen; who reads the file sees whole lines.

    Args:
        path: The file. What is in it is kept, and events come after it.

    Raises:
        LaunchError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LaunchError(
                f"--events must name a file that can be written, got {path} ({error.strerror})."
            ) from None

    def write(self, event: Event) -> None:
        """Appends an event."""
        os.write(self._file, f"{plain_json(event)}\n".encode())

    def close(self) -> None:
        """Ends the file."""
        os.close(self._file)
