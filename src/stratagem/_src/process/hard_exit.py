"""``HardExit``: exits a process in which a thread is stuck in a wait that cannot be interrupted.

A thread that returns from XLA into an interpreter that is being finalized aborts the process, and killing
it first can leave a lock held that other threads need. So the interpreter is not finalized: after all
atexit handlers have run, files are flushed and the process exits with the code that it would have had.
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
from stratagem._src.process.exit_code import exit_code, record_exit_calls, trace_system_exit
from stratagem._src.process.fork import ProcessOwner, at_exit

__all__ = ["FailedExit", "HardExit", "after_all_exit_functions", "end_process"]

_FLUSH_TIMEOUT = 10.0
# The exit code that Python itself uses when it cannot flush standard output.
_CANNOT_FLUSH = 120


class HardExit:
    """Exits this process without finalizing the interpreter, if a thread is stuck by then.

    Args:
        is_stuck: Returns whether a thread is stuck.
    """

    def __init__(self, is_stuck: Callable[[], bool]) -> None:
        self._is_stuck = is_stuck
        self._is_decided = False
        record_exit_calls()
        after_all_exit_functions(self._end)

    def observe(self) -> None:
        """Starts to observe how the program ends. Called when a thread gets stuck."""
        trace_system_exit()

    def decide(self) -> bool:
        """Returns whether the process will exit this way, for handlers whose cleanup depends on it."""
        self._is_decided = self._is_decided or self._is_stuck()
        return self._is_decided

    def _end(self) -> None:
        if self.decide():
            code = exit_code()
            # Something has failed. Exiting with 0 without evidence of success would hide it.
            end_process(1 if code is None else code)


class FailedExit:
    """Exits with a non-zero code if there is a failure that the program has not been told of.

    atexit handlers cannot set the exit code. So, if there is a failure after all of them have run, the
    process exits here.

    Args:
        failure: Returns the error text to print; ``None`` if nothing failed.
    """

    def __init__(self, failure: Callable[[], str | None]) -> None:
        self._failure = failure
        record_exit_calls()
        after_all_exit_functions(self._end)

    def _end(self) -> None:
        text = self._failure()
        if text is not None:
            end_process(exit_code() or 1, text)


def after_all_exit_functions(function: Callable[[], None]) -> None:
    """Calls a function at the exit of this process, after all atexit handlers."""
    at_exit(_AfterAllOthers(function))


def end_process(code: int, text: str = "") -> NoReturn:
    """Exits this process at once, whatever its other threads do, after flushing files.

    Args:
        code: The exit code; a negative signal number to die by that signal.
        text: The text to print on standard error.
    """
    if not _flush_in_time(text) and code == 0:
        code = _CANNOT_FLUSH
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


class _AfterAllOthers:
    """Calls a function after all other atexit handlers.

    atexit runs the handler that was registered first last, and that may be any library's. But it drops all
    handlers together after the last one has run and before the interpreter is finalized; so this calls the
    function when it is dropped itself.
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
    """Prints ``text`` and flushes all files; returns whether standard output was flushed."""
    flushed: list[bool] = []

    def flush() -> None:
        flushed.append(_flush_standard_streams(text))
        _flush_open_files()

    background = Background("the end of the process")
    try:
        background.start(flush, name="flush-files")
    except RuntimeError:  # too late to start a thread
        flush()
    # A flush may block forever on a pipe without a reader.
    background.join(_FLUSH_TIMEOUT)
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
    """Flushes files that were never closed, as the interpreter does at exit."""
    gc.unfreeze()  # gc.get_objects does not list frozen objects
    for file in gc.get_objects():
        if issubclass(type(file), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
