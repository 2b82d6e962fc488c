"""Tells whether code runs in a signal handler of the user, and whether an exception comes from one."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

__all__ = ["in_signal_handler", "is_raised_by_signal_handler"]


def in_signal_handler() -> bool:
    """Returns whether this thread runs a signal handler that is written in Python.

    Python does not say so. But it runs handlers only in the main thread, and passes each the frame that it
    interrupts, which is also the frame below the handler's own. Takes about 10 us.
    """
    # `threading.current_thread()` would leave a dummy thread behind for each thread of XLA that calls back.
    if threading.get_ident() != threading.main_thread().ident:
        return False
    _known_codes.update(code for number in _SIGNALS if (code := _code(signal.getsignal(number))))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _known_codes and any(
            f is frame.f_back for f in _frames_passed_to(frame)
        ):
            return True
        frame = frame.f_back
    return False


def is_raised_by_signal_handler(error: BaseException) -> bool:
    """Returns whether a signal handler that is written in Python raised an exception.

    Code that skips or reports errors of its callees must not take such an exception for one of them: it
    interrupts the program at any place, as Ctrl-C does.
    """
    # Not by the code of the installed handlers: it may have installed another one before it raised. Nor
    # only the frame just above: code of Cython puts frames of its own into the traceback.
    above: list[FrameType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if any(passed is one for passed in _frames_passed_to(frame) for one in above):
            return True
        above.append(frame)
        traceback = traceback.tb_next
    return False


_SIGNALS = sorted(signal.valid_signals())

_known_codes: set[CodeType] = set()
"""The code of all handlers seen so far: a handler may have installed another one when this is asked."""


def _code(handler: Any) -> CodeType | None:
    """Returns the code of a handler; ``None`` if it is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _frames_passed_to(frame: FrameType) -> Iterator[FrameType]:
    """Yields the frames that a frame was called with, as handlers are, and code of users is not."""
    for value in frame.f_locals.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, FrameType):
                yield item
