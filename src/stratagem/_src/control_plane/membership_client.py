"""A worker's line to the meeting point."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.diagnosis import SILENT_SECONDS
from stratagem._src.control_plane.equal_values import values_of
from stratagem._src.control_plane.identities import MEETING, WORKER_ROLE
from stratagem._src.control_plane.suspend_aware_timer import Patience
from stratagem._src.control_plane.worker_status import (
    LEAVING,
    InputIteration,
    PeerView,
    WorkerStatus,
    views_from_json,
)
from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.mesh.dispatch_queue import Comparison
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials, Identity, connect
from stratagem._src.transport.duplex_stream import Conversation

__all__ = ["Call", "MeetingClient"]

_SECONDS_BETWEEN_TRIES = 0.1
_log = logging.getLogger("stratagem")
_SECONDS_TO_CONNECT = 10.0
_SECONDS_TO_LEAVE = 2.0
_BEAT_SECONDS = 0.5


class Call(NamedTuple):
    """Something that one worker tells all of them.

    Attributes:
        topic: What it is about.
        by: The number of the worker.
        why: The reason, in words.
    """

    topic: str
    by: int
    why: str


class MeetingClient:
    """Says how this worker is, hears how the others are, and exchanges values with them.

    Args:
        address: Of the meeting point.
        worker: The number of this worker.
        num_workers: How many there are.
        credentials: What the workers prove to each other.
        timeout: Seconds until the meeting point must answer.
        is_ended: Whether it is known that it will not.

    Attributes:
        own_host: The address of this machine on the way to the meeting point.
        server_host: The address of the meeting point's machine.

    Raises:
        UnavailableError: If it does not answer in time.
        UnauthenticatedError: If it and this worker do not trust each other.
        PermissionDeniedError: If the workers have nothing to prove themselves with.
        RendezvousError: If it refuses this worker.
    """

    def __init__(
        self,
        address: Address,
        worker: int,
        num_workers: int,
        credentials: Credentials,
        timeout: float,
        is_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._changed = threading.Condition()
        self._views = [PeerView() for _ in range(num_workers)]
        self._start: dict[str, Any] | None = None
        self._exchanging: set[str] = set()
        self._exchanged: dict[str, list[Any] | Comparison] = {}
        self._lost = False
        self._silence: Patience | None = None
        self._silent_seconds = 0.0
        self._status = WorkerStatus()
        self._inputs: tuple[str, ...] = ()
        self._begins: tuple[tuple[InputIteration, ...], InputIteration | None] = ((), None)
        self._meets = ""
        self._heard: dict[int, int] = {}
        self._calls: list[Call] = []
        self._listeners: list[Callable[[Call], None]] = []
        self._closed = threading.Event()
        self._conversation = _connect(address, worker, num_workers, credentials, timeout, is_ended)
        self.own_host, self.server_host = self._conversation.hosts
        self._background = Background(
            f"worker {worker}'s line to the meeting point", on_failure=lambda _: self._lose()
        )
        self._background.start(self._hear, name="meeting-hear")
        self._background.start(self._beat, name="meeting-beat")

    @property
    def start(self) -> dict[str, Any] | None:
        """What all workers were told when the last one came; ``None`` before."""
        return self._start

    @property
    def is_gone(self) -> bool:
        """Whether the connection to the meeting point has ended."""
        self._background.check()
        return self._lost

    @property
    def silent_seconds(self) -> float:
        """For how long nothing was heard of the meeting point, which speaks twice a second."""
        return self._silent_seconds

    @property
    def is_lost(self) -> bool:
        """Whether the meeting point is gone, or has been silent for the heartbeat timeout."""
        return self.is_gone or self._silent_seconds >= SILENT_SECONDS

    def views(self) -> list[PeerView]:
        """Returns what is known of every worker."""
        self._background.check()
        with self._changed:
            return list(self._views)

    def set_status(self, status: WorkerStatus, *, tell_now: bool = False) -> None:
        """Sets what the others are told of this worker, at the next beat or at once."""
        self._status = status
        if tell_now:
            self._tell_status()

    def set_inputs(self, inputs: tuple[str, ...]) -> None:
        """Sets what the others are told that this worker waits for beside the common sequence."""
        self._inputs = inputs

    def set_begins(
        self, begins: tuple[InputIteration, ...], main_begins: InputIteration | None
    ) -> None:
        """Sets what the others are told that this worker has begun to iterate over."""
        self._begins = begins, main_begins

    def set_meets(self, meets: str) -> None:
        """Sets what the others are told that this worker may do with them."""
        self._meets = meets

    def ask(self, number: int) -> None:
        """Has every worker say at once how it is, and hear of the others.

        Args:
            number: Of the question; what answers it says so.
        """
        self._background.check()
        self._conversation.say({"ask": number})

    def put(
        self, key: str, value: Any, *, entries: list[Any] | None = None, is_awaited: bool = True
    ) -> None:
        """Gives this worker's part of an exchange, or of a comparison.

        Args:
            key: Which exchange.
            value: Plain data of this worker.
            entries: What is compared; ``None`` if this is not a comparison.
            is_awaited: Whether this worker will take the parts of the others, or withdraw.
        """
        self._background.check()
        if is_awaited:
            with self._changed:
                self._exchanging.add(key)
        compared = {} if entries is None else {"entries": entries}
        self._conversation.say({"put": key, "value": value, **compared})

    def take(self, key: str, seconds: float) -> list[Any] | Comparison | None:
        """Returns what an exchange or a comparison gave, or ``None`` if it is not complete in time."""
        self._background.check()
        with self._changed:
            self._changed.wait_for(lambda: key in self._exchanged or self._lost, seconds)
            given = self._exchanged.pop(key, None)
            if given is not None:
                self._exchanging.discard(key)
            return given

    def withdraw(self, key: str) -> None:
        """Takes this worker's part of an exchange back; nobody keeps anything of it for this worker."""
        with self._changed:
            self._exchanging.discard(key)
            self._exchanged.pop(key, None)
        self._conversation.say({"withdraw": key})

    def call(self, topic: str, why: str) -> None:
        """Tells every worker, this one too, of something that they have not come to yet."""
        self._background.check()
        self._conversation.say({"call": topic, "why": why})

    def listen(self, listener: Callable[[Call], None]) -> None:
        """Has ``listener`` called, in a thread of the line, with every call; at once with earlier ones."""
        with self._changed:
            self._listeners.append(listener)
            earlier = list(self._calls)
        for call in earlier:
            listener(call)

    def ignore(self, listener: Callable[[Call], None]) -> None:
        """Has ``listener`` called no more."""
        with self._changed:
            self._listeners.remove(listener)

    def have_ended(self, workers: Iterable[int]) -> bool:
        """Returns whether these workers are at the end of their programs; also if nobody can tell."""
        views = self.views()
        return self.is_lost or all(
            views[w].gone or views[w].left is not None or views[w].status.phase == LEAVING
            for w in workers
        )

    def wait_for_change(self, ready: Callable[[], bool], seconds: float) -> None:
        """Waits until ``ready`` after some message, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(ready, seconds)

    def leave(self, reason: str, *, keep_line: bool = False) -> None:
        """Says goodbye.

        Args:
            reason: Why.
            keep_line: Whether the line stays until this process ends: by that the others see its end.
        """
        self._closed.set()
        self._conversation.say({"leave": reason})
        if keep_line:
            self._conversation.flush(_SECONDS_TO_LEAVE)
        else:
            self._conversation.finish(_SECONDS_TO_LEAVE)

    def close(self) -> None:
        """Closes the line."""
        self._closed.set()
        self._conversation.close()

    def _tell_status(self) -> None:
        begins, main_begins = self._begins
        status = dataclasses.replace(
            self._status,
            inputs=self._inputs,
            begins=begins,
            main_begins=main_begins,
            meets=self._meets,
            heard=tuple(sorted(self._heard.items())),
        )
        self._conversation.say({"status": status.to_json()})

    def _beat(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            self._tell_status()
            self._measure_silence()

    def _measure_silence(self) -> None:
        """Notes how long the server has been silent.

        The kernel would tell only after a quarter of an hour: heartbeats of this worker that nobody
        acknowledges are sent again and again, and keep its keepalive probes from being sent.
        """
        with self._changed:
            if self._silence is not None:
                self._silent_seconds = self._silence.seconds()
            if self._silent_seconds >= SILENT_SECONDS:
                self._changed.notify_all()

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._receive(self._conversation.hear())
        self._lose()

    def _lose(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _receive(self, message: dict[str, Any]) -> None:
        listeners: list[Callable[[Call], None]] = []
        with self._changed:
            if "start" in message:
                self._start = message["start"]
            elif "called" in message:
                self._calls.append(Call(message["called"], message["by"], message["why"]))
                listeners = list(self._listeners)
            elif "asked" in message:
                self._heard = {**self._heard, message["by"]: message["asked"]}
            elif "peers" in message:
                self._views = views_from_json(message["peers"])
                # From the first one on: until then the server may still be starting.
                self._silence, self._silent_seconds = Patience(), 0.0
            elif message.get("exchanged") in self._exchanging:
                self._exchanged[message["exchanged"]] = (
                    Comparison(message["said"], message["common"])
                    if "said" in message
                    else values_of(message["runs"])
                )
            self._changed.notify_all()
        if "asked" in message:
            self._tell_status()
        for listener in listeners:
            listener(self._calls[-1])


def _connect(
    address: Address,
    worker: int,
    num_workers: int,
    credentials: Credentials,
    timeout: float,
    is_ended: Callable[[], bool],
) -> Conversation:
    deadline = time.monotonic() + timeout
    own = Identity(WORKER_ROLE, worker)
    notice = WaitingNotice()
    while True:
        try:
            give_up = min(deadline, time.monotonic() + _SECONDS_TO_CONNECT)
            connection = connect(address, credentials, own=own, wanted=MEETING, deadline=give_up)
            return _introduce(Conversation(connection), address, num_workers, give_up)
        except (UnavailableError, DeadlineExceededError) as error:
            if time.monotonic() + _SECONDS_BETWEEN_TRIES > deadline or is_ended():
                raise UnavailableError(str(error)) from None
            if notice.is_due():
                _log.warning(
                    "process %d waits for the leader at %s (%.0f s of %g): %s",
                    worker,
                    address,
                    notice.seconds,
                    timeout,
                    error,
                )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _introduce(
    conversation: Conversation, address: Address, num_workers: int, deadline: float
) -> Conversation:
    conversation.say({"num_workers": num_workers})
    try:
        answer = conversation.hear(deadline)
    except OSError as error:
        conversation.close()
        raise UnavailableError(f"The leader at {address} left at once ({error}).") from None
    if "refused" in answer:
        conversation.close()
        raise RendezvousError(f"The leader at {address} refused this process: {answer['refused']}.")
    return conversation
