"""``Background``: the only place where threads are started; each has an owner who hears of its end."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from stratagem._src.process.fork import ProcessOwner

__all__ = ["Background", "BackgroundThread"]

BackgroundThread: TypeAlias = threading.Thread

_logger = logging.getLogger("stratagem")


class Background:
    """The threads that work for one owner.

    What a thread does not expect ends in the owner's next ``check`` with its own traceback; the owner
    calls it at the start of whatever it is asked. An owner that must act at once, because others wait
    for it, gives ``on_failure``. Either way the error is logged when it happens: an owner that is
    never asked again stays silent otherwise.

    >>> from stratagem._src.process.background import Background
    >>> background = Background("a counter")
    >>> thread = background.start(print, "counted", name="counting")
    counted
    >>> background.join(timeout=10)
    []
    >>> background.check()

    Args:
        owner: Who the threads work for, as logs shall name it.
        on_failure: Called in the failing thread with an exception that its target did not catch.

    Attributes:
        process: The process that has the threads.
    """

    def __init__(
        self, owner: str, *, on_failure: Callable[[BaseException], None] | None = None
    ) -> None:
        self._owner = owner
        self.process: ProcessOwner = ProcessOwner(owner)
        self._on_failure = on_failure
        # Reentrant: a signal handler may start a thread of the same owner.
        self._lock = threading.RLock()
        self._threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()
        self._failure: BaseException | None = None
        self._traceback: TracebackType | None = None

    def start(self, target: Callable[..., Any], *args: Any, name: str) -> BackgroundThread:
        """Starts a thread that calls ``target(*args)`` and does not keep the process from ending.

        Raises:
            ContextError: In a child that was forked since the owner was made.
        """
        self.process.check()
        thread = threading.Thread(target=self._run, args=(target, args), name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            # threading waits for the thread with a condition, which turns an interrupt into this.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise
        return thread

    def check(self) -> None:
        """Raises what ended a thread, if something did that nobody expected, and in a forked child."""
        self.process.check()
        failure = self._failure
        if failure is not None:
            # Raised from several calls, it would otherwise collect all their tracebacks.
            raise failure.with_traceback(self._traceback)

    def alive(self) -> list[BackgroundThread]:
        """Returns the threads that still run; none of them does in a forked child."""
        if not self.process.is_here:
            return []
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]

    def join(self, timeout: float) -> list[str]:
        """Waits for the threads and returns the names of those that still run after ``timeout``."""
        deadline = time.monotonic() + timeout
        for thread in self.alive():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return sorted(t.name for t in self.alive() if t is not threading.current_thread())

    def join_or_leave(self, timeout: float) -> bool:
        """Waits for the threads, and leaves those that still run after ``timeout`` to themselves.

        For threads that call users' code, which nobody can interrupt: they end when it returns. A
        warning says which code that is.

        Returns:
            Whether all have ended.
        """
        if not self.join(timeout):
            return True
        for thread in self.alive():
            if thread is not threading.current_thread():
                _logger.warning(
                    "Thread %r of %s has not ended within %g s, because %s has not returned. It is left "
                    "to itself and ends when that does, or with the process.",
                    thread.name,
                    self._owner,
                    timeout,
                    _users_code_in(thread),
                )
        return False

    def _run(self, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            target(*args)
        except BaseException as error:
            with self._lock:
                if self._failure is None:
                    self._failure, self._traceback = error, error.__traceback__
            _logger.exception(
                "Thread %r of %s ended by an error that nobody expected.",
                threading.current_thread().name,
                self._owner,
            )
            if self._on_failure is not None:
                self._on_failure(error)


def _users_code_in(thread: BackgroundThread) -> str:
    """Returns which function of a user's the thread is in, as far as Python knows."""
    frame = sys._current_frames().get(thread.ident or 0)
    found = "the code that it calls"
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (
            module != threading.__name__
            and module.partition(".")[0] != __package__.partition(".")[0]
        ):
            code = frame.f_code
            found = f"{code.co_qualname} ({code.co_filename}, line {frame.f_lineno})"
        frame = frame.f_back
    return found
