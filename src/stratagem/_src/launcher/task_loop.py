"""``TaskLoop``: the thread that watches the tasks of this machine."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["TaskLoop"]

Callback = Callable[[], object]


class TaskLoop:
    """Waits for all that the tasks of this machine do: their output, their ends, signals, deadlines.

    It never waits for another machine: what travels between machines is received by threads of
    ``transport``, which hand it over with ``call_soon``. Unlike asyncio's loop it runs inside another
    loop's callback, as a cell of a notebook is, and in any thread.

    >>> import time
    >>> from stratagem._src.launcher.task_loop import TaskLoop
    >>> with TaskLoop() as loop:
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

    def add_reader(self, pipe: Any, callback: Callback) -> None:
        """Calls back whenever a pipe, or a socket pair, of this process can be read."""
        self._selector.register(pipe, selectors.EVENT_READ, callback)

    def remove_reader(self, pipe: Any) -> None:
        """Stops watching a pipe, if it was watched."""
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)

    def call_at(self, moment: float, callback: Callback) -> None:
        """Calls back when ``time.monotonic()`` has reached the moment."""
        heapq.heappush(self._timers, (moment, next(self._order), callback))

    def call_soon(self, callback: Callback) -> None:
        """Calls back in the loop's thread. From any thread, at any time."""
        self._calls.append(callback)
        with self._waking:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # then it is to wake already
                    os.write(self._wake, b"!")

    def _make_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for _ in range(len(self._calls)):  # later ones wake the loop again
            self._calls.popleft()()

    def run_once(self) -> None:
        """Waits until something happens and makes the calls that are due."""
        seconds = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(seconds):
            # A callback before it may have removed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def __enter__(self) -> TaskLoop:
        return self

    def __exit__(self, *_: object) -> None:
        with self._waking:
            self._is_closed = True
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)
