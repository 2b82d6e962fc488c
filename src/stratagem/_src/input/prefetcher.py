"""Prefetches the next steps in a background thread while the current one runs."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection, Generator
from typing import Any

from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.process.background import Background

__all__ = ["Prefetcher"]

_SHUTDOWN_TIMEOUT_SECONDS = 1.0


class Prefetcher:
    """Runs a generator ahead of the consumer in a background thread, while the buffer has room.

    The thread starts at the first request and ends with the generator, with its first exception (which
    reaches the consumer with its own traceback), or with ``close``. It then closes the generator, and
    with it the threads and files of the generator's own input.

    Args:
        items: The generator.
        has_room: Returns whether the buffer takes one more item; must be true for an empty buffer.
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
        """Moves buffered items to the end of ``taken``, as long as it has room.

        Waits for an item if ``taken`` is empty; it stays empty only at the end.
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
        # Comes before the lock: the thread may have held it when the process forked.
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
            # The error's traceback refers to this frame; a reference back would be a cycle, which keeps
            # all that is in these frames alive until the garbage collector runs.
            del error

    def close(self) -> None:
        """Stops the thread; if it is blocked in user code, it stops when that returns."""
        if not self._background.process.is_here:
            return
        with self._changed:
            self._ended = True
            self._items.clear()
            self._changed.notify_all()
            if not self._started:
                self._source = None
        self._background.join_or_abandon(_SHUTDOWN_TIMEOUT_SECONDS)

    def _work(self) -> None:
        THIS_THREAD.state.is_prefetching = True
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
        """Appends an item when there is room; returns whether the consumer is still there."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._has_room(self._items))
            if not self._ended:
                self._items.append(item)
                self._changed.notify_all()
            return not self._ended
