"""``MembershipState``: the state machine of the membership server. Events in, messages out, no sockets."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.diagnosis import HEARTBEAT_TIMEOUT_SECONDS
from stratagem._src.control_plane.run_length import (
    common_prefix_length,
    distinct,
    run_length_encode,
)
from stratagem._src.control_plane.worker_status import PeerView, WorkerStatus, views_to_json

__all__ = ["MembershipState", "Send"]

_FORGET_SECONDS = 60.0
_MIN_REPORTED_AGE = 3
_MAX_PENDING_GATHERS = 4096


class Send(NamedTuple):
    """A message to send to one worker."""

    worker: int
    message: dict[str, Any]


class MembershipState:
    """Tracks the workers of a cluster, the last status of each, and the gathers in progress.

    When a worker joins, leaves or is lost, the next ``tick`` informs all workers. That batches changes: a
    thousand workers that join at once do not cause a thousand rounds of a thousand messages.

    Args:
        num_workers: The number of workers to expect.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._start: dict[str, Any] | None = None
        self._views = [PeerView() for _ in range(num_workers)]
        self._heard = [0.0] * num_workers
        self._num_absent = num_workers
        self._is_complete = True
        self._has_news = False
        self._gathers: dict[str, dict[int, dict[str, Any]]] = {}

    @property
    def num_pending_gathers(self) -> int:
        """The number of gathers that some workers have begun and not all have completed."""
        return len(self._gathers)

    @property
    def has_news(self) -> bool:
        """Whether there are changes since the last ``tick`` that all workers should learn soon."""
        return self._has_news

    def is_over(self, now: float, *, leader_has_ended: bool = False) -> bool:
        """Returns whether all workers that joined are gone, so that the server can exit.

        Args:
            now: The time.
            leader_has_ended: Whether the leader's process has ended. Then the server does not wait for
                workers that have exceeded the heartbeat timeout: they have given up too, or will not find
                their leader again.
        """
        limit = HEARTBEAT_TIMEOUT_SECONDS if leader_has_ended else _FORGET_SECONDS
        somebody_came = leader_has_ended or self._num_absent < self._num_workers
        return somebody_came and not any(
            view.is_there and now - heard <= limit
            for view, heard in zip(self._views, self._heard, strict=True)
        )

    def join(self, worker: int, now: float) -> list[Send]:
        """Records that a worker joined; returns the messages to send at once."""
        self._set(worker, absent=False)
        self._heard[worker] = now
        self._num_absent -= 1
        self._has_news = True
        return self._broadcast_start()

    def open(self, start: dict[str, Any]) -> list[Send]:
        """Sets the start message, which all workers get once all have joined; returns what to send now."""
        self._start = start
        return self._broadcast_start()

    def refusal(self, worker: int, num_workers: object) -> str | None:
        """Returns why a worker cannot join, or ``None`` if it can."""
        if num_workers != self._num_workers:
            return (
                f"the leader's cluster has {self._num_workers} workers, and that of process {worker} "
                f"has {num_workers}; give both the same cluster"
            )
        if not 0 <= worker < self._num_workers:
            return f"process {worker} is not in a cluster of {self._num_workers} workers"
        if not self._views[worker].absent:
            return f"process {worker} has already joined; give each process its own task index"
        return None

    def receive(self, worker: int, message: dict[str, Any], now: float) -> list[Send]:
        """Handles a message of a worker; returns the messages to send at once.

        Raises:
            RendezvousError: If no worker of this version sends such a message.
        """
        status = message.get("status")
        if status is not None:
            known, told = self._views[worker].status, WorkerStatus.from_json(status)
            self._set(worker, status=told)
            # It answers a status request that another worker waits for.
            self._has_news = self._has_news or told.heard != known.heard
        self._heard[worker] = now
        if "leave" in message:
            self._remove(worker, left=str(message["leave"]))
        if "put" in message:
            return self._put(worker, str(message["put"]), message)
        if "withdraw" in message:
            self._withdraw(worker, str(message["withdraw"]))
        if "ask" in message:
            return self._broadcast({"asked": int(message["ask"]), "by": worker})
        if "call" in message:
            why = str(message.get("why", ""))
            return self._broadcast({"called": str(message["call"]), "by": worker, "why": why})
        return []

    def lose(self, worker: int) -> None:
        """Records that the connection of a worker broke."""
        self._remove(worker, gone=True)

    def tick(self, now: float) -> list[Send]:
        """Returns the periodic heartbeats, with the views of all workers; also called soon after news."""
        self._has_news = False
        views = [
            dataclasses.replace(view, heartbeat_age=_reported_age(now - heard))
            if view.is_there
            else view
            for view, heard in zip(self._views, self._heard, strict=True)
        ]
        return self._broadcast({"peers": views_to_json(views)})

    def _remove(self, worker: int, **why: Any) -> None:
        self._set(worker, **why)
        self._is_complete = False
        self._gathers.clear()  # none of them can complete any more
        self._has_news = True

    def _put(self, worker: int, key: str, part: dict[str, Any]) -> list[Send]:
        if not self._is_complete:
            return []
        if key not in self._gathers and len(self._gathers) >= _MAX_PENDING_GATHERS:
            raise RendezvousError(
                f"Workers must complete or withdraw their gathers: {_MAX_PENDING_GATHERS} gathers wait for "
                f"other workers, and process {worker} began another, {key!r}."
            )
        # A worker has sent {"put": "programs/3", "value": ["step", "a1f"]}. With the last one the gather
        # is complete: values in rank order go to all, run-length encoded, since they are usually equal.
        parts = self._gathers.setdefault(key, {})
        parts[worker] = part
        if len(parts) < self._num_workers:
            return []
        del self._gathers[key]
        values = [parts[index].get("value") for index in range(self._num_workers)]
        if "entries" not in part:
            return self._broadcast({"exchanged": key, "runs": run_length_encode(values)})
        common = common_prefix_length([part.get("entries", []) for part in parts.values()])
        return self._broadcast({"exchanged": key, "said": distinct(values), "common": common})

    def _withdraw(self, worker: int, key: str) -> None:
        parts = self._gathers.get(key, {})
        parts.pop(worker, None)
        if not parts:
            self._gathers.pop(key, None)

    def _set(self, worker: int, **changes: Any) -> None:
        self._views[worker] = dataclasses.replace(self._views[worker], **changes)

    def _broadcast_start(self) -> list[Send]:
        if self._start is None or self._num_absent:
            return []
        return self._broadcast({"start": self._start})

    def _broadcast(self, message: dict[str, Any]) -> list[Send]:
        return [Send(worker, message) for worker, view in enumerate(self._views) if view.is_there]


def _reported_age(seconds: float) -> int:
    # Workers with timely heartbeats get equal views, which views_to_json sends only once.
    return int(seconds) if seconds >= _MIN_REPORTED_AGE else 0
