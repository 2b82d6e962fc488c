"""``JobDispatcher``: passes reports to the job's state machine and its orders to the nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stratagem._src.launcher.events import Order, Report
from stratagem._src.launcher.job_state import JobState

__all__ = ["JobDispatcher"]


class JobDispatcher:
    """Passes reports to the job's state machine, one at a time, and its orders to all nodes.

    Args:
        state: The state machine of the job.
        record: Called with every report and order, for monitoring.
    """

    def __init__(
        self, state: JobState, record: Callable[[Report | Order], None] = lambda _: None
    ) -> None:
        self.state = state
        self._record = record
        self._nodes: dict[int, Callable[[Order], None]] = {}
        self._reports: deque[Report] = deque()
        self._is_busy = False

    def add_node(self, rank: int, obey: Callable[[Order], None]) -> None:
        """Starts sending orders to a node."""
        self._nodes[rank] = obey

    def remove_node(self, rank: int) -> None:
        """Stops sending orders to a node."""
        self._nodes.pop(rank, None)

    def report(self, report: Report) -> None:
        """Handles a report and sends the resulting orders."""
        self._reports.append(report)
        # A node may report while it carries out an order. The loop below handles that report after all
        # nodes have received the current order, so that every node sees the same sequence of orders.
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._reports:
                next_report = self._reports.popleft()
                self._record(next_report)
                for order in self.state.handle(next_report):
                    self._record(order)
                    for obey in list(self._nodes.values()):
                        obey(order)
        finally:
            self._is_busy = False
