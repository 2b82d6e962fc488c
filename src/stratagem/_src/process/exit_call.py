"""``sys.exit``, ``exit`` and ``quit``: with which code a program that called one of them is ending."""

from __future__ import annotations

import builtins
import sys
import threading
from typing import Any, NoReturn

__all__ = ["exit_code", "exit_code_of_call", "watch_exit_calls"]

_ending_with: int | None = None


def watch_exit_calls() -> None:
    """Has calls of ``sys.exit``, ``exit`` and ``quit`` noted from now on; nothing else gets slower.

    The interpreter tells nobody the code of a ``SystemExit``: when functions that were registered for
    exit run, the exception is gone. One that is raised without a call of these is not noted.
    """
    if sys.exit is not _exit:
        sys.exit = _exit
    for name in ("exit", "quit"):
        quitter = getattr(builtins, name, None)
        # Without ``site`` there is none; shells have their own.
        if type(quitter).__module__ == "_sitebuiltins":
            setattr(builtins, name, _Quitter(quitter))


def exit_code_of_call() -> int | None:
    """Returns the code with which such a call is ending the interpreter; ``None`` if none is."""
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


class _Quitter:
    """Takes the place of ``exit`` or ``quit``."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __repr__(self) -> str:
        return repr(self._original)

    def __call__(self, code: object = None) -> NoReturn:
        try:
            self._original(code)
        except SystemExit as error:
            _accompany(error)
            raise
        raise AssertionError(f"{self._original!r} returned")


def _accompany(error: SystemExit) -> None:
    error.__dict__["_companion"] = _Companion(exit_code(error.code))


def _exit(status: object = None, /) -> NoReturn:
    """Exits the interpreter by raising ``SystemExit(status)``."""
    error = SystemExit(*status) if isinstance(status, tuple) else SystemExit(status)
    _accompany(error)
    try:
        raise error
    finally:
        # The error's traceback leads here: it must not lead back to the error.
        del error
