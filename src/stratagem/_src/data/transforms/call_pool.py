"""``CallPool``: a thread pool that calls a user function on elements."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.process.background import Background

__all__ = ["CallFuture", "CallPool"]

_SHUTDOWN_TIMEOUT_SECONDS = 1.0


class CallFuture:
    """The future result of one call."""

    __slots__ = ("argument", "error", "result", "unfinished")

    def __init__(self, argument: Any) -> None:
        self.argument = argument
        self.result: Any = None
        self.error: BaseException | None = None
        # Held until the call has returned. A bare lock is faster than an Event.
        self.unfinished = threading.Lock()
        self.unfinished.acquire()

    @classmethod
    def failed(cls, error: BaseException) -> CallFuture:
        """Returns a future that has already failed."""
        call = cls(None)
        call.error = error
        call.unfinished.release()
        return call

    def wait(self) -> Any:
        """Waits for the call, and returns its result or raises its exception."""
        with self.unfinished:
            error, self.error = self.error, None
        if error is None:
            return self.result
        try:
            raise error
        finally:
            # The error's traceback refers to this frame; a reference back would be a cycle.
            del error


class CallPool:
    """Calls a function in up to ``num_threads`` threads, which are started on demand.

    Args:
        function: A function of one argument.
        num_threads: The maximum number of concurrent calls.
    """

    def __init__(self, function: Callable[[Any], Any], num_threads: int) -> None:
        self._function = function
        self._max_threads = num_threads
        self._num_threads = 0
        self._queue: queue.SimpleQueue[CallFuture | None] = queue.SimpleQueue()
        self._closed = False
        self._background = Background("a dataset's iterator")

    def submit(self, argument: Any) -> CallFuture:
        """Schedules a call and returns its future."""
        self._background.process.check()
        call = CallFuture(argument)
        self._queue.put(call)
        if self._num_threads < self._max_threads:
            self._num_threads += 1
            self._background.start(self._work, name="stratagem-map")
        return call

    def pause(self) -> None:
        """Stops the threads after the calls submitted so far; the next call starts new ones."""
        for _ in range(self._num_threads):
            self._queue.put(None)
        self._num_threads = 0

    def close(self) -> None:
        """Stops the threads when their current calls return."""
        self._closed = True
        self.pause()
        self._background.join_or_abandon(_SHUTDOWN_TIMEOUT_SECONDS)

    def _work(self) -> None:
        THIS_THREAD.state.is_prefetching = True
        while (call := self._queue.get()) is not None:
            try:
                if not self._closed:
                    call.result = self._function(call.argument)
            except BaseException as error:
                call.error = error
            call.unfinished.release()
            # Do not keep the element alive while waiting for the next call.
            del call
