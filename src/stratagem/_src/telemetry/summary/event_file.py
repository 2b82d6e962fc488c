"""``EventFile``: a TensorBoard event file that one process writes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.process.fork import ProcessOwner, hold_while_forking

__all__ = ["EventFile", "TensorBoardX"]

TensorBoardX: TypeAlias = Any
"""The module ``tensorboardX``, which is imported when the first summary is written."""

_numbers = itertools.count()


class EventFile:
    """Appends events to a new file; thread-safe.

    Args:
        directory: The directory of the file; created if it does not exist.
        suffix: The suffix of the file name.
        flush_seconds: How long an event may stay in memory.

    Raises:
        MissingExtraError: If tensorboardX is not installed.
    """

    def __init__(self, directory: str, suffix: str, flush_seconds: float) -> None:
        self._library = _library()
        os.makedirs(directory, exist_ok=True)
        # The library's own names are unique only per second and machine.
        unique = f".{os.getpid()}.{next(_numbers)}{suffix}"
        prefix = os.path.join(directory, "events")
        self._writer = self._library.event_file_writer.EventsWriter(prefix, unique)
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self._lock = threading.Lock()
        self._is_closed = False
        self._owner = ProcessOwner("a summary writer")
        # Flushes before a fork: the child would write the buffered events to the same file at its exit.
        hold_while_forking(self, self._lock, EventFile._flush_if_open)

    def write(self, name: str, make: Callable[[TensorBoardX], Any], step: int) -> None:
        """Appends one summary.

        Args:
            name: The tag of its first value; the second is ``name/1``.
            make: Creates a summary without tags with the library.
            step: The step of the summary.
        """
        self._owner.check()
        summary = make(self._library)
        # Sets tags here, because the library replaces spaces and other characters.
        for place, value in enumerate(summary.value):
            value.tag = name if place == 0 else f"{name}/{place}"
        event = self._library.proto.event_pb2.Event(
            wall_time=time.time(), step=step, summary=summary
        )
        with self._lock:
            if self._is_closed:
                return
            self._writer.write_event(event)
            if time.monotonic() - self._flushed >= self._flush_seconds:
                self._flush()

    def flush(self) -> None:
        """Writes all events to the operating system."""
        if not self._owner.is_here:
            return
        with self._lock:
            self._flush_if_open()

    def close(self) -> None:
        """Closes the file; later events are dropped."""
        if not self._owner.is_here:
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._writer.close()

    def _flush_if_open(self) -> None:
        if not self._is_closed:
            self._flush()

    def _flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()


def _library() -> Any:
    try:
        import tensorboardX
        import tensorboardX.proto.event_pb2
        import tensorboardX.summary
    except ImportError as error:
        raise MissingExtraError(
            "Summaries are written with tensorboardX, which is not installed. "
            + install_hint("summary")
        ) from error
    return tensorboardX
