"""``ExitObserver``: finds the code with which the interpreter is about to exit."""

from __future__ import annotations

import dis
import signal
import sys
import threading
from types import FrameType
from typing import Any

from stratagem._src.process.exit_calls import exit_code

__all__ = ["ExitObserver"]


class ExitObserver:
    """Observes how the program leaves its outermost frame.

    The interpreter does not expose the code of a ``SystemExit``: when atexit handlers run, the exception is
    gone. So this traces the outermost frame, and no other. After ``start`` every Python call costs one
    extra call of an empty trace function.
    """

    def __init__(self) -> None:
        self._returned = False
        self._exit: SystemExit | None = None
        self._other: BaseException | None = None

    def start(self) -> None:
        """Starts to observe, if this is the main thread and no other trace function is set."""
        if threading.current_thread() is not threading.main_thread() or sys.gettrace() is not None:
            return
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        frame.f_trace = self._note
        sys.settrace(_trace_no_call)

    def code(self, otherwise: int) -> int:
        """Returns the code with which the interpreter is about to exit; negative for a signal.

        Args:
            otherwise: The code to return if nothing was observed.
        """
        if self._returned:
            return 0
        # The interpreter has printed every exception that left the outermost frame, except SystemExit.
        printed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if self._exit is not None and (printed is None or printed is not self._other):
            return exit_code(self._exit.code)
        if printed is None or hasattr(sys, "ps1"):
            return otherwise
        return -signal.SIGINT if isinstance(printed, KeyboardInterrupt) else 1

    def _note(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            error = arg[1]
            if isinstance(error, SystemExit):
                self._exit = error
            else:
                self._other = error
        elif event == "return":
            # The event also occurs when an exception leaves the frame; only the instruction tells.
            last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._returned = last.startswith("RETURN_")
        return self._note


def _trace_no_call(frame: FrameType, event: str, arg: Any) -> None:
    """Enables tracing without tracing new frames."""
