"""``map`` with ``num_parallel_calls``: several calls at a time, results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from stratagem._src.data.options import AUTOTUNE
from stratagem._src.data.plan.anchors import Anchors
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.transforms.parallel_calls import ParallelCall, ParallelCalls

__all__ = ["ParallelMapStream"]


class ParallelMapStream(UnaryStream):
    """Calls ``function`` on the next elements in threads while the consumer works on this one."""

    def __init__(
        self, source: Stream, function: Callable[[Any], Any], num_parallel_calls: int, run: Run
    ) -> None:
        super().__init__(source)
        automatic = num_parallel_calls == AUTOTUNE
        self._window = max(2, os.cpu_count() or 1) if automatic else num_parallel_calls
        self._calls = ParallelCalls(function, self._window)
        self._pending: deque[ParallelCall] = deque()
        self._anchors = Anchors(source, self._window)
        self._source_failed = False
        self._given = 0
        run.note(self)

    @property
    def uniform(self) -> bool:
        """Whether the results are known to be uniform: never."""
        return False

    def _fill(self) -> None:
        self._anchors.forget_before(self._given)
        while len(self._pending) <= self._window:
            self._anchors.before_read()
            try:
                element = next(self._source)
            except StopIteration:
                self._anchors.read -= 1
                return
            except BaseException as error:
                # It belongs after the results that are still pending.
                self._pending.append(ParallelCall.failed(error))
                self._source_failed = True
                return
            self._pending.append(self._calls.begin(element))

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

    def pass_over_error(self) -> None:
        """Lets the input go on after what it failed at, once all before it was given."""
        if not self._pending:
            self._source.pass_over_error()
            self._anchors.begin_again()

    def get_state(self) -> State:
        """Returns where the input stood before the first result that was not given out."""
        return {"given": self._given, "input": self._anchors.get_state(self._given)}

    def set_state(self, state: State) -> None:
        """Resumes there."""
        self._given = state["given"]
        self._anchors.resume(state["input"], self._given)

    def rest(self) -> None:
        """Ends the threads until the next result is asked for."""
        self._calls.rest()

    def close(self) -> None:
        """Ends the threads once their current calls return, and closes the input."""
        self._calls.close()
        super().close()
