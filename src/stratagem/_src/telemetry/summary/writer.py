"""``SummaryWriter``: where summaries go."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.telemetry.summary import recording_state
from stratagem._src.telemetry.summary.event_file import EventFile

__all__ = ["SummaryWriter", "create_file_writer", "create_noop_writer"]

_DEFAULT_FLUSH_MILLIS = 120_000


class SummaryWriter:
    """Writes what ``sg.summary.scalar`` and its kin are given, while it is the default one.

    Made by ``sg.summary.create_file_writer``. Of several workers only the leader writes: the others
    run the same lines, and nothing comes of them.

    >>> import tempfile
    >>> import stratagem as sg
    >>> writer = sg.summary.create_file_writer(tempfile.mkdtemp())
    >>> with writer.as_default(step=3):
    ...     sg.summary.scalar("loss", 0.5)
    True
    >>> writer.close()
    """

    def __init__(self, open_file: Callable[[], EventFile] | None) -> None:
        self._open_file = open_file
        self._file: EventFile | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def init(self) -> None:
        """Does nothing: the file is made when the first summary comes."""

    @contextlib.contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """Makes this the writer of the block, with ``step`` for what says none; flushes at its end."""
        with recording_state.entered(self, step):
            yield self
        self.flush()

    def set_as_default(self, step: Any = None) -> None:
        """Makes this the writer of this thread from now on."""
        recording_state.set_default(self, step)

    def flush(self) -> None:
        """Has everything written that was recorded, by compiled steps that still run, too."""
        if self._open_file is None:
            return
        jax.effects_barrier()
        with self._lock:
            if self._file is not None:
                self._file.flush()

    def close(self) -> None:
        """Flushes and ends the file; what is recorded later is an error."""
        self.flush()
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    @property
    def takes_part(self) -> bool:
        """Whether this process writes.

        Raises:
            RuntimeError: If the writer is closed.
        """
        if self._is_closed:
            raise RuntimeError(
                "A summary was recorded with a writer that is closed. Close it after the last one, or "
                "make another with sg.summary.create_file_writer."
            )
        joined = joined_cluster()
        return self._open_file is not None and (joined is None or joined.process_id == 0)

    def write(self, name: str, make: Callable[[Any], Any], step: int) -> None:
        """Writes what ``make`` returns, which is given the library."""
        assert self._open_file is not None
        with self._lock:
            if self._file is None:
                self._file = self._open_file()
                weakref.finalize(self, self._file.close)
            file = self._file
        file.write(name, make, step)


def create_file_writer(
    logdir: str | os.PathLike[str],
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """Returns a writer of files for TensorBoard; needs ``stratagem[summary]``.

    Of several workers only the leader makes a file. A process that works alone, such as an evaluator,
    writes for itself: give it a directory of its own below the common one.

    Args:
        logdir: The directory; made when the first summary comes.
        max_queue: Taken for TensorFlow's sake; summaries do not wait in a queue.
        flush_millis: How long a summary may stay in memory; two minutes by default.
        filename_suffix: The end of the file's name.
        name: Taken for TensorFlow's sake.

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
    """Returns a writer that writes nothing, for places where one is needed.

    >>> import stratagem as sg
    >>> with sg.summary.create_noop_writer().as_default():
    ...     sg.summary.scalar("loss", 0.5, step=0)
    False
    """
    return SummaryWriter(None)
