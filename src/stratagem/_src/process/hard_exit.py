"""``HardExit``: the end of a process in which a thread waits and cannot be called back.

A thread that comes back from XLA into an interpreter that is being finalized aborts the process, and
stopping it first can stop it with a lock that everybody needs. So the interpreter is not finalized: when
all that was registered for exit has run, files are flushed and the process ends with the code that it
would have had.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from stratagem._src.process.background import Background
from stratagem._src.process.exit_call import exit_code_of_call, watch_exit_calls
from stratagem._src.process.exit_observer import ExitObserver
from stratagem._src.process.fork import ProcessOwner, at_exit

__all__ = ["FailedExit", "HardExit", "after_all_exit_functions", "end_process"]

_FLUSH_SECONDS = 10.0
# What Python itself ends with when it cannot flush its standard output.
_CANNOT_FLUSH = 120


class HardExit:
    """Ends this process without finalizing the interpreter, if something is stuck by then.

    Args:
        is_stuck: Whether it is.
    """

    def __init__(self, is_stuck: Callable[[], bool]) -> None:
        self._is_stuck = is_stuck
        self._is_decided = False
        self._observer = ExitObserver()
        after_all_exit_functions(self._end)

    def observe(self) -> None:
        """Begins to observe with which code the program ends, because something is stuck."""
        self._observer.start()

    def decide(self) -> bool:
        """Returns whether the process ends so, for those who must clean up differently then."""
        self._is_decided = self._is_decided or self._is_stuck()
        return self._is_decided

    def _end(self) -> None:
        if self.decide():
            # Something has failed: to end with 0 without having seen so would be to hide it.
            end_process(self._observer.code(otherwise=1))


class FailedExit:
    """Ends this process with another code than 0, if something failed and the program was not told.

    The interpreter takes no code from functions that are registered for exit. So, if there is a failure
    when all of them have run, the process ends here.

    Args:
        failure: Returns what failed, to be shown; ``None`` if nothing did.
    """

    def __init__(self, failure: Callable[[], str | None]) -> None:
        self._failure = failure
        watch_exit_calls()
        after_all_exit_functions(self._end)

    def _end(self) -> None:
        text = self._failure()
        if text is not None:
            printed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            interrupted = isinstance(printed, KeyboardInterrupt)
            end_process(-signal.SIGINT if interrupted else exit_code_of_call() or 1, text)


def after_all_exit_functions(function: Callable[[], None]) -> None:
    """Has a function called at the end of this process, after all that is registered for exit."""
    at_exit(_AfterAllOthers(function))


def end_process(code: int, text: str = "") -> NoReturn:
    """Ends this process at once, whatever its other threads do; files are flushed.

    Args:
        code: The exit code; minus a signal to end by that.
        text: What to say on standard error.
    """
    if not _flush_in_time(text) and code == 0:
        code = _CANNOT_FLUSH
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


class _AfterAllOthers:
    """Calls a function when every other that was registered for exit has been called.

    Whatever was registered first runs last, and that may have been anybody. But the registered functions
    are thrown away together after the last has run, and before the interpreter is finalized.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._owner = ProcessOwner("the end of the process")
        self._is_exit = False

    def __call__(self) -> None:
        self._is_exit = True

    def __del__(self) -> None:
        if self._is_exit and self._owner.is_here:
            self._function()


def _flush_in_time(text: str) -> bool:
    """Says ``text`` and flushes all files; returns whether the standard output could be."""
    flushed: list[bool] = []

    def flush() -> None:
        flushed.append(_flush_standard_streams(text))
        _flush_open_files()

    background = Background("the end of the process")
    try:
        background.start(flush, name="flush-files")
    except RuntimeError:  # Python starts no more threads
        flush()
    # A file may be a pipe that nobody reads.
    background.join(_FLUSH_SECONDS)
    return flushed == [True]


def _flush_standard_streams(text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if text and sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def _flush_open_files() -> None:
    """Does what the end of the interpreter does to files that were never closed."""
    gc.unfreeze()  # objects that a program froze before it forked are listed only then
    for file in gc.get_objects():
        if issubclass(type(file), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
