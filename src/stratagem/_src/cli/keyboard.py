"""``Keyboard``: single keys from the terminal, without Enter."""

from __future__ import annotations

import os
import select
import sys
import time
from types import TracebackType
from typing import Any

try:
    import termios
    import tty
except ImportError:  # Windows has neither; there only Ctrl-C ends a view
    termios = tty = None  # type: ignore[assignment]

__all__ = ["Keyboard"]


class Keyboard:
    """Reads keys while it is open, and restores the terminal's settings afterwards.

    Without a terminal as standard input, no key is ever pressed.
    """

    def __init__(self) -> None:
        self._settings: list[Any] | None = None
        self._file = -1

    def __enter__(self) -> Keyboard:
        if termios is not None and sys.stdin is not None and sys.stdin.isatty():
            self._file = sys.stdin.fileno()
            self._settings = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)  # keys arrive at once and are not echoed; Ctrl-C still works
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._settings is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._settings)

    def pressed(self, key: str, seconds: float) -> bool:
        """Waits up to ``seconds``, and returns whether ``key`` was pressed.

        Args:
            key: A character.
            seconds: How long to wait for it.
        """
        if self._settings is None:
            time.sleep(seconds)
            return False
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if not select.select([self._file], [], [], max(left, 0.0))[0]:
                return False
            typed = os.read(self._file, 1024)  # sys.stdin would buffer keys where select sees none
            if key.encode() in typed:
                return True
            if not typed:  # the terminal is gone
                time.sleep(max(left, 0.0))
                return False
