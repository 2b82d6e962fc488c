"""``sys.exit``: with which code a program that called it is ending."""

from __future__ import annotations

import sys
import threading
from typing import NoReturn

__all__ = ["exit_code", "exit_code_of_call", "watch_exit_calls"]

_ending_with: int | None = None


def watch_exit_calls() -> None:
    """Has calls of ``sys.exit`` noted from now on; nothing else gets slower.

    The interpreter tells nobody the code of a ``SystemExit``: when functions that were registered for
    exit run, the exception is gone. One that is raised without ``sys.exit`` is not noted.
    """
    if sys.exit is not _exit:
        sys.exit = _exit


def exit_code_of_call() -> int | None:
    """Returns the code with which ``sys.exit`` is ending the interpreter; ``None`` if it is not."""
    return _ending_with


def exit_code(code: object) -> int:
    """Returns the code with which a process ends whose ``SystemExit`` has this one."""
    if code is None:
        return 0
    # The interpreter prints anything else than a number.
    return code & 0xFF if isinstance(code, int) else 1


class _Companion:
    """Goes with an exception, and sees who lets go of that.

    Whoever catches it is a function that was called by others, or by nobody: then it is the interpreter,
    which is about to end.
    """

    def __init__(self, code: int) -> None:
        self._code = code

    def __del__(self) -> None:
        global _ending_with
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and sys._getframe().f_back is None:
            _ending_with = self._code


def _exit(status: object = None, /) -> NoReturn:
    """Exits the interpreter by raising ``SystemExit(status)``."""
    error = SystemExit(*status) if isinstance(status, tuple) else SystemExit(status)
    error.__dict__["_companion"] = _Companion(exit_code(error.code))
    try:
        raise error
    finally:
        # The error's traceback leads here: it must not lead back to the error.
        del error
