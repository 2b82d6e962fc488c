"""``ExitObserver``: with which code the interpreter is about to end."""

from __future__ import annotations

import dis
import signal
import sys
import threading
from types import FrameType
from typing import Any

from stratagem._src.process.exit_call import exit_code

__all__ = ["ExitObserver"]


class ExitObserver:
    """Watches how the program leaves its outermost frame.

    The interpreter tells nobody the code of a ``SystemExit``: when functions that were registered for
    exit run, the exception is gone. So the outermost frame is traced, and no other: what comes after
    ``start`` gets slower by a call of a function that does nothing for each call.
    """

    def __init__(self) -> None:
        self._returned = False
        self._exit: SystemExit | None = None
        self._other: BaseException | None = None

    def start(self) -> None:
        """Starts to watch, if this is the main thread and nobody else watches it already."""
        if threading.current_thread() is not threading.main_thread() or sys.gettrace() is not None:
            return
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        frame.f_trace = self._note
        sys.settrace(_trace_no_call)

    def code(self, otherwise: int) -> int:
        """Returns the code with which the interpreter is about to end; minus a signal for that.

        Args:
            otherwise: The code if nothing was seen.
        """
        if self._returned:
            return 0
        # Of exceptions that left the outermost frame, the interpreter has printed all but SystemExit.
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
            # It is called for exceptions too, and says nothing of them.
            last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._returned = last.startswith("RETURN_")
        return self._note


def _trace_no_call(frame: FrameType, event: str, arg: Any) -> None:
    """Turns tracing on without tracing anything new."""
