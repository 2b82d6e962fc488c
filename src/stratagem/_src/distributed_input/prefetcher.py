"""Prepares the next steps in a thread of its own while the present one runs."""

from __future__ import annotations

import collections
import threading
from collections.abc import Generator
from typing import Any

from stratagem._src.core.background import Background

__all__ = ["Prefetcher"]

_SECONDS_TO_END = 1.0


class Prefetcher:
    """Runs a generator ahead by up to ``buffer_size`` items, in a background thread.

    The thread starts with the first item that is asked for and ends with the generator, with its
    first exception (which reaches the consumer with its own traceback), or with ``close``. Then it
    closes the generator, and with it the threads and files of what that reads.
    """

    def __init__(self, items: Generator[Any, None, None], buffer_size: int) -> None:
        self._source: Generator[Any, None, None] | None = items
        self._buffer_size = buffer_size
        self._items: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._started = False
        self._ended = False
        self._background = Background("a distributed dataset's input")

    def next(self) -> Any:
        """Returns the next item.

        Raises:
            StopIteration: At the end.
        """
        with self._changed:
            if not self._started and not self._ended:
                self._started = True
                self._background.start(self._work, name="input-prefetch")
            self._changed.wait_for(lambda: self._items or self._ended)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            # The error's traceback leads here: it must not lead back to the error.
            del error

    def close(self) -> None:
        """Ends the thread; one that is held up in a user's code ends when that returns."""
        with self._changed:
            self._ended = True
            self._items.clear()
            self._changed.notify_all()
            if not self._started:
                self._source = None
        self._background.join_or_leave(_SECONDS_TO_END)

    def _work(self) -> None:
        source, self._source = self._source, None
        assert source is not None
        try:
            for item in source:
                if not self._put(item):
                    break
            source.close()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, item: Any) -> bool:
        """Appends an item when there is room; returns whether anybody still wants it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._buffer_size)
            if not self._ended:
                self._items.append(item)
                self._changed.notify_all()
            return not self._ended
