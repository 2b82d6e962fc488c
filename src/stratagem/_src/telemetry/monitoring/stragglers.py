"""Finds stragglers by comparing how long the same program took in every worker.

A multi-process program ends everywhere at about the same time, because its collectives do. So it takes
longest in the worker that starts first and waits for the others, and shortest in the worker that starts
last. The difference to the shortest time is waiting. No clocks are compared.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MultiProcessPrograms", "WaitingShare"]

_MAX_PROGRAMS = 256
_MAX_PROGRAMS_PER_SAMPLE = 64
"""A fraction of the kept programs, so that the programs of two workers overlap although their samples are
taken at different times."""
_MIN_PROGRAMS = 5
_MIN_WAITING_SHARE = 0.1


@dataclass(frozen=True)
class WaitingShare:
    """The waiting of a worker in the programs that are known of all workers.

    Attributes:
        waited: The share of their time that the worker waited for others.
        came_last: The share of programs that the worker started last.
    """

    waited: float = 0.0
    came_last: float = 0.0


class MultiProcessPrograms:
    """The durations of the latest multi-process programs in each worker.

    >>> from stratagem._src.telemetry.monitoring.stragglers import MultiProcessPrograms
    >>> programs = MultiProcessPrograms()
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
        """Adds the numbers and seconds of the programs of a sample, in the order in which they ran.

        Of very many programs it keeps every second, fourth or eighth, the same ones for each worker.
        """
        known = self._seconds.setdefault(task, collections.OrderedDict())
        stride = 1
        while len(programs) > _MAX_PROGRAMS_PER_SAMPLE * stride:
            stride *= 2
        for number, seconds in programs:
            if number % stride:
                continue
            if known and number <= next(reversed(known)):
                known.clear()  # the workers have re-formed, and number programs from the start
            known[number] = seconds
            if len(known) > _MAX_PROGRAMS:
                known.popitem(last=False)
        if not known:
            del self._seconds[task]

    def forget(self, task: str) -> None:
        """Forgets the programs of a worker whose process has ended."""
        self._seconds.pop(task, None)

    def shares(self) -> Mapping[str, WaitingShare]:
        """Returns the waiting share of every worker, over the programs that are known of all workers."""
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
            # The worker with the shortest time started last: it is the slowest one.
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
        """Returns the worker that the others wait for, if there is one and the waiting is noticeable."""
        shares = self.shares()
        if not shares or min(map(len, self._seconds.values())) < _MIN_PROGRAMS:
            return None
        latest = max(shares, key=lambda task: shares[task].came_last)
        others = [share.waited for task, share in shares.items() if task != latest]
        is_alone = shares[latest].came_last >= 0.5
        more = sum(others) / len(others) - shares[latest].waited
        return latest if is_alone and more >= _MIN_WAITING_SHARE else None
