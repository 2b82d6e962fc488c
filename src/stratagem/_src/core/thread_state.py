"""What a thread is in the midst of.

A question to ``threading.local`` takes as long as a dozen lines, and every call of a compiled step has to
ask. So all answers are in one object, and ``INSIDE`` says without a question that there is nothing to ask.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["INSIDE", "THIS_THREAD", "ThreadState"]


class ThreadState:
    """What one thread has entered and not left yet.

    Attributes:
        strategy_frames: The frames of ``current_strategy.context``, innermost last.
        state_frames: The frames of ``variables.access``, innermost last.
        journal: The journal of ``variables.access``, if there is one.
        tapes: What notes which variables are read, outermost first.
        reads_ahead: Whether it computes elements of a dataset before somebody asks for them.
    """

    __slots__ = ("journal", "reads_ahead", "state_frames", "strategy_frames", "tapes")

    def __init__(self) -> None:
        self.strategy_frames: list[Any] = []
        self.state_frames: list[Any] = []
        self.journal: Any = None
        self.tapes: list[Any] = []
        self.reads_ahead = False

    def will_enter(self) -> None:
        """Called before anything is entered."""
        INSIDE.add(self)

    def has_left(self) -> None:
        """Called after anything was left."""
        if not (self.strategy_frames or self.state_frames or self.journal or self.tapes):
            INSIDE.discard(self)


INSIDE: set[ThreadState] = set()
"""Every thread that has entered something and not left it; perhaps others, never less."""


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


THIS_THREAD = _ThisThread()
