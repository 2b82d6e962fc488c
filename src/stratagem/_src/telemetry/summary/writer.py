"""``SummaryWriter``: writes summaries to TensorBoard event files, other files and experiment trackers."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import jax

from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.types import ArrayLike
from stratagem._src.telemetry.summary import recording_state
from stratagem._src.telemetry.summary.event_file import EventFile
from stratagem._src.telemetry.summary.summaries import Summary, Tracker

__all__ = ["SummaryWriter", "create_file_writer", "create_noop_writer"]

_DEFAULT_FLUSH_MILLIS = 120_000


class SummaryWriter:
    """Writes the summaries of ``sg.summary.scalar`` and similar functions, while it is the default writer.

    Created by ``sg.summary.create_file_writer`` and the other ``create_`` functions. Of several workers
    only the leader writes: in the others the same calls do nothing.

    >>> import tempfile
    >>> import stratagem as sg
    >>> writer = sg.summary.create_file_writer(tempfile.mkdtemp())
    >>> with writer.as_default(step=3):
    ...     sg.summary.scalar("loss", 0.5)
    True
    >>> writer.close()
    """

    def __init__(self, open_tracker: Callable[[], Tracker] | None) -> None:
        self._open_tracker = open_tracker
        self._tracker: Tracker | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def init(self) -> None:
        """Does nothing: the file or run is created with the first summary."""

    @contextlib.contextmanager
    def as_default(self, step: ArrayLike = None) -> Iterator[SummaryWriter]:
        """Makes this the default writer of the block, with a default ``step``; flushes at its end."""
        with recording_state.entered(self, step):
            yield self
        self.flush()

    def set_as_default(self, step: ArrayLike = None) -> None:
        """Makes this the default writer of this thread."""
        recording_state.set_default(self, step)

    def flush(self) -> None:
        """Writes all recorded summaries, including those of compiled steps that are still running."""
        if self._open_tracker is None:
            return
        jax.effects_barrier()
        if self._tracker is not None:
            self._tracker.flush()

    def close(self) -> None:
        """Flushes and closes; writing a summary afterwards is an error."""
        self.flush()
        with self._lock:
            self._is_closed = True
            if self._tracker is not None:
                self._tracker.close()

    @property
    def is_writing(self) -> bool:
        """Whether this process writes.

        Raises:
            RuntimeError: If the writer is closed.
        """
        if self._is_closed:
            raise RuntimeError(
                "A summary needs an open writer, got one that is closed. Close it after the last summary, "
                "or create another one with sg.summary.create_file_writer."
            )
        joined = joined_cluster()
        return self._open_tracker is not None and (joined is None or joined.process_id == 0)

    def write(self, name: str, summary: Summary, step: int) -> None:
        """Writes one summary."""
        assert self._open_tracker is not None
        with self._lock:
            if self._tracker is None:
                self._tracker = self._open_tracker()
                if not self._tracker.closes_itself:
                    weakref.finalize(self, self._tracker.close)
            tracker = self._tracker
        tracker.write(name, summary, step)


def create_file_writer(
    logdir: str | os.PathLike[str],
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """Returns a writer of TensorBoard event files; needs ``stratagem[summary]``.

    Of several workers only the leader creates a file. A process outside the cluster's workers, such as an
    evaluator, writes its own file: give it its own directory below the common one.

    Args:
        logdir: The directory; created with the first summary.
        max_queue: Accepted for compatibility with TensorFlow; there is no queue.
        flush_millis: How long a summary may stay in memory; two minutes by default.
        filename_suffix: The suffix of the file name.
        name: Accepted for compatibility with TensorFlow.

    >>> import os, tempfile
    >>> import stratagem as sg
    >>> logdir = tempfile.mkdtemp()
    >>> with sg.summary.create_file_writer(logdir).as_default():
    ...     for step in range(3):
    ...         _ = sg.summary.scalar("loss", 1 / (step + 1), step=step)
    >>> len(os.listdir(logdir))
    1
    """
    directory = os.fspath(logdir)
    millis = _DEFAULT_FLUSH_MILLIS if flush_millis is None else flush_millis
    suffix = filename_suffix or ""
    return SummaryWriter(lambda: EventFile(directory, suffix, millis / 1000))


def create_noop_writer() -> SummaryWriter:
    """Returns a writer that writes nothing.

    >>> import stratagem as sg
    >>> with sg.summary.create_noop_writer().as_default():
    ...     sg.summary.scalar("loss", 0.5, step=0)
    False
    """
    return SummaryWriter(None)
