"""``EventsFile``: a file with the events of a job, one line of JSON each."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.telemetry.monitoring.job_events import Event
from stratagem._src.telemetry.monitoring.strict_json import strict_json
from stratagem._src.transport.private_files import make_private_directory, open_private_file

__all__ = ["EventsFile"]


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
