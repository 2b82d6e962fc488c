"""``PreemptionNotices``: how this process hears that it is to end."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable

from stratagem._src.process.background import Background
from stratagem._src.process.signal_notices import SignalNotices
from stratagem._src.training.termination_config import TerminationConfig

__all__ = ["PreemptionNotices"]

_logger = logging.getLogger("stratagem")
_SECONDS_BETWEEN_LOOKS = 1.0
_NO_SIGNAL = 0


class PreemptionNotices:
    """Watches for the first notice and passes it on, from a thread.

    Args:
        config: What is a notice.
        tell: Called with the reason, in words, in the thread.

    Raises:
        ContextError: If signals are to be watched and this is not the main thread.
    """

    def __init__(self, config: TerminationConfig, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._moment: float | None = None
        self._closed = threading.Event()
        self._signals = SignalNotices(config.signals_to_watch())
        self._background = Background("the watch for preemption")
        if config.termination_watcher_fn is None:
            self._background.start(self._wait_for_signals, name="preemption-signals")
        else:
            self._background.start(
                self._ask, config.termination_watcher_fn, name="preemption-watcher"
            )

    @property
    def moment(self) -> float | None:
        """When the notice came, on the monotonic clock; ``None`` if none has."""
        return self._moment

    def check(self) -> None:
        """Raises what the function that is asked for notices has raised."""
        self._background.check()

    def forget(self) -> None:
        """Lets the next notice be the first."""
        self._moment = None

    def close(self) -> None:
        """Watches no more."""
        self._closed.set()
        self._signals.close()
        self._signals.received.put(_NO_SIGNAL)

    def _wait_for_signals(self) -> None:
        while (number := self._signals.received.get()) != _NO_SIGNAL:
            self._notice(f"it got {signal.Signals(number).name}")

    def _ask(self, watcher: Callable[[], object]) -> None:
        while not self._closed.is_set():
            if watcher():
                self._notice("its termination_watcher_fn said so")
            self._closed.wait(_SECONDS_BETWEEN_LOOKS)

    def _notice(self, why: str) -> None:
        # Launchers and schedulers often send the same signal both.
        if self._moment is None:
            self._moment = time.monotonic()
            _logger.warning("This worker is to end: %s.", why)
            self._tell(why)
