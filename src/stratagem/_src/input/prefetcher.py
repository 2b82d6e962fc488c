"""Prefetches the next steps in a background thread while the current one runs."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Generator
from typing import Any

from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.wakeup import Wakeup
from stratagem._src.process.background import Background

__all__ = ["Prefetcher"]

_SHUTDOWN_TIMEOUT_SECONDS = 1.0
_POLL_SECONDS = 1.0


class Prefetcher:
    """Runs a generator ahead of the consumer in a background thread, while the buffer has room.

    The thread starts at the first request and ends with the generator, with its first exception (which
    reaches the consumer with its own traceback), or with ``close``. It then closes the generator, and
    with it the threads and files of the generator's own input.

    There is one consumer at a time. It may be interrupted (Ctrl-C) between any two calls. So no lock is
    held, since an interrupt in the Python code of a ``threading.Condition`` can leave it locked, and the
    consumer takes an item from the buffer by itself, without a call; see ``Drawn``.

    Args:
        items: The generator.
        has_room: Returns whether the buffer takes one more item; must be true for an empty buffer.
    """

    def __init__(
        self, items: Generator[Any, None, None], has_room: Callable[[Collection[Any]], bool]
    ) -> None:
        # The thread takes the generator. While it is here no thread runs, even if one was to be started: an
        # interrupt may have prevented that.
        self._source: list[Generator[Any, None, None]] = [items]
        self._has_room = has_room
        self._items: collections.deque[Any] = collections.deque()
        self._error: BaseException | None = None
        self._ended = False
        # Each side waits for a Wakeup of its own, and wakes the one that the other side has put here.
        self._consumer = Wakeup()
        self._producer = Wakeup()
        self._background = Background("a distributed dataset's iterator")

    def wait(self) -> collections.deque[Any]:
        """Waits for an item, and returns the buffer, whose first item is the next one.

        The caller removes the item by ``del`` and then calls ``note_taken``.

        Raises:
            StopIteration: At the end.
        """
        self._background.process.check()
        if not self._items:
            self._wait()
        if not self._items:
            self._raise_error()
            raise StopIteration
        return self._items

    def note_taken(self) -> None:
        """Lets the thread fill the room of items that were taken."""
        self._producer.wake()

    def take_ready(self, taken: list[Any]) -> None:
        """Moves buffered items to the end of ``taken``, as long as it has room.

        Waits for an item if ``taken`` is empty; it stays empty only at the end.
        """
        self._background.process.check()
        if not taken:
            self._wait()
        while self._items and self._has_room(taken):
            taken.append(self._items.popleft())
        self.note_taken()
        if not taken:
            self._raise_error()

    def _wait(self) -> None:
        if self._source and not self._ended:
            self._background.start(self._work, name="input-prefetch")
        while not self._items:
            self._consumer = wakeup = Wakeup()
            # An interrupt may have prevented an earlier note_taken.
            self.note_taken()
            # In this order: the thread appends its last item before it ends.
            if self._ended or self._items:
                return
            wakeup.wait(_POLL_SECONDS)

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
        self._end()
        self._source.clear()
        self._background.join_or_abandon(_SHUTDOWN_TIMEOUT_SECONDS)
        self._items.clear()

    def _end(self) -> None:
        self._ended = True
        self._producer.wake()
        self._consumer.wake()

    def _work(self) -> None:
        THIS_THREAD.state.is_prefetching = True
        try:
            source = self._source.pop()
        except IndexError:  # closed, or another thread was started again
            return
        try:
            for item in source:
                if not self._put(item):
                    break
            source.close()
        except BaseException as error:
            self._error = error
        self._end()

    def _put(self, item: Any) -> bool:
        """Appends an item when there is room; returns whether the consumer is still there."""
        while not self._ended:
            self._producer = wakeup = Wakeup()
            if self._has_room(tuple(self._items)):
                self._items.append(item)
                self._consumer.wake()
                break
            wakeup.wait(_POLL_SECONDS)
        return not self._ended
