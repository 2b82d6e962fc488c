"""Calls of one model by several threads: one after the other."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from stratagem._src.core.fair_lock import FairLock
from stratagem._src.integrations.keras.model_state import trained_elsewhere_error

__all__ = ["take_turn"]

Result = TypeVar("Result")

_logger = logging.getLogger("stratagem")


class _Turns:
    """Whose turn it is with a model.

    Attributes:
        lock: Held by the thread that calls the model.
        call: The name of that call.
        thread: The name of that thread.
    """

    def __init__(self) -> None:
        self.lock = FairLock()
        self.call = ""
        self.thread = ""


_turns: weakref.WeakKeyDictionary[Any, _Turns] = weakref.WeakKeyDictionary()


def take_turn(model: Any, name: str, call: Callable[[], Result]) -> Result:
    """Returns what a call of ``fit``, ``predict`` and the like returns, after those of other threads.

    Nobody waits for ``fit``: it takes long, and its callbacks may wait for the thread that would wait.

    Args:
        model: The Keras model.
        name: The name of the method.
        call: Calls it.

    Raises:
        ContextError: If another thread is in ``fit`` of the model.
    """
    turns = _turns.setdefault(model, _Turns())
    if turns.lock.is_wanted_here():
        return call()  # by a callback, or a signal handler

    def check(seconds: float) -> None:
        if turns.lock.is_taken and turns.call == "fit":
            raise trained_elsewhere_error(model, turns.thread)
        if seconds:
            _logger.warning(
                "Thread %r has waited %.0f s to call %s() of the Keras model %r: thread %r is in %s().",
                threading.current_thread().name,
                seconds,
                name,
                model.name,
                turns.thread,
                turns.call,
            )

    def run() -> Result:
        turns.call, turns.thread = name, threading.current_thread().name
        return call()

    check(0.0)
    return turns.lock.run(run, check)
