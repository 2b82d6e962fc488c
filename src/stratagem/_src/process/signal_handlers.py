"""Tells whether code runs in a signal handler of the user."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from types import CodeType, FrameType
from typing import Any

__all__ = ["in_signal_handler"]


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
        if frame.f_code in _known_codes and _is_passed(frame.f_back, frame):
            return True
        frame = frame.f_back
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


def _is_passed(below: FrameType | None, frame: FrameType) -> bool:
    """Returns whether a frame was called with ``below`` as an argument, unlike in a call by user code."""
    for value in frame.f_locals.values():
        if value is below or (isinstance(value, tuple) and any(item is below for item in value)):
            return True
    return False
