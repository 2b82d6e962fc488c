"""``prefetch``: prepares the next elements in a background thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.wakeup import Wakeup
from stratagem._src.data.checks import as_integer
from stratagem._src.data.options import AUTOTUNE
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.resume_points import ResumePoints
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.process.background import Background

__all__ = ["Prefetch", "PrefetchStream"]

_AUTOMATIC_BUFFER = 2
_SHUTDOWN_TIMEOUT_SECONDS = 1.0
_POLL_SECONDS = 1.0


class Prefetch(Node):
    """Prepares up to ``buffer_size`` elements ahead of the consumer."""

    def __init__(self, source: Node, buffer_size: int | None) -> None:
        self.inputs = (source,)
        size = AUTOTUNE if buffer_size is None else as_integer("buffer_size", buffer_size)
        if size != AUTOTUNE and size < 0:
            raise InvalidArgumentError(f"buffer_size must be AUTOTUNE or at least 0, got {size}.")
        self._buffer_size = _AUTOMATIC_BUFFER if size == AUTOTUNE else size

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0].open(run, epoch)
        return PrefetchStream(source, self._buffer_size, run) if self._buffer_size else source


class PrefetchStream(UnaryStream):
    """Fills a buffer from the input in a thread, which the first ``next`` starts."""

    def __init__(self, source: Stream, buffer_size: int, run: Run) -> None:
        super().__init__(source)
        self._buffer = _Buffer(source, buffer_size)
        self._given = 0
        run.register(self)

    def __next__(self) -> Any:
        element = self._buffer.take()
        self._given += 1
        return element

    def skip_past_error(self) -> None:
        """Makes the thread skip what it failed at, once all elements before it were returned."""
        if self._buffer.skip_past_error():
            self._given = self._buffer.num_read()

    def get_state(self) -> State:
        """Returns the state of the input before the first element that was not returned yet."""
        return {"given": self._given, "input": self._buffer.get_state(self._given)}

    def set_state(self, state: State) -> None:
        """Resumes at that element."""
        self._given = state["given"]
        self._buffer.resume(state["input"], self._given)

    def pause(self) -> None:
        """Stops the thread until the next element is requested."""
        self._buffer.pause()

    def close(self) -> None:
        """Stops the thread and closes the input; a thread that is blocked in the input closes it later."""
        self._buffer.close()


class _Buffer:
    """The state shared by the thread and the consumer; it does not keep the consumer alive.

    The consumer takes all ready elements at once (``_ready`` becomes ``_taken``), and wakes the thread
    after half a buffer: locking for every element would cost more than computing it. ``_num_given`` is
    incremented without the lock; a stale value only delays the thread.

    The consumer may be interrupted (Ctrl-C) anywhere. So there is no ``threading.Condition``, which an
    interrupt in its Python code can leave locked; the thread would then never end.
    """

    def __init__(self, source: Stream, size: int) -> None:
        self._source = source
        self._size = size
        self._resume_points = ResumePoints(source, size)
        self._background = Background("a dataset's iterator")
        self._ready: deque[Any] = deque()
        self._taken: deque[Any] = deque()
        self._num_started = 0
        self._num_given = 0
        # Reentrant: a signal handler may close the iterator.
        self._lock = threading.RLock()
        # Each side waits for a Wakeup of its own, and wakes the one that the other side has put here.
        self._consumer = Wakeup()
        self._producer = Wakeup()
        self._is_filling = False
        self._is_paused = False
        self._stopped = False
        self._abandoned = False
        self._ended = False
        self._error: BaseException | None = None

    def _fill(self) -> None:
        THIS_THREAD.state.is_prefetching = True
        try:
            while self._wait_for_room():
                element = next(self._source)
                with self._lock:
                    self._ready.append(element)
                self._consumer.wake()
        except StopIteration:
            self._finish(None)
        except BaseException as error:
            self._finish(error)
        if self._abandoned:
            self._source.close()

    def _finish(self, error: BaseException | None) -> None:
        with self._lock:
            self._ended, self._error = True, error
            self._is_filling = False
        self._consumer.wake()

    def _wait_for_room(self) -> bool:
        """Waits for room for one more element; returns whether to read it."""
        while True:
            self._producer = wakeup = Wakeup()
            with self._lock:
                if self._stopped or self._is_paused:
                    self._is_filling = False
                    return False
                if self._num_started - self._num_given < self._size:
                    self._num_started += 1
                    self._resume_points.discard_before(self._num_given)
                    self._resume_points.before_read()
                    return True
            wakeup.wait(_POLL_SECONDS)

    def take(self) -> Any:
        if not self._taken:
            self._take_ready()
        element = self._taken.popleft()
        self._num_given += 1
        if self._num_given % max(1, self._size // 2) == 0:
            self._producer.wake()
        return element

    def _take_ready(self) -> None:
        self._background.process.check()  # before the lock: the thread may have held it at a fork
        while True:
            self._consumer = wakeup = Wakeup()
            with self._lock:
                self._start_filling()
                if self._ready:
                    self._taken, self._ready = self._ready, self._taken
                    return
                if self._error is not None:
                    raise self._error
                if self._ended or self._stopped:
                    raise StopIteration
            self._producer.wake()
            wakeup.wait(_POLL_SECONDS)

    def _start_filling(self) -> None:
        self._is_paused = False
        if not self._is_filling and not self._stopped and not self._ended:
            self._is_filling = True
            self._background.start(self._fill, name="stratagem-prefetch")

    def skip_past_error(self) -> bool:
        with self._lock:
            failed = self._error is not None and not self._taken and not self._ready
            if failed:
                self._source.skip_past_error()
                self._resume_points.clear()
                self._ended, self._error = False, None
                self._num_given = self._num_started
        return failed

    def num_read(self) -> int:
        return self._resume_points.read

    def get_state(self, given: int) -> State:
        with self._lock:
            return self._resume_points.get_state(given)

    def resume(self, state: State, given: int) -> None:
        self._resume_points.resume(state, given)
        self._num_started = self._num_given = given

    def pause(self) -> None:
        if not self._background.process.is_here:
            return
        with self._lock:
            self._is_paused = True
        self._producer.wake()

    def close(self) -> None:
        if not self._background.process.is_here:
            return
        with self._lock:
            self._stopped = True
            self._ready.clear()
        self._producer.wake()
        self._consumer.wake()
        if not self._background.join_or_abandon(_SHUTDOWN_TIMEOUT_SECONDS):
            with self._lock:
                self._abandoned = self._is_filling
            if self._abandoned:
                return
        self._source.close()
