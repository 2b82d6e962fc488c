"""Finds the code with which the interpreter is about to exit.

The interpreter does not expose the code of a ``SystemExit``: when atexit handlers run, the exception is
gone. So calls of ``sys.exit``, ``exit`` and ``quit`` are recorded, which slows nothing else down. Whether
the last of them ended the program, or was caught, shows in the outermost frame: it has returned, or not.
"""

from __future__ import annotations

import builtins
import dis
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from stratagem._src.process.fork import ProcessOwner, at_exit

__all__ = ["exit_code", "record_exit_calls", "trace_system_exit", "uncaught_exception"]


class _Program:
    """What is known of the end of this process.

    Attributes:
        outermost: The outermost frame of the main thread, until it has ended.
        requested: The exit code that the last call of ``sys.exit`` asked for.
        code: The exit code, when the frame has ended and it is known.
    """

    def __init__(self, outermost: FrameType | None = None) -> None:
        self.owner = ProcessOwner("the exit code")
        self.outermost = outermost
        self.requested: int | None = None
        self.code: int | None = None

    def end(self) -> None:
        """Finds the exit code. The first exit function calls it."""
        if self.outermost is not None:
            self.code = _code(self.outermost, self.requested)
            # The frame would keep the variables of the program alive.
            self.outermost = None


_program = _Program()


def record_exit_calls() -> None:
    """Records calls of ``sys.exit``, ``exit`` and ``quit`` of the main thread from now on."""
    global _program
    if _program.outermost is None or not _program.owner.is_here:
        frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        _program = _Program(frame)
        at_exit(_program.end)
    if sys.exit is not _exit:
        sys.exit = _exit
    for name in ("exit", "quit"):
        quitter: Any = getattr(builtins, name, None)
        # Without the module ``site`` there is none; interactive shells have their own.
        if type(quitter).__module__ == "_sitebuiltins":
            setattr(builtins, name, _Quitter(quitter))


def exit_code() -> int | None:
    """Returns the code with which the interpreter is about to exit; negative for a signal.

    ``None`` if it is unknown: after a ``SystemExit`` that was raised without ``sys.exit``, and in an
    interactive interpreter. Call it in an exit function.
    """
    _program.end()
    return _program.code


def _code(frame: FrameType, requested: int | None) -> int | None:
    if hasattr(sys, "ps1"):
        return None
    if frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_"):
        return 0
    error = uncaught_exception()
    # Test runners set the same attributes for exceptions that they caught.
    if error is not None and error.__traceback__ and error.__traceback__.tb_frame is frame:
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return requested


def trace_system_exit() -> None:
    """Records also a ``SystemExit`` that is raised without ``sys.exit``, in the main thread.

    ``python -m pytest`` ends this way. Nothing but a trace of the outermost frame shows it, and then every
    Python call costs one more call of an empty function. So this is for a program that has failed already.
    """
    frame = _program.outermost
    is_main = threading.current_thread() is threading.main_thread()
    if frame is not None and is_main and sys.gettrace() is None:
        frame.f_trace = _note
        sys.settrace(_trace_no_call)


def _note(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "exception" and isinstance(arg[1], SystemExit):
        _record(arg[1].code)
    return _note


def _trace_no_call(frame: FrameType, event: str, arg: Any) -> None:
    """Enables tracing without tracing new frames."""


def uncaught_exception() -> BaseException | None:
    """Returns the uncaught exception that the interpreter has printed, if any."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


class _Quitter:
    """Replaces ``exit`` or ``quit``."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __repr__(self) -> str:
        return repr(self._original)

    def __call__(self, code: object = None) -> NoReturn:
        _record(code)
        self._original(code)
        raise AssertionError(f"{self._original!r} returned")


def _exit(status: object = None, /) -> NoReturn:
    """Exits the interpreter by raising ``SystemExit(status)``."""
    error = SystemExit(*status) if isinstance(status, tuple) else SystemExit(status)
    _record(error.code)
    raise error


def _record(code: object) -> None:
    if threading.current_thread() is threading.main_thread():
        # The interpreter prints an object that is not a number, and exits with 1.
        number = code & 0xFF if isinstance(code, int) else 1
        _program.requested = 0 if code is None else number
