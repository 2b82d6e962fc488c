"""``ProgramRunner``: runs programs in a thread of its own, so that the caller can poll meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.jax_compat import jax_settings
from stratagem._src.process.background import Background, BackgroundThread

__all__ = ["ProgramRunner", "Running"]


class Running:
    """A running program, and its results or error when it has finished."""

    def __init__(self, program: Callable[[], Any]) -> None:
        self.program: Callable[[], Any] | None = program
        self.settings = jax_settings.current_settings()
        # Held until the program has finished. A plain lock, because waiting for an Event is slower.
        self.unfinished = threading.Lock()
        self.unfinished.acquire()
        self.is_finished = False
        self.results: Any = None
        self.error: BaseException | None = None


class ProgramRunner:
    """Runs one program after the other.

    Launching a program may take as long as running it, because XLA runs small programs inline. So the
    launch happens in the thread too.

    Args:
        background: The owner of the thread.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._queue: queue.SimpleQueue[Running | None] = queue.SimpleQueue()
        self._thread: BackgroundThread | None = None
        self._last: Running | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a program runs, or is stuck."""
        return self._last is not None and not self._last.is_finished

    def begin(self, program: Callable[[], Any]) -> Running:
        """Starts ``program``, with the JAX settings of the calling thread."""
        self._background.check()
        if self._thread is None:
            self._thread = self._background.start(self._work, name="workers-program")
        self._last = running = Running(program)
        self._queue.put(running)
        return running

    def close(self, wait_seconds: float) -> None:
        """Ends the thread, unless a program is stuck in it.

        Args:
            wait_seconds: Seconds to wait for a running program.
        """
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(wait_seconds)

    def _work(self) -> None:
        while (running := self._queue.get()) is not None:
            try:
                with jax_settings.applied(running.settings):
                    assert running.program is not None
                    running.results = jax.block_until_ready(running.program())
            except BaseException as error:
                running.error = error
            running.program = None
            running.is_finished = True
            running.unfinished.release()
            del running
