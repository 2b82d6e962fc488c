"""Records the exit code of calls of ``sys.exit``, ``exit`` and ``quit``."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["exit_code", "exit_code_of_call", "record_exit_calls"]

_ending_with: int | None = None


def record_exit_calls() -> None:
    """Records calls of ``sys.exit``, ``exit`` and ``quit`` from now on; nothing else gets slower.

    The interpreter does not expose the code of a ``SystemExit``: when atexit handlers run, the exception is
    gone. A ``SystemExit`` that is raised without these functions is not recorded.
    """
    if sys.exit is not _exit:
        sys.exit = _exit
    for name in ("exit", "quit"):
        quitter: Any = getattr(builtins, name, None)
        # Without the module ``site`` there is none; interactive shells have their own.
        if type(quitter).__module__ == "_sitebuiltins":
            setattr(builtins, name, _Quitter(quitter))


def exit_code_of_call() -> int | None:
    """Returns the exit code of the call that is ending the interpreter; ``None`` if there is none."""
    return _ending_with


def exit_code(code: object) -> int:
    """Returns the exit code of a process that ends with ``SystemExit(code)``."""
    if code is None:
        return 0
    # The interpreter prints any other object, and exits with 1.
    return code & 0xFF if isinstance(code, int) else 1


class _ReleaseObserver:
    """An attribute of an exception that detects who releases the exception.

    If Python code catches the exception, the frame that releases it has a caller. If the interpreter itself
    releases it, there is no calling frame, and the interpreter is about to exit.
    """

    def __init__(self, code: int) -> None:
        self._code = code

    def __del__(self) -> None:
        global _ending_with
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and sys._getframe().f_back is None:
            _ending_with = self._code


class _Quitter:
    """Replaces ``exit`` or ``quit``."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __repr__(self) -> str:
        return repr(self._original)

    def __call__(self, code: object = None) -> NoReturn:
        try:
            self._original(code)
        except SystemExit as error:
            _attach_observer(error)
            raise
        raise AssertionError(f"{self._original!r} returned")


def _attach_observer(error: SystemExit) -> None:
    error.__dict__["_release_observer"] = _ReleaseObserver(exit_code(error.code))


def _exit(status: object = None, /) -> NoReturn:
    """Exits the interpreter by raising ``SystemExit(status)``."""
    error = SystemExit(*status) if isinstance(status, tuple) else SystemExit(status)
    _attach_observer(error)
    try:
        raise error
    finally:
        # The traceback of the error refers to this frame. Avoid a reference cycle, which would keep the
        # error alive after it is handled.
        del error
