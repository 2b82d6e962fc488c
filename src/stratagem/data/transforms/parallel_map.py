"""``map`` with ``num_parallel_calls``: several calls at a time, results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from stratagem.data.options import AUTOTUNE
from stratagem.data.plan.anchors import Anchors
from stratagem.data.plan.stream import State, Stream, UnaryStream

__all__ = ["ParallelMapStream"]


class ParallelMapStream(UnaryStream):
    """Calls ``function`` on the next elements in threads while the consumer works on this one."""

    def __init__(
        self, source: Stream, function: Callable[[Any], Any], num_parallel_calls: int
    ) -> None:
        super().__init__(source)
        self._function = function
        automatic = num_parallel_calls == AUTOTUNE
        self._window = max(2, os.cpu_count() or 1) if automatic else num_parallel_calls
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[Future[Any]] = deque()
        self._anchors = Anchors(source, self._window)
        self._given = 0

    @property
    def uniform(self) -> bool:
        """Whether the results are known to be uniform: never."""
        return False

    def _fill(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._window, thread_name_prefix="stratagem-map")
        while len(self._pending) <= self._window:
            self._anchors.before_read()
            try:
                element = next(self._source)
            except StopIteration:
                self._anchors.read -= 1
                return
            except BaseException as error:
                # It belongs after the results that are still pending.
                failed: Future[Any] = Future()
                failed.set_exception(error)
                self._pending.append(failed)
                return
            self._pending.append(self._pool.submit(self._function, element))

    def __next__(self) -> Any:
        if not (self._pending and self._pending[-1].done() and self._pending[-1].exception()):
            self._fill()
        if not self._pending:
            raise StopIteration
        self._given += 1
        return self._pending.popleft().result()

    def get_state(self) -> State:
        """Returns where the input stood before the first result that was not given out."""
        return {"given": self._given, "input": self._anchors.get_state(self._given)}

    def set_state(self, state: State) -> None:
        """Resumes there."""
        self._given = state["given"]
        self._anchors.resume(state["input"], self._given)

    def close(self) -> None:
        """Ends the threads once their current calls return."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        super().close()
