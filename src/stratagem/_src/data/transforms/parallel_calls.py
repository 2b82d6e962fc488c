"""``ParallelCalls``: a user's function called on many elements in background threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.process.background import Background

__all__ = ["ParallelCall", "ParallelCalls"]

_SECONDS_TO_END = 1.0


class ParallelCall:
    """One call, and what became of it."""

    __slots__ = ("argument", "error", "result", "unfinished")

    def __init__(self, argument: Any) -> None:
        self.argument = argument
        self.result: Any = None
        self.error: BaseException | None = None
        # A bare lock, because an event takes longer: held until the call has returned.
        self.unfinished = threading.Lock()
        self.unfinished.acquire()

    @classmethod
    def failed(cls, error: BaseException) -> ParallelCall:
        """Returns a call that is known to fail."""
        call = cls(None)
        call.error = error
        call.unfinished.release()
        return call

    def wait(self) -> Any:
        """Returns the result when it is there, or raises what the function did."""
        with self.unfinished:
            error, self.error = self.error, None
        if error is None:
            return self.result
        try:
            raise error
        finally:
            # The error's traceback leads here: it must not lead back to the error.
            del error


class ParallelCalls:
    """Calls a function in up to ``num_threads`` threads, which start when there is something to call.

    Args:
        function: Of one argument.
        num_threads: How many calls run at a time.
    """

    def __init__(self, function: Callable[[Any], Any], num_threads: int) -> None:
        self._function = function
        self._most_threads = num_threads
        self._num_threads = 0
        self._queue: queue.SimpleQueue[ParallelCall | None] = queue.SimpleQueue()
        self._closed = False
        self._background = Background("a dataset's iterator")

    def begin(self, argument: Any) -> ParallelCall:
        """Returns a call that begins when a thread is free."""
        self._background.process.check()
        call = ParallelCall(argument)
        self._queue.put(call)
        if self._num_threads < self._most_threads:
            self._num_threads += 1
            self._background.start(self._work, name="stratagem-map")
        return call

    def rest(self) -> None:
        """Ends the threads once what has begun is done; the next call starts others."""
        for _ in range(self._num_threads):
            self._queue.put(None)
        self._num_threads = 0

    def close(self) -> None:
        """Ends the threads once their current calls return."""
        self._closed = True
        self.rest()
        self._background.join_or_leave(_SECONDS_TO_END)

    def _work(self) -> None:
        THIS_THREAD.state.reads_ahead = True
        while (call := self._queue.get()) is not None:
            try:
                if not self._closed:
                    call.result = self._function(call.argument)
            except BaseException as error:
                call.error = error
            call.unfinished.release()
            # While this thread waits for the next one, it keeps no element alive.
            del call
