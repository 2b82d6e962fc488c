"""``SignalQueue``: receives signals in a queue, instead of their default action."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from stratagem._src.core.errors import ContextError
from stratagem._src.process.fork import run_in_child

__all__ = ["SignalQueue"]

_subscribers: dict[int, list[SignalQueue]] = {}
_handlers_before: dict[int, Any] = {}


class SignalQueue:
    """Collects signals from its creation until it is closed.

    Several queues may exist at a time, and each gets every signal. The previous handler of a signal is
    restored when the last queue for it is closed.

    >>> import os, signal
    >>> from stratagem._src.process.signal_queue import SignalQueue
    >>> notices = SignalQueue([signal.SIGUSR1])
    >>> os.kill(os.getpid(), signal.SIGUSR1)
    >>> signal.Signals(notices.received.get(timeout=10)).name
    'SIGUSR1'
    >>> notices.close()

    Args:
        signals: The signals.

    Attributes:
        received: The numbers of received signals, in order.

    Raises:
        ContextError: If it is created outside the main thread, where Python handles signals.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ContextError(
                "Signal handlers can be set in the main thread only, got the thread "
                f"{threading.current_thread().name!r}. Watch for preemption in the main thread."
            )
        # SimpleQueue is reentrant: a signal handler may interrupt the thread that reads it.
        self.received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._signals = [int(number) for number in signals]
        for number in self._signals:
            subscribers = _subscribers.setdefault(number, [])
            subscribers.append(self)
            if len(subscribers) == 1:
                _handlers_before[number] = signal.signal(number, _receive)

    def close(self) -> None:
        """Stops receiving, and restores the handlers that no other queue needs. Idempotent."""
        for number in self._signals:
            if self in _subscribers.get(number, ()):  # not in a forked child
                _subscribers[number].remove(self)
        self._signals = []
        if threading.current_thread() is not threading.main_thread():
            return  # the next close() in the main thread restores the handlers
        for number in [number for number, those in _subscribers.items() if not those]:
            del _subscribers[number]
            before = _handlers_before.pop(number)
            # None: the handler was not set from Python, so Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if before is None else before)


@run_in_child
def _leave_to_children() -> None:
    """Restores the previous handlers in a forked child, where nothing reads the queues."""
    _subscribers.clear()
    while _handlers_before:
        number, before = _handlers_before.popitem()
        signal.signal(number, signal.SIG_DFL if before is None else before)


def _receive(number: int, frame: FrameType | None) -> None:
    subscribers = _subscribers.get(number)
    if subscribers:
        for subscriber in subscribers:
            subscriber.received.put(number)
        return
    before = _handlers_before.get(number)
    if callable(before):
        before(number, frame)
    elif before != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
