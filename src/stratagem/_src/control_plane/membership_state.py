"""What the meeting point knows and whom it tells: events in, messages out, no sockets."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.diagnosis import SILENT_SECONDS
from stratagem._src.control_plane.equal_values import distinct, num_common, runs_of
from stratagem._src.control_plane.worker_status import PeerView, WorkerStatus, views_to_json

__all__ = ["Board", "Send"]

_FORGOTTEN_SECONDS = 60.0
_NOTED_SECONDS = 3
_MOST_EXCHANGES = 4096


class Send(NamedTuple):
    """A message for one worker."""

    worker: int
    message: dict[str, Any]


class Board:
    """Keeps who is there, what each last said, and the exchanges that are not complete.

    Who comes, leaves or is lost is news. All are told of it by the next ``tick``, so that a thousand
    workers that come at once do not cause a thousand rounds of a thousand messages.

    Args:
        num_workers: How many are expected.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._start: dict[str, Any] | None = None
        self._views = [PeerView() for _ in range(num_workers)]
        self._heard = [0.0] * num_workers
        self._num_absent = num_workers
        self._all_take_part = True
        self._has_news = False
        self._exchanges: dict[str, dict[int, dict[str, Any]]] = {}

    @property
    def num_exchanges(self) -> int:
        """How many exchanges some worker has begun and not all have completed."""
        return len(self._exchanges)

    @property
    def has_news(self) -> bool:
        """Whether something has happened since the last ``tick`` that all should know soon."""
        return self._has_news

    def is_over(self, now: float, *, leader_has_ended: bool = False) -> bool:
        """Returns whether nobody is there any more, after somebody was.

        Args:
            now: The time.
            leader_has_ended: Then nobody needs the server who has not sent heartbeats for their timeout:
                it has given up too, or will not find its leader again.
        """
        limit = SILENT_SECONDS if leader_has_ended else _FORGOTTEN_SECONDS
        somebody_came = leader_has_ended or self._num_absent < self._num_workers
        return somebody_came and not any(
            view.is_there and now - heard <= limit
            for view, heard in zip(self._views, self._heard, strict=True)
        )

    def join(self, worker: int, now: float) -> list[Send]:
        """Notes that a worker came; returns what to tell whom at once."""
        self._set(worker, absent=False)
        self._heard[worker] = now
        self._num_absent -= 1
        self._has_news = True
        return self._tell_start()

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
        """Notes what a worker says; returns what to tell whom at once.

        Raises:
            RendezvousError: If no worker of this version says that.
        """
        status = message.get("status")
        if status is not None:
            known, told = self._views[worker].status, WorkerStatus.from_json(status)
            self._set(worker, status=told)
            # Somebody waits for the answer.
            self._has_news = self._has_news or told.heard != known.heard
        self._heard[worker] = now
        if "leave" in message:
            self._part_with(worker, left=str(message["leave"]))
        if "put" in message:
            return self._put(worker, str(message["put"]), message)
        if "withdraw" in message:
            self._withdraw(worker, str(message["withdraw"]))
        if "ask" in message:
            return self._tell_all({"asked": int(message["ask"]), "by": worker})
        if "call" in message:
            why = str(message.get("why", ""))
            return self._tell_all({"called": str(message["call"]), "by": worker, "why": why})
        return []

    def lose(self, worker: int) -> None:
        """Notes that a worker's connection broke."""
        self._part_with(worker, gone=True)

    def tick(self, now: float) -> list[Send]:
        """Returns what to tell whom at regular times, and soon after news."""
        self._has_news = False
        views = [
            dataclasses.replace(view, silent=_said_silence(now - heard)) if view.is_there else view
            for view, heard in zip(self._views, self._heard, strict=True)
        ]
        return self._tell_all({"peers": views_to_json(views)})

    def _part_with(self, worker: int, **why: Any) -> None:
        self._set(worker, **why)
        self._all_take_part = False
        self._exchanges.clear()  # none of them will ever be complete
        self._has_news = True

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

    def _set(self, worker: int, **changes: Any) -> None:
        self._views[worker] = dataclasses.replace(self._views[worker], **changes)

    def _tell_start(self) -> list[Send]:
        if self._start is None or self._num_absent:
            return []
        return self._tell_all({"start": self._start})

    def _tell_all(self, message: dict[str, Any]) -> list[Send]:
        return [Send(worker, message) for worker, view in enumerate(self._views) if view.is_there]


def _said_silence(seconds: float) -> int:
    # Workers that speak as often as they should look alike, and travel as one.
    return int(seconds) if seconds >= _NOTED_SECONDS else 0
