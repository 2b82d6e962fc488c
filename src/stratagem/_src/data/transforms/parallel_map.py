"""``map`` with ``num_parallel_calls``: concurrent calls, results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from stratagem._src.data.options import AUTOTUNE
from stratagem._src.data.plan.resume_points import ResumePoints
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.transforms.call_pool import CallFuture, CallPool

__all__ = ["ParallelMapStream"]


class ParallelMapStream(UnaryStream):
    """Calls ``function`` on the next elements in background threads, ahead of the consumer."""

    def __init__(
        self, source: Stream, function: Callable[[Any], Any], num_parallel_calls: int, run: Run
    ) -> None:
        super().__init__(source)
        automatic = num_parallel_calls == AUTOTUNE
        self._window = max(2, os.cpu_count() or 1) if automatic else num_parallel_calls
        self._calls = CallPool(function, self._window)
        self._pending: deque[CallFuture] = deque()
        self._resume_points = ResumePoints(source, self._window)
        self._source_failed = False
        self._given = 0
        run.register(self)

    @property
    def uniform(self) -> bool:
        """Whether the results are known to be uniform: never."""
        return False

    def _fill(self) -> None:
        self._resume_points.discard_before(self._given)
        while len(self._pending) <= self._window:
            self._resume_points.before_read()
            try:
                element = next(self._source)
            except StopIteration:
                self._resume_points.read -= 1
                return
            except BaseException as error:
                # The error is raised after the results that are still pending.
                self._pending.append(CallFuture.failed(error))
                self._source_failed = True
                return
            self._pending.append(self._calls.submit(element))

    def __next__(self) -> Any:
        if not self._source_failed:
            self._fill()
        if not self._pending:
            raise StopIteration
        self._given += 1
        call = self._pending.popleft()
        if not self._pending:
            self._source_failed = False
        return call.wait()

    def skip_past_error(self) -> None:
        """Makes the input skip what it failed at, once all results before it were returned."""
        if not self._pending:
            self._source.skip_past_error()
            self._resume_points.clear()

    def get_state(self) -> State:
        """Returns the state of the input before the first result that was not returned yet."""
        return {"given": self._given, "input": self._resume_points.get_state(self._given)}

    def set_state(self, state: State) -> None:
        """Resumes at that result."""
        self._given = state["given"]
        self._resume_points.resume(state["input"], self._given)

    def pause(self) -> None:
        """Stops the threads until the next result is requested."""
        self._calls.pause()

    def close(self) -> None:
        """Stops the threads when their current calls return, and closes the input."""
        self._calls.close()
        super().close()
