"""``PreemptionNotices``: watches for preemption notices: signals, or a user's function."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable

from stratagem._src.process.background import Background
from stratagem._src.process.signal_queue import SignalQueue
from stratagem._src.training.termination_config import TerminationConfig

__all__ = ["PreemptionNotices"]

_logger = logging.getLogger("stratagem")
_POLL_SECONDS = 1.0
_NO_SIGNAL = 0


class PreemptionNotices:
    """Watches for the first notice in a background thread and reports it.

    Args:
        config: Says which events are notices.
        tell: Called in that thread with the reason as text.

    Raises:
        ContextError: If signals must be watched and this is not the main thread.
    """

    def __init__(self, config: TerminationConfig, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._moment: float | None = None
        self._closed = threading.Event()
        self._signals = SignalQueue(config.signals_to_watch())
        self._background = Background("the preemption watcher")
        if config.termination_watcher_fn is None:
            self._background.start(self._wait_for_signals, name="preemption-signals")
        else:
            self._background.start(
                self._ask, config.termination_watcher_fn, name="preemption-watcher"
            )

    @property
    def moment(self) -> float | None:
        """When the notice came, on the monotonic clock; ``None`` if there was none."""
        return self._moment

    def check(self) -> None:
        """Raises the exception that the user's watcher function has raised, if any."""
        self._background.check()

    def forget(self) -> None:
        """Resets the watcher, so that the next notice counts as the first."""
        self._moment = None

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()
        self._signals.close()
        self._signals.received.put(_NO_SIGNAL)

    def _wait_for_signals(self) -> None:
        while (number := self._signals.received.get()) != _NO_SIGNAL:
            self._notice(f"it received {signal.Signals(number).name}")

    def _ask(self, watcher: Callable[[], object]) -> None:
        while not self._closed.is_set():
            if watcher():
                self._notice("its termination_watcher_fn returned true")
            self._closed.wait(_POLL_SECONDS)

    def _notice(self, why: str) -> None:
        # A launcher and a scheduler often both send the same signal.
        if self._moment is None:
            self._moment = time.monotonic()
            _logger.warning("This worker is being preempted: %s.", why)
            self._tell(why)
