"""Who waits for whom, found by comparing how long the same program took in every worker.

A program of all workers ends everywhere at about the same time, because its collectives do. So it takes
longest for who begins first and waits for the others, and least for who begins last. The difference to the
least is waiting. No clocks are compared.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["JointPrograms", "WaitingShare"]

_MOST_PROGRAMS = 256
_MOST_OF_A_SAMPLE = 64
"""So that those of two workers overlap, whose samples are made at different times."""
_FEWEST_TO_NAME = 5
_SHARE_TO_NAME = 0.1


@dataclass(frozen=True)
class WaitingShare:
    """How a worker did in the programs that are known of all.

    Attributes:
        waited: The share of their time that it waited for others.
        came_last: The share of programs to which it came last.
    """

    waited: float = 0.0
    came_last: float = 0.0


class JointPrograms:
    """How long the latest programs that workers run together took in each.

    >>> from stratagem._src.telemetry.monitoring.waiting import JointPrograms
    >>> programs = JointPrograms()
    >>> programs.add("worker 0", [(number, 0.10) for number in range(10)])
    >>> programs.add("worker 1", [(number, 0.04) for number in range(10)])
    >>> round(programs.shares()["worker 0"].waited, 2)
    0.6
    >>> programs.straggler()
    'worker 1'
    """

    def __init__(self) -> None:
        self._seconds: dict[str, collections.OrderedDict[int, float]] = {}

    def add(self, task: str, programs: list[tuple[int, float]]) -> None:
        """Takes in the numbers and seconds of the programs of a sample, in the order in which they ran.

        Of very many it keeps every second, or fourth, or eighth: of each worker the same ones.
        """
        known = self._seconds.setdefault(task, collections.OrderedDict())
        stride = 1
        while len(programs) > _MOST_OF_A_SAMPLE * stride:
            stride *= 2
        for number, seconds in programs:
            if number % stride:
                continue
            if known and number <= next(reversed(known)):
                known.clear()  # the workers have met anew, and count from the start
            known[number] = seconds
            if len(known) > _MOST_PROGRAMS:
                known.popitem(last=False)
        if not known:
            del self._seconds[task]

    def forget(self, task: str) -> None:
        """Takes in that a worker's process is gone."""
        self._seconds.pop(task, None)

    def shares(self) -> Mapping[str, WaitingShare]:
        """Returns how every worker did, for as many programs as are known of all of them."""
        if len(self._seconds) < 2:
            return {}
        common = set.intersection(*map(set, self._seconds.values()))
        if not common:
            return {}
        totals = dict.fromkeys(self._seconds, 0.0)
        waited = dict.fromkeys(self._seconds, 0.0)
        last = collections.Counter[str]()
        for number in common:
            took = {task: known[number] for task, known in self._seconds.items()}
            slowest = min(took, key=took.__getitem__)
            last[slowest] += 1
            for task, seconds in took.items():
                totals[task] += seconds
                waited[task] += seconds - took[slowest]
        return {
            task: WaitingShare(waited[task] / (totals[task] or 1.0), last[task] / len(common))
            for task in self._seconds
        }

    def straggler(self) -> str | None:
        """Returns the worker for which the others wait, if it is one, and noticeably."""
        shares = self.shares()
        if not shares or min(map(len, self._seconds.values())) < _FEWEST_TO_NAME:
            return None
        latest = max(shares, key=lambda task: shares[task].came_last)
        others = [share.waited for task, share in shares.items() if task != latest]
        is_alone = shares[latest].came_last >= 0.5
        more = sum(others) / len(others) - shares[latest].waited
        return latest if is_alone and more >= _SHARE_TO_NAME else None
