"""Calls of ``fit``, ``evaluate`` and similar methods: the running call, and locking between threads."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from stratagem._src.core.fair_lock import FairLock
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.integrations.keras.keras_internals import KerasModel
from stratagem._src.integrations.keras.model_state import trained_elsewhere_error
from stratagem._src.strategies.base import Strategy

__all__ = [
    "RunningCall",
    "begin_call",
    "called_method",
    "calling_method",
    "run_exclusively",
    "running_call",
]


@dataclass(frozen=True, slots=True)
class RunningCall:
    """One call of a model's ``fit``, ``evaluate``, ``predict`` or ``*_on_batch``.

    Args:
        model: The Keras model.
        strategy: The strategy of the model.
        surrounding: The exception that the caller handles.
    """

    model: Any
    strategy: Strategy
    surrounding: BaseException | None = None

    @property
    def is_failing(self) -> bool:
        """Whether an exception is leaving the call, whose ``finally`` blocks run."""
        return sys.exception() is not self.surrounding

    @property
    def compiles(self) -> bool:
        """Whether the model's steps are compiled, rather than run eagerly."""
        return bool(not self.model.run_eagerly and self.model.jit_compile)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[RunningCall] = []
        self.methods: list[tuple[Any, str]] = []


_calls = _Calls()


def running_call() -> RunningCall | None:
    """Returns the innermost running call of this thread."""
    return _calls.stack[-1] if _calls.stack else None


@contextlib.contextmanager
def begin_call(model: KerasModel, strategy: Strategy) -> Iterator[RunningCall]:
    """Makes a call the innermost one of this thread for the block."""
    call = RunningCall(model, strategy, sys.exception())
    _calls.stack.append(call)
    try:
        yield call
    finally:
        _calls.stack.pop()


@contextlib.contextmanager
def calling_method(model: KerasModel, name: str) -> Iterator[None]:
    """Records for the block that a method of a model, with or without a strategy, is called."""
    _calls.methods.append((model, name))
    try:
        yield
    finally:
        _calls.methods.pop()


def called_method(model: KerasModel) -> str:
    """Returns the innermost recorded method of a model that this thread is in; empty if none."""
    return next((name for called, name in reversed(_calls.methods) if called is model), "")


Result = TypeVar("Result")

_logger = logging.getLogger("stratagem")


class _ModelLock:
    """The lock of a model, with its current holder.

    Attributes:
        lock: Held by the thread that calls the model.
        call: The name of the called method.
        thread: The name of that thread.
    """

    def __init__(self) -> None:
        self.lock = FairLock()
        self.call = ""
        self.thread = ""


_model_locks: WeakIdentityMap[Any, _ModelLock] = WeakIdentityMap()


def run_exclusively(model: KerasModel, name: str, call: Callable[[], Result]) -> Result:
    """Runs a call of ``fit``, ``predict`` or a similar method, after those of other threads.

    A thread never waits for ``fit`` of another thread: ``fit`` takes long, and its callbacks may wait for
    the waiting thread, which would be a deadlock.

    Args:
        model: The Keras model.
        name: The name of the method.
        call: Calls the method.

    Raises:
        ContextError: If another thread is in ``fit`` of the model.
    """
    turns = _model_locks.setdefault(model, _ModelLock())
    if turns.lock.is_wanted_here():
        return call()  # a nested call, by a callback or a signal handler

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
