"""``EventLoop``: the event loop in which a launcher handles the tasks of this machine."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["EventLoop"]

Callback = Callable[[], object]
FileDescriptorLike = int | socket.socket


class EventLoop:
    """Waits for events of this machine's tasks: output, exits, signals and deadlines.

    It never waits for another machine: threads of ``transport`` receive network messages and pass them
    on with ``call_soon``. Unlike asyncio's loop it can run inside another loop's callback, such as a
    notebook cell, and in any thread.

    >>> import time
    >>> from stratagem._src.launcher.event_loop import EventLoop
    >>> with EventLoop() as loop:
    ...     loop.call_at(time.monotonic(), lambda: print("now"))
    ...     loop.run_once()
    now
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callback] = deque()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._waking = threading.Lock()
        self._is_closed = False
        self.add_reader(self._woken, self._make_calls)
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()

    def add_reader(self, pipe: FileDescriptorLike, callback: Callback) -> None:
        """Calls back whenever a pipe or socket pair of this process is readable."""
        self._selector.register(pipe, selectors.EVENT_READ, callback)

    def remove_reader(self, pipe: FileDescriptorLike) -> None:
        """Removes the reader of a pipe, if it has one."""
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)

    def call_at(self, moment: float, callback: Callback) -> None:
        """Calls back when ``time.monotonic()`` reaches ``moment``."""
        heapq.heappush(self._timers, (moment, next(self._order), callback))

    def call_soon(self, callback: Callback) -> None:
        """Calls back in the loop's thread. Thread-safe, also after the loop is closed."""
        self._calls.append(callback)
        with self._waking:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # the pipe is full: a wake-up is pending
                    os.write(self._wake, b"!")

    def _make_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for _ in range(len(self._calls)):  # calls added meanwhile wake the loop again
            self._calls.popleft()()

    def run_once(self) -> None:
        """Waits for the next events and runs their callbacks."""
        seconds = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(seconds):
            # An earlier callback of this round may have removed this reader.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(self, *_: object) -> None:
        with self._waking:
            self._is_closed = True
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)
