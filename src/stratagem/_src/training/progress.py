"""``progress``: a progress bar for training loops, shown by the leader for all workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, TypeVar

from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import CardinalityError, InvalidArgumentError
from stratagem._src.process.notebook import notebook_widgets
from stratagem._src.training.progress_widget import ProgressWidget
from stratagem._src.values.rows import num_global_rows

__all__ = ["progress"]

_T = TypeVar("_T")
_REFRESH_SECONDS = 0.1
_RATE_WINDOW_SECONDS = 5.0


def progress(
    iterable: Iterable[_T],
    *,
    total: int | None = None,
    description: str = "",
    file: TextIO | None = None,
) -> Iterator[_T]:
    """Yields the elements of ``iterable`` and shows a progress line with throughput and remaining time.

    With several synchronous workers only the leader shows it. For a distributed dataset the throughput
    counts the examples of all workers. The line goes to stderr and is refreshed at most ten times a second;
    ``stratagem run`` keeps it below other output. In a notebook with ``ipywidgets`` it is a widget.

    Args:
        iterable: A distributed dataset, a range, or any iterable.
        total: Number of elements, if ``len`` is not defined.
        description: Text at the start of the line.
        file: Output stream. Default: a widget in a notebook, otherwise ``sys.stderr``.

    >>> import io
    >>> import stratagem as sg
    >>> line = io.StringIO()
    >>> for step in sg.train.progress(range(3), file=line):
    ...     pass
    >>> "3/3  100 %" in line.getvalue()
    True

    Raises:
        InvalidArgumentError: If ``total`` is negative.
    """
    if total is not None and total < 0:
        raise InvalidArgumentError(f"total must be a number of elements, got {total}.")
    if not _leads():
        return iter(iterable)
    return _shown(
        iterable, _Line(total if total is not None else _length(iterable), description, file)
    )


def _shown(iterable: Iterable[_T], line: _Line) -> Iterator[_T]:
    try:
        for element in iterable:
            yield element
            # The loop asks for the next element: its step is done.
            line.advance(num_global_rows(element))
    finally:
        line.end()


def _leads() -> bool:
    joined = joined_cluster()
    return joined is None or joined.process_id == 0


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except (TypeError, CardinalityError):
        return None


class _Line:
    """The progress line: count, throughput and remaining time."""

    def __init__(self, total: int | None, description: str, file: TextIO | None) -> None:
        widgets = notebook_widgets() if file is None else None
        self._total = total
        self._description = f"{description}: " if description else ""
        self._widget = widgets and ProgressWidget(widgets, total, description)
        self._file = sys.stderr if file is None else file
        self._began = time.monotonic()
        self._next = self._began
        self._count = 0
        self._examples = 0
        self._length = 0
        # Samples (time, steps, examples) of the last seconds, from which the rate is computed.
        self._past = [(self._began, 0, 0)]

    def advance(self, num_examples: int) -> None:
        """Counts a step with ``num_examples`` examples."""
        self._count += 1
        self._examples += num_examples
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REFRESH_SECONDS
            self._write(now)

    def end(self) -> None:
        """Writes the final line."""
        self._write(time.monotonic())
        if self._widget is not None:
            self._widget.end(self._count)
            return
        self._file.write("\n")
        self._file.flush()

    def _write(self, now: float) -> None:
        self._past.append((now, self._count, self._examples))
        while len(self._past) > 2 and self._past[0][0] < now - _RATE_WINDOW_SECONDS:
            del self._past[0]
        then, count, examples = self._past[0]
        seconds = max(now - then, 1e-9)
        rate = (self._count - count) / seconds
        words = [f"{self._count}" if self._total is None else f"{self._count}/{self._total}"]
        if self._total:
            words.append(f"{100 * self._count // self._total} %")
        words.append(f"{rate:.4g} steps/s")
        if self._examples:
            words.append(f"{(self._examples - examples) / seconds:.4g} examples/s")
        if self._total is not None and rate and self._count < self._total:
            words.append(f"{_clock((self._total - self._count) / rate)} left")
        else:
            words.append(_clock(now - self._began))
        if self._widget is not None:
            self._widget.show(self._count, "  ".join(words))
            return
        text = f"{self._description}{'  '.join(words)}"
        self._file.write(f"\r{text:<{self._length}}")
        self._file.flush()
        self._length = len(text)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
