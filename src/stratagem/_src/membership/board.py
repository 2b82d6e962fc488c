"""What the meeting point knows and whom it tells: events in, messages out, no sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.membership.worker_status import PeerView, WorkerStatus

__all__ = ["Board", "Send", "distinct", "num_common", "runs_of", "values_of"]


_FORGOTTEN_SECONDS = 60.0
_MOST_EXCHANGES = 4096


class Send(NamedTuple):
    """A message for one worker."""

    worker: int
    message: dict[str, Any]


def runs_of(values: Sequence[Any]) -> list[list[Any]]:
    """Returns values as pairs of a value and how often it follows itself.

    Mostly all workers say the same. Then what each of them is told does not grow with their number.

    >>> runs_of([4, 4, 4, 3])
    [[4, 3], [3, 1]]
    """
    runs: list[list[Any]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def values_of(runs: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the values that ``runs_of`` made runs of.

    >>> values_of([[4, 3], [3, 1]])
    [4, 4, 4, 3]
    """
    return [value for value, count in runs for _ in range(count)]


def distinct(values: Sequence[Any]) -> list[Any]:
    """Returns each value once.

    >>> distinct([{"a": 1}, 2, {"a": 1}])
    [{'a': 1}, 2]
    """
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
    return seen


def num_common(lists: Sequence[Sequence[Any]]) -> int:
    """Returns how many of their first entries are the same in all lists.

    >>> num_common([[4, 4, 4], [4, 4], [4, 4, 3]])
    2
    """
    first = lists[0]
    num_same = min(map(len, lists))
    for other in lists:
        while num_same and other[:num_same] != first[:num_same]:
            num_same -= 1
    return num_same


class Board:
    """Keeps who is there, what each last said, and the exchanges that are not complete.

    Args:
        num_workers: How many are expected.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._start: dict[str, Any] | None = None
        self._views = [PeerView() for _ in range(num_workers)]
        self._heard = [0.0] * num_workers
        self._exchanges: dict[str, dict[int, dict[str, Any]]] = {}

    @property
    def num_exchanges(self) -> int:
        """How many exchanges some worker has begun and not all have completed."""
        return len(self._exchanges)

    def is_over(self, now: float) -> bool:
        """Returns whether nobody is there any more, after somebody was."""
        came = [index for index, view in enumerate(self._views) if not view.absent]
        return bool(came) and not any(self._is_there(index, now) for index in came)

    def _is_there(self, worker: int, now: float) -> bool:
        view = self._views[worker]
        is_silent = now - self._heard[worker] > _FORGOTTEN_SECONDS
        return not view.gone and view.left is None and not is_silent

    def join(self, worker: int, now: float) -> list[Send]:
        """Notes that a worker came; returns what to tell whom."""
        self._set(worker, absent=False)
        self._heard[worker] = now
        return self._tell_views(now) + self._tell_start()

    def open(self, start: dict[str, Any]) -> list[Send]:
        """Notes what every worker is told once all are there; returns what to tell whom."""
        self._start = start
        return self._tell_start()

    def refusal(self, worker: int, num_workers: object) -> str | None:
        """Returns why a worker cannot take part, or ``None`` if it can."""
        if num_workers != self._num_workers:
            return (
                f"the leader's cluster has {self._num_workers} workers, and that of process {worker} "
                f"has {num_workers}; give both the same cluster"
            )
        if not 0 <= worker < self._num_workers:
            return f"process {worker} is not in a cluster of {self._num_workers} workers"
        if not self._views[worker].absent:
            return f"process {worker} is here already; give each process its own task index"
        return None

    def receive(self, worker: int, message: dict[str, Any], now: float) -> list[Send]:
        """Notes what a worker says; returns what to tell whom.

        Raises:
            RendezvousError: If no worker of this version says that.
        """
        status = message.get("status")
        if status is not None:
            self._set(worker, status=WorkerStatus.from_json(status))
        self._heard[worker] = now
        if "leave" in message:
            self._exchanges.clear()  # none of them will ever be complete
            self._set(worker, left=str(message["leave"]))
            return self._tell_views(now)
        if "put" in message:
            return self._put(worker, str(message["put"]), message)
        if "withdraw" in message:
            self._withdraw(worker, str(message["withdraw"]))
        if "call" in message:
            why = str(message.get("why", ""))
            return self._tell_all({"called": str(message["call"]), "by": worker, "why": why})
        return []

    def lose(self, worker: int, now: float) -> list[Send]:
        """Notes that a worker's connection broke; returns what to tell whom."""
        self._exchanges.clear()
        self._set(worker, gone=True)
        return self._tell_views(now)

    def tick(self, now: float) -> list[Send]:
        """Returns what to tell whom at regular times."""
        return self._tell_views(now)

    def _put(self, worker: int, key: str, part: dict[str, Any]) -> list[Send]:
        if not self._all_take_part:
            return []
        if key not in self._exchanges and len(self._exchanges) >= _MOST_EXCHANGES:
            raise RendezvousError(
                f"Workers must complete or withdraw what they exchange: {_MOST_EXCHANGES} exchanges "
                f"wait for other workers, and process {worker} began another, {key!r}."
            )
        parts = self._exchanges.setdefault(key, {})
        parts[worker] = part
        if len(parts) < self._num_workers:
            return []
        del self._exchanges[key]
        values = [parts[index].get("value") for index in range(self._num_workers)]
        if "entries" not in part:
            return self._tell_all({"exchanged": key, "runs": runs_of(values)})
        common = num_common([part.get("entries", []) for part in parts.values()])
        return self._tell_all({"exchanged": key, "said": distinct(values), "common": common})

    def _withdraw(self, worker: int, key: str) -> None:
        parts = self._exchanges.get(key, {})
        parts.pop(worker, None)
        if not parts:
            self._exchanges.pop(key, None)

    @property
    def _all_take_part(self) -> bool:
        return not any(view.gone or view.left is not None for view in self._views)

    def _set(self, worker: int, **changes: Any) -> None:
        self._views[worker] = dataclasses.replace(self._views[worker], **changes)

    def _tell_views(self, now: float) -> list[Send]:
        views = [
            dataclasses.replace(view, silent=now - heard).to_json()
            for view, heard in zip(self._views, self._heard, strict=True)
        ]
        return self._tell_all({"peers": views})

    def _tell_start(self) -> list[Send]:
        if self._start is None or any(view.absent for view in self._views):
            return []
        return self._tell_all({"start": self._start})

    def _tell_all(self, message: dict[str, Any]) -> list[Send]:
        return [
            Send(worker, message)
            for worker, view in enumerate(self._views)
            if not view.absent and not view.gone and view.left is None
        ]
