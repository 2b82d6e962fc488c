"""``EventsFile``: the events of a job, one line of JSON for each."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.telemetry.monitoring.job_events import Event
from stratagem._src.telemetry.monitoring.plain_json import plain_json
from stratagem._src.transport.private_folder import make_private_folder, open_private_file

__all__ = ["EventsFile"]


class EventsFile:
    """Writes events as they happen; who reads the file sees whole lines.

    Args:
        path: The file, for this user only if it is made. What is in it is kept, and events come after it.

    Raises:
        LaunchError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            make_private_folder(path.parent)
            self._file = open_private_file(path, append=True)
        except OSError as error:
            raise LaunchError(
                f"--events must name a file that can be written, got {path} ({error.strerror})."
            ) from None

    def write(self, event: Event) -> None:
        """Appends an event, or nothing.

        Raises:
            OSError: If it cannot be written, for a full disk for example.
        """
        line = f"{plain_json(event)}\n".encode()
        written = os.write(self._file, line)
        if written < len(line):  # there was room for a part only
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Ends the file."""
        os.close(self._file)
