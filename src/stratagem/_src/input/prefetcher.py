"""Prepares the next steps in a thread of its own while the present one runs."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection, Generator
from typing import Any

from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.process.background import Background

__all__ = ["Prefetcher"]

_SECONDS_TO_END = 1.0


class Prefetcher:
    """Runs a generator ahead, in a background thread, as long as there is room.

    The thread starts with the first item that is asked for and ends with the generator, with its
    first exception (which reaches the consumer with its own traceback), or with ``close``. Then it
    closes the generator, and with it the threads and files of what that reads.

    Args:
        items: The generator.
        has_room: Whether there is room for one more beside those that wait for the consumer; always if
            none do.
    """

    def __init__(
        self, items: Generator[Any, None, None], has_room: Callable[[Collection[Any]], bool]
    ) -> None:
        self._source: Generator[Any, None, None] | None = items
        self._has_room = has_room
        self._items: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._started = False
        self._ended = False
        self._background = Background("a distributed dataset's iterator")

    def next(self) -> Any:
        """Returns the next item.

        Raises:
            StopIteration: At the end.
        """
        self._check_process()
        with self._changed:
            self._wait()
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
        self._raise_error()
        raise StopIteration

    def take_ready(self, taken: list[Any]) -> None:
        """Appends the items that are there to those taken before, as far as there is room beside them.

        Waits for one if there would be none; then there is none at the end only.
        """
        self._check_process()
        with self._changed:
            if not taken:
                self._wait()
            while self._items and self._has_room(taken):
                taken.append(self._items.popleft())
            self._changed.notify_all()
        if not taken:
            self._raise_error()

    def _check_process(self) -> None:
        # Before the lock, which the thread may have held when the process forked.
        self._background.process.check()

    def _wait(self) -> None:
        if not self._started and not self._ended:
            self._started = True
            self._background.start(self._work, name="input-prefetch")
        self._changed.wait_for(lambda: self._items or self._ended)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # The error's traceback leads here: it must not lead back to the error.
            del error

    def close(self) -> None:
        """Ends the thread; one that is held up in a user's code ends when that returns."""
        if not self._background.process.is_here:
            return
        with self._changed:
            self._ended = True
            self._items.clear()
            self._changed.notify_all()
            if not self._started:
                self._source = None
        self._background.join_or_leave(_SECONDS_TO_END)

    def _work(self) -> None:
        THIS_THREAD.state.reads_ahead = True
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
            self._changed.wait_for(lambda: self._ended or self._has_room(self._items))
            if not self._ended:
                self._items.append(item)
                self._changed.notify_all()
            return not self._ended
