"""``prefetch``: the next elements are made on a background thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from stratagem.core.errors import InvalidArgumentError
from stratagem.data.checks import as_integer
from stratagem.data.options import AUTOTUNE
from stratagem.data.plan.anchors import Anchors
from stratagem.data.plan.node import Epoch, Node
from stratagem.data.plan.run import Run
from stratagem.data.plan.stream import State, Stream, UnaryStream

__all__ = ["Prefetch", "PrefetchStream"]

_AUTOMATIC_BUFFER = 2
_SECONDS_TO_END = 10.0


class Prefetch(Node):
    """Up to ``buffer_size`` elements made ahead of the consumer."""

    def __init__(self, source: Node, buffer_size: int) -> None:
        self.inputs = (source,)
        size = as_integer("buffer_size", buffer_size)
        if size != AUTOTUNE and size < 0:
            raise InvalidArgumentError(f"buffer_size must be AUTOTUNE or at least 0, got {size}.")
        self._buffer_size = _AUTOMATIC_BUFFER if size == AUTOTUNE else size

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0].open(run, epoch)
        return PrefetchStream(source, self._buffer_size) if self._buffer_size else source


class PrefetchStream(UnaryStream):
    """A thread that fills a buffer from the input, started by the first ``next``."""

    def __init__(self, source: Stream, buffer_size: int) -> None:
        super().__init__(source)
        self._buffer = _Buffer(source, buffer_size)
        self._thread: threading.Thread | None = None
        self._given = 0

    def __next__(self) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._buffer.fill, name="stratagem-prefetch", daemon=True
            )
            self._thread.start()
        element = self._buffer.take()
        self._given += 1
        return element

    def get_state(self) -> State:
        """Returns where the input stood before the first element that was not given out."""
        return {"given": self._given, "input": self._buffer.get_state(self._given)}

    def set_state(self, state: State) -> None:
        """Resumes there."""
        self._given = state["given"]
        self._buffer.resume(state["input"], self._given)

    def close(self) -> None:
        """Ends the thread, then closes the input."""
        self._buffer.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_TO_END)
            if self._thread.is_alive():
                # It is inside a user's function, and still holds the input.
                return
        super().close()


class _Buffer:
    """What the thread and the consumer share; it does not keep the consumer alive.

    The consumer takes all elements that are ready at once, and tells the thread about room only now
    and then: handing over every element by itself would cost more than making it.
    """

    def __init__(self, source: Stream, size: int) -> None:
        self._source = source
        self._size = size
        self._anchors = Anchors(source, size)
        self._ready: deque[Any] = deque()
        self._taken: deque[Any] = deque()
        self._num_started = 0
        self._num_given = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._end: BaseException | None = None

    def fill(self) -> None:
        try:
            while self._wait_for_room():
                element = next(self._source)
                with self._changed:
                    self._ready.append(element)
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._end = error
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._stopped or self._num_started - self._num_given < self._size

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(self._has_room)
            if not self._stopped:
                self._num_started += 1
                self._anchors.before_read()
            return not self._stopped

    def take(self) -> Any:
        if not self._taken:
            self._take_ready()
        element = self._taken.popleft()
        self._num_given += 1
        if self._num_given % max(1, self._size // 2) == 0:
            with self._changed:
                self._changed.notify_all()
        return element

    def _take_ready(self) -> None:
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready or self._end or self._stopped)
            if self._ready:
                self._taken, self._ready = self._ready, self._taken
            elif self._end is not None and not isinstance(self._end, StopIteration):
                raise self._end
            else:
                raise StopIteration

    def get_state(self, given: int) -> State:
        with self._changed:
            return self._anchors.get_state(given)

    def resume(self, state: State, given: int) -> None:
        self._anchors.resume(state, given)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
