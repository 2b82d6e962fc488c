"""Thread-local state: the scopes, frames, journals and tapes that a thread has entered.

A ``threading.local`` lookup takes as long as a dozen lines of Python, and every call of a compiled step
needs this state. So all of it is in one object, and an empty ``THREADS_IN_CONTEXT`` tells the fast path,
without a lookup, that no thread has entered anything.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["THIS_THREAD", "THREADS_IN_CONTEXT", "ThreadState"]


class ThreadState:
    """What one thread has entered and not exited yet.

    Attributes:
        strategy_frames: Stack of frames of ``current_strategy.context``, innermost last.
        state_frames: The frames of ``variables.frames``, innermost last.
        journal: The journal of ``variables.transactions``, if there is one.
        tapes: The gradient tapes that record reads of variables, outermost first.
        is_prefetching: Whether the thread computes elements of a dataset ahead of time.
        in_element_function: Whether the thread calls a function of ``Dataset.map`` or the like.
        step_keys: The keys that a step, traced for many runs, got for its random numbers.
    """

    __slots__ = (
        "in_element_function",
        "is_prefetching",
        "journal",
        "state_frames",
        "step_keys",
        "strategy_frames",
        "tapes",
    )

    def __init__(self) -> None:
        self.strategy_frames: list[Any] = []
        self.state_frames: list[Any] = []
        self.journal: Any = None
        self.tapes: list[Any] = []
        self.is_prefetching = False
        self.in_element_function = False
        self.step_keys: Any = None

    def before_enter(self) -> None:
        """Must be called before the thread enters anything."""
        THREADS_IN_CONTEXT.add(self)

    def after_exit(self) -> None:
        """Must be called after the thread exits anything."""
        if not (self.strategy_frames or self.state_frames or self.journal or self.tapes):
            THREADS_IN_CONTEXT.discard(self)


THREADS_IN_CONTEXT: set[ThreadState] = set()
"""Every thread that has entered something and not exited it. It may hold others too: a superset is safe."""


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


THIS_THREAD = _ThisThread()
