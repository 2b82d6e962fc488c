"""``TaskOutput``: sends the output of one task to the console and a log file, and keeps its tail."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.lines import LineSplitter, Tail
from stratagem._src.process.private_files import open_private_file

__all__ = ["TaskOutput", "log_file_name"]

_REMEMBERED_BYTES = 32 * 1024
# XLA's Gloo prints this line for every connection, at every log level.
_NOISE = "[Gloo] Rank "


def log_file_name(task: Task, attempt: int) -> str:
    """Returns the name of a task's log file.

    >>> from stratagem._src.cluster import Task
    >>> from stratagem._src.launcher.task_output import log_file_name
    >>> log_file_name(Task("worker", 0), 0), log_file_name(Task("worker", 0), 2)
    ('worker-0.log', 'worker-0.restart-2.log')
    """
    restart = f".restart-{attempt}" if attempt else ""
    return f"{task.task_type}-{task.task_id}{restart}.log"


class TaskOutput:
    """Receives the output of a task.

    Args:
        task: The task.
        console: Shows its lines, except known noise; ``None`` to show nothing.
        log_file: The file for the complete output, if any; readable by this user only.
        append: Whether to append to an existing file.
        send: Receives its lines too, without known noise, and whether each is error output.
        when_incomplete: Called when writing the file fails, for example because the disk is full. The task
            continues, and later output is written again.
    """

    def __init__(
        self,
        task: Task,
        console: Console | None,
        log_file: Path | None,
        append: bool = False,
        send: Callable[[str, bool], None] | None = None,
        when_incomplete: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self._task = task
        self._console = console
        self._send = send
        self._when_incomplete = when_incomplete
        self._file: io.FileIO | None = None
        if log_file is not None:
            try:
                self._file = io.FileIO(open_private_file(log_file, append=append), "wb")
            except OSError as error:
                when_incomplete(error)
        self._splitters = (LineSplitter(), LineSplitter())
        self._tail = Tail(_REMEMBERED_BYTES)

    def feed(self, chunk: bytes, is_error: bool) -> None:
        """Processes a chunk of output."""
        self._tail.feed(chunk)
        if self._file is not None:
            self._keep(self._file, chunk)
        splitter = self._splitters[is_error]
        self._show(splitter.feed(chunk), is_error)
        if self._console is not None and splitter.progress:
            self._console.progress(self._task, splitter.progress)

    def close(self) -> str:
        """Shows unterminated lines, and returns the tail of the output, without known noise."""
        for is_error in (False, True):
            self._show(self._splitters[is_error].flush(), is_error)
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:  # some file systems report write errors on close
                self._when_incomplete(error)
        lines = self._tail.text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(_NOISE))

    def _keep(self, file: io.FileIO, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            self._when_incomplete(error)

    def _show(self, lines: list[str], is_error: bool) -> None:
        for line in lines:
            if line.startswith(_NOISE):
                continue
            if self._console is not None:
                self._console.line(self._task, line, is_error)
            if self._send is not None:
                self._send(line, is_error)
