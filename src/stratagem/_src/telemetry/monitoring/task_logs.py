"""``TaskLogs``: the latest output of a job's tasks, which the dashboard searches."""

from __future__ import annotations

import collections
import heapq
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["LogLine", "LogQuery", "TaskLogs"]

_MAX_BYTES = 32 * 2**20
_MIN_TASK_BYTES = 64 * 2**10
# What a line costs beyond its text.
_LINE_BYTES = 200
_MAX_SEARCHED_TEXT = 200


class LogLine(NamedTuple):
    """A line that a task has printed.

    Attributes:
        number: Its number among the lines of all tasks, in the order of their arrival.
        time: When its launcher read it, in seconds since 1970.
        task: The name of the task.
        is_error: Whether it went to the error output.
        text: The line, without escape sequences.
    """

    number: int
    time: float
    task: str
    is_error: bool
    text: str


class LogQuery(NamedTuple):
    """Which lines are asked for: the last ``limit`` that match.

    Attributes:
        task: The name of a task; empty for all.
        text: What a line must contain, in lower or upper case; empty for all.
        after: Only lines with a greater number.
        limit: The maximum number of lines.
    """

    task: str = ""
    text: str = ""
    after: int = -1
    limit: int = 500

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> LogQuery:
        """Returns the query of a request to the dashboard; what is not understood asks for nothing less."""
        try:
            after = int(fields.get("after", "-1"))
        except ValueError:
            after = -1
        return cls(fields.get("task", ""), fields.get("text", "")[:_MAX_SEARCHED_TEXT], after)


class TaskLogs:
    """Keeps the last lines of each task, within a limit of memory for all.

    Args:
        max_bytes: The memory for all tasks. Each has an equal share, which is at least 64 KiB.

    >>> from stratagem._src.telemetry.monitoring.task_logs import LogQuery, TaskLogs
    >>> logs = TaskLogs()
    >>> logs.add("worker 0", [(1.0, False, "step 1"), (2.0, True, "Warning: late")])
    >>> [line["text"] for line in logs.find(LogQuery(text="warning"))["lines"]]
    ['Warning: late']
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tasks: dict[str, _KeptLines] = {}

    def add(self, task: str, lines: Iterable[tuple[float, bool, str]]) -> None:
        """Adds lines of a task: time, whether it is error output, and text."""
        with self._lock:
            kept = self._tasks.setdefault(task, _KeptLines())
            for time, is_error, text in lines:
                kept.add(LogLine(next(self._numbers), time, task, is_error, text))
            share = max(_MIN_TASK_BYTES, self._max_bytes // len(self._tasks))
            for each in self._tasks.values():
                each.shrink(share)

    def find(self, query: LogQuery) -> dict[str, Any]:
        """Returns the ``lines`` that a query asks for, the oldest first, and the number of the ``last``.

        The next query gives that number as ``after``.
        """
        with self._lock:
            last = max((lines.last for lines in self._tasks.values()), default=-1)
            kept = [
                list(lines.lines)
                for task, lines in self._tasks.items()
                if query.task in ("", task) and lines.last > query.after
            ]
        # Searched without the lock: new lines arrive meanwhile.
        found = heapq.merge(
            *(_newest_first(lines, query) for lines in kept), key=lambda line: -line.number
        )
        lines = list(itertools.islice(found, query.limit))[::-1]
        return {"lines": [line._asdict() for line in lines], "last": last}


class _KeptLines:
    """The last lines of one task."""

    def __init__(self) -> None:
        self.lines: collections.deque[LogLine] = collections.deque()
        self.last = -1
        self._size = 0

    def add(self, line: LogLine) -> None:
        self.lines.append(line)
        self.last = line.number
        self._size += _LINE_BYTES + len(line.text)

    def shrink(self, size: int) -> None:
        while self._size > size and len(self.lines) > 1:
            self._size -= _LINE_BYTES + len(self.lines.popleft().text)


def _newest_first(lines: list[LogLine], query: LogQuery) -> Iterator[LogLine]:
    wanted = query.text.lower()
    for line in reversed(lines):
        if line.number <= query.after:
            return
        if wanted in line.text.lower():
            yield line
