"""``SignalNotices``: signals that a program hears of, instead of being ended by them."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterable
from typing import Any

from stratagem._src.core.errors import ContextError
from stratagem._src.process.fork import in_child

__all__ = ["SignalNotices"]

_subscribers: dict[int, list[SignalNotices]] = {}
_handlers_before: dict[int, Any] = {}


class SignalNotices:
    """Collects signals, from when it is made until it is closed.

    Several may be there at a time, and each gets every signal. What a signal did before it does again
    when the last one that wants it is closed.

    >>> import os, signal
    >>> from stratagem._src.process.signal_notices import SignalNotices
    >>> notices = SignalNotices([signal.SIGUSR1])
    >>> os.kill(os.getpid(), signal.SIGUSR1)
    >>> signal.Signals(notices.received.get(timeout=10)).name
    'SIGUSR1'
    >>> notices.close()

    Args:
        signals: The signals.

    Attributes:
        received: Their numbers, in the order they came.

    Raises:
        ContextError: If it is made in another thread than the main thread, where Python handles signals.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ContextError(
                "Signals can be watched from the main thread only, got "
                f"{threading.current_thread().name!r}. Watch for preemption in the main thread."
            )
        # The only queue that a handler may use: it may interrupt whoever reads it.
        self.received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._signals = [int(number) for number in signals]
        for number in self._signals:
            subscribers = _subscribers.setdefault(number, [])
            subscribers.append(self)
            if len(subscribers) == 1:
                _handlers_before[number] = signal.signal(number, _receive)

    def close(self) -> None:
        """Leaves the signals to others, or to what they did before; harmless when done twice."""
        for number in self._signals:
            if self in _subscribers.get(number, ()):  # not in a forked child
                _subscribers[number].remove(self)
        self._signals = []
        if threading.current_thread() is not threading.main_thread():
            return  # the handler goes with the next one that is closed there
        for number in [number for number, those in _subscribers.items() if not those]:
            del _subscribers[number]
            before = _handlers_before.pop(number)
            # None: it was set by other means than Python, and cannot be set again by its means.
            signal.signal(number, signal.SIG_DFL if before is None else before)


@in_child
def _leave_to_children() -> None:
    """Lets a signal do in a forked child what it did before: there nobody reads the notices."""
    _subscribers.clear()
    while _handlers_before:
        number, before = _handlers_before.popitem()
        signal.signal(number, signal.SIG_DFL if before is None else before)


def _receive(number: int, frame: Any) -> None:
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
