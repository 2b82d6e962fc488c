"""``CoordinatedStop``: stops the loops of all workers at the same iteration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from stratagem._src.control_plane.failure_detector import FailureDetector
from stratagem._src.control_plane.membership_client import Broadcast

__all__ = ["BroadcastChannel", "ClusterBroadcast", "CoordinatedStop", "LocalBroadcast"]


class BroadcastChannel(Protocol):
    """Sends messages to all workers, this one included."""

    def broadcast(self, topic: str, why: str) -> None:
        """Sends a message to all workers."""

    def add_listener(self, listener: Callable[[Broadcast], None]) -> None:
        """Calls ``listener`` with every broadcast, possibly in another thread."""

    def remove_listener(self, listener: Callable[[Broadcast], None]) -> None:
        """Stops calling ``listener``."""

    def answer(self, key: str, value: int) -> None:
        """Contributes this worker's answer, without waiting."""

    def take_answers(self, key: str) -> list[Any]:
        """Waits for the answers of all workers."""


class CoordinatedStop:
    """Stops all workers at the same iteration of their loops, when one of them requests it.

    Every worker reaches a *boundary* in each iteration of its loop. When one worker requests a stop, each
    worker answers at once, from another thread, with the number of boundaries it has passed, and passes no
    further boundary before it knows all answers. The largest answer is the number of the common boundary:
    no worker has passed it, and every worker reaches it. No worker waits for the loop of another, so
    workers that still wait for each other in a collective finish that step.

    Without a request, a boundary costs one lock and no communication. Boundaries are counted from the
    creation of the object, so all workers create it at the same place of their programs.

    >>> from stratagem._src.control_plane.coordinated_stop import CoordinatedStop, LocalBroadcast
    >>> stop = CoordinatedStop(LocalBroadcast(), "preemption")
    >>> stop.reach_boundary()
    False
    >>> stop.request("SIGTERM")
    >>> stop.reach_boundary(), stop.reach_boundary()
    (True, False)

    Args:
        channel: The channel to all workers.
        topic: The topic of the requests.
    """

    def __init__(self, channel: BroadcastChannel, topic: str) -> None:
        self._channel = channel
        self._topic = topic
        self._lock = threading.Lock()
        self._round = 0
        self._passed = 0
        self._is_requested = False
        self._is_next_requested = False
        self._common: int | None = None
        channel.add_listener(self._on_broadcast)

    def request(self, why: str) -> None:
        """Requests that all workers stop. Further requests before they do are for the same stop."""
        with self._lock:
            key = self._key(self._round)
        self._channel.broadcast(key, why)

    def reach_boundary(self) -> bool:
        """Reaches the next boundary; returns whether all workers stop here.

        Raises:
            UnavailableError: If another worker is gone, suspended, or does not answer in time.
        """
        with self._lock:
            if not self._is_requested:
                self._passed += 1
                return False
            key = self._key(self._round)
        # Workers that had passed 7, 9 and 8 boundaries when they heard of the request stop at boundary 9:
        # the first passes two more, and the second none.
        if self._common is None:
            self._common = max(self._channel.take_answers(key))
        with self._lock:
            is_common = self._passed == self._common
            self._passed += 1
            passed = self._passed
            if is_common:
                self._round += 1
                self._common = None
                self._is_requested, self._is_next_requested = self._is_next_requested, False
            is_requested_again = is_common and self._is_requested
            next_key = self._key(self._round)
        if is_requested_again:
            self._channel.answer(next_key, passed)
        return is_common

    def close(self) -> None:
        """Ignores further requests."""
        self._channel.remove_listener(self._on_broadcast)

    def _key(self, number: int) -> str:
        return f"{self._topic}/{number}"

    def _on_broadcast(self, message: Broadcast) -> None:
        with self._lock:
            # A worker that has stopped already may request the next stop before this one has stopped.
            if message.topic == self._key(self._round + 1):
                self._is_next_requested = True
                return
            # Ignores late requests for a past stop, and repeated ones for the next.
            if message.topic != self._key(self._round) or self._is_requested:
                return
            self._is_requested = True
            passed = self._passed
        self._channel.answer(message.topic, passed)


class ClusterBroadcast:
    """The channel to the workers of a cluster.

    Args:
        watch: The failure detector of the cluster.
        what: What workers wait for, in messages.
    """

    def __init__(self, watch: FailureDetector, what: str) -> None:
        self._watch = watch
        self._what = what
        self.broadcast = watch.membership.broadcast
        self.add_listener = watch.membership.add_listener
        self.remove_listener = watch.membership.remove_listener

    def answer(self, key: str, value: int) -> None:
        """Contributes this worker's answer, without waiting."""
        self._watch.membership.put(key, value)

    def take_answers(self, key: str) -> list[Any]:
        """Waits for the answers of all workers."""
        return self._watch.take_answers(key, self._what)


class LocalBroadcast:
    """The channel of a process that is the only worker."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Broadcast], None]] = []
        self._answer = 0

    def broadcast(self, topic: str, why: str) -> None:
        """Sends a message to the listeners of this process."""
        for listener in list(self._listeners):
            listener(Broadcast(topic, 0, why))

    def add_listener(self, listener: Callable[[Broadcast], None]) -> None:
        """Calls ``listener`` with every broadcast from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[Broadcast], None]) -> None:
        """Stops calling ``listener``."""
        self._listeners.remove(listener)

    def answer(self, key: str, value: int) -> None:
        """Sets this worker's answer."""
        self._answer = value

    def take_answers(self, key: str) -> list[Any]:
        """Returns the answer of this worker."""
        return [self._answer]
