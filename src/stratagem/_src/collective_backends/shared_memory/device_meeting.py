"""``DeviceMeeting``: the devices of this process in one exchange, which the last of them does for all.

Each waits in a thread of XLA's, as it does in XLA's own collectives: these, too, hold a thread for each
device, and XLA has as many.
"""

from __future__ import annotations

import threading

from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collective_backends.shared_memory.exchanged_array import Share
from stratagem._src.collective_backends.shared_memory.local_group import ABANDONED, DIFFERENT
from stratagem._src.collective_backends.shared_memory.shared_exchange import ArrayExchange

__all__ = ["DeviceMeeting"]

_SECONDS_PER_LOOK = 0.05
_OVERLAP = "Two exchanges through shared memory have begun at the same time."


class _Turn:
    """One exchange.

    Args:
        combination: What becomes of the arrays.
        num_devices: How many devices come to it.
    """

    def __init__(self, combination: Combination, num_devices: int) -> None:
        self.combination = combination
        self.num_devices = num_devices
        self.shares: dict[int, Share] = {}
        self.problem: str | None = None
        self.is_over = threading.Event()


class DeviceMeeting:
    """Where the devices of this process meet for each exchange with other processes.

    Args:
        exchange: What they exchange through.
    """

    def __init__(self, exchange: ArrayExchange) -> None:
        self.exchange = exchange
        self._lock = threading.Lock()
        self._turn: _Turn | None = None
        self._is_exchanging = threading.Lock()

    def take_part(
        self, combination: Combination, device: int, num_devices: int, share: Share
    ) -> str | None:
        """Fills a device's results, once all devices of this process and the others have come.

        Args:
            combination: What becomes of the arrays.
            device: The number of the device among those of this process.
            num_devices: How many of them come.
            share: What the device brings and gets.

        Returns:
            What went wrong, if anything.
        """
        with self._lock:
            if self.exchange.is_abandoned:
                return ABANDONED
            turn = self._turn
            if turn is None:
                turn = self._turn = _Turn(combination, num_devices)
            expected = (turn.combination, turn.num_devices)
            if expected != (combination, num_devices) or device in turn.shares:
                self.exchange.abandon()
                return DIFFERENT
            turn.shares[device] = share
            is_last = len(turn.shares) == num_devices
            if is_last:
                self._turn = None
        if is_last:
            self._run(turn)
        else:
            self._wait(turn)
        return turn.problem

    def _run(self, turn: _Turn) -> None:
        shares = [turn.shares[device] for device in sorted(turn.shares)]
        if self._is_exchanging.acquire(blocking=False):
            try:
                turn.problem = self.exchange.exchange(turn.combination, shares)
            except BaseException as error:
                self.exchange.abandon()
                turn.problem = repr(error)
            finally:
                self._is_exchanging.release()
        else:
            self.exchange.abandon()
            turn.problem = _OVERLAP
        turn.is_over.set()

    def _wait(self, turn: _Turn) -> None:
        while not turn.is_over.wait(_SECONDS_PER_LOOK):
            with self._lock:
                # Once it has begun it uses the memory of all devices, and ends by itself.
                if self._turn is turn and self.exchange.is_abandoned:
                    turn.problem = ABANDONED
                    return
