"""``EventFile``: a TensorBoard event file that one process writes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any, ClassVar

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.process.fork import ProcessOwner, hold_while_forking
from stratagem._src.telemetry.summary.summaries import Histogram, Images, Scalar, Summary

__all__ = ["EventFile"]

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

    closes_itself: ClassVar[bool] = False

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

    def write(self, name: str, summary: Summary, step: int) -> None:
        """Appends one summary.

        Args:
            name: The tag of its first value; the second image is ``name/1``.
            summary: The summary.
            step: The step of the summary.
        """
        self._owner.check()
        message = self._message(summary)
        # Sets tags here, because the library replaces spaces and other characters.
        for place, value in enumerate(message.value):
            value.tag = name if place == 0 else f"{name}/{place}"
        event = self._library.proto.event_pb2.Event(
            wall_time=time.time(), step=step, summary=message
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

    def _message(self, summary: Summary) -> Any:
        """Returns a summary as a protocol buffer, without tags."""
        library = self._library.summary
        if isinstance(summary, Scalar):
            return library.scalar("", summary.value)
        if isinstance(summary, Images):
            images = [library.image("", image, dataformats="HWC") for image in summary.images]
            values = [value for image in images for value in image.value]
            return self._library.proto.summary_pb2.Summary(value=values)
        if isinstance(summary, Histogram):
            return library.histogram("", summary.values, summary.num_buckets)
        return library.text("", summary.text)

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
