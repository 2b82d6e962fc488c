"""``JobHost``: carries reports to the job's state and its orders to the nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stratagem._src.launcher.events import Order, Report
from stratagem._src.launcher.job_state import JobState

__all__ = ["JobHost"]


class JobHost:
    """Carries reports to the job's state, one at a time, and its orders to all nodes.

    Args:
        state: The state of the job.
        observe: Called with every report and order, if somebody observes the job.
    """

    def __init__(
        self, state: JobState, observe: Callable[[Report | Order], None] = lambda _: None
    ) -> None:
        self.state = state
        self._observe = observe
        self._nodes: dict[int, Callable[[Order], None]] = {}
        self._reports: deque[Report] = deque()
        self._is_busy = False

    def add_node(self, rank: int, obey: Callable[[Order], None]) -> None:
        """Sends orders to a node from now on."""
        self._nodes[rank] = obey

    def remove_node(self, rank: int) -> None:
        """Sends no more orders to a node."""
        self._nodes.pop(rank, None)

    def report(self, report: Report) -> None:
        """Tells the job something, and has its orders carried out."""
        self._reports.append(report)
        if self._is_busy:  # a node reports while it obeys
            return
        self._is_busy = True
        try:
            while self._reports:
                next_report = self._reports.popleft()
                self._observe(next_report)
                for order in self.state.handle(next_report):
                    self._observe(order)
                    for obey in list(self._nodes.values()):
                        obey(order)
        finally:
            self._is_busy = False
