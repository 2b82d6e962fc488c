"""``Background``: the only place that starts threads; each thread has an owner that gets its errors."""

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
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler

__all__ = ["Background", "BackgroundThread"]

BackgroundThread: TypeAlias = threading.Thread

_logger = logging.getLogger("stratagem")


class Background:
    """The background threads of one owner.

    The owner's next ``check`` raises an unexpected exception of a thread, with its original traceback; the
    owner calls ``check`` at the start of its public methods. An owner that must act at once, because others
    wait for it, passes ``on_failure``. The error is also logged when it happens, because the owner may
    never be called again.

    >>> from stratagem._src.process.background import Background
    >>> background = Background("a counter")
    >>> thread = background.start(print, "counted", name="counting")
    counted
    >>> background.join(timeout=10)
    []
    >>> background.check()

    Args:
        owner: The name of the owner, for logs.
        on_failure: Called in the failing thread with an exception that its target did not catch.

    Attributes:
        process: The process that owns the threads.
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
        """Starts a daemon thread that calls ``target(*args)``.

        Raises:
            ContextError: In a child that was forked since the owner was created.
        """
        self.process.check()
        thread = threading.Thread(target=self._run, args=(target, args), name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except (RuntimeError, KeyError) as error:
            # Thread.start waits with a condition, which turns an interrupt into another error.
            interrupt = error.__context__
            if interrupt is not None and (
                isinstance(interrupt, KeyboardInterrupt) or is_raised_by_signal_handler(interrupt)
            ):
                raise interrupt from None
            raise
        return thread

    def check(self) -> None:
        """Raises the unexpected exception that ended a thread, if any; also raises in a forked child."""
        self.process.check()
        failure = self._failure
        if failure is not None:
            # Without this, the exception would collect the tracebacks of all calls that raise it.
            raise failure.with_traceback(self._traceback)

    def alive(self) -> list[BackgroundThread]:
        """Returns the threads that are still running; in a forked child there are none."""
        if not self.process.is_here:
            return []
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]

    def join(self, timeout: float) -> list[str]:
        """Waits for the threads; returns the names of those that are still running after ``timeout``."""
        deadline = time.monotonic() + timeout
        for thread in self.alive():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return sorted(t.name for t in self.alive() if t is not threading.current_thread())

    def join_or_abandon(self, timeout: float) -> bool:
        """Waits for the threads, and abandons those that are still running after ``timeout``.

        For threads that call user code, which cannot be interrupted: they end when it returns. A warning
        names that code.

        Returns:
            Whether all threads have ended.
        """
        if not self.join(timeout):
            return True
        for thread in self.alive():
            if thread is not threading.current_thread():
                _logger.warning(
                    "Thread %r of %s has not ended within %g s, because %s has not returned. It is "
                    "abandoned, and ends when that returns, or with the process.",
                    thread.name,
                    self._owner,
                    timeout,
                    _user_code_in(thread),
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
                "Thread %r of %s ended with an unexpected error.",
                threading.current_thread().name,
                self._owner,
            )
            if self._on_failure is not None:
                self._on_failure(error)


def _user_code_in(thread: BackgroundThread) -> str:
    """Returns the user function that the thread is executing, as far as Python knows."""
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
