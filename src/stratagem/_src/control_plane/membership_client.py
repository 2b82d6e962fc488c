"""``MembershipClient``: a worker's connection to the membership server."""

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
from stratagem._src.control_plane.diagnosis import HEARTBEAT_TIMEOUT_SECONDS
from stratagem._src.control_plane.identities import MEMBERSHIP_SERVER, WORKER_ROLE
from stratagem._src.control_plane.run_length import run_length_decode
from stratagem._src.control_plane.suspend_aware_timer import SuspendAwareTimer
from stratagem._src.control_plane.worker_status import (
    LEAVING,
    InputIteration,
    PeerView,
    WorkerStatus,
    views_from_json,
)
from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.mesh.process_monitor import Comparison
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials, Identity, connect
from stratagem._src.transport.duplex_stream import DuplexStream

__all__ = ["Broadcast", "MembershipClient"]

_RETRY_SECONDS = 0.1
_log = logging.getLogger("stratagem")
_CONNECT_TIMEOUT = 10.0
_LEAVE_TIMEOUT = 2.0
_HEARTBEAT_SECONDS = 0.5


class Broadcast(NamedTuple):
    """A message that one worker has sent to all workers.

    Attributes:
        topic: The topic.
        by: The rank of the sender.
        why: The reason, as text.
    """

    topic: str
    by: int
    why: str


class MembershipClient:
    """Sends the heartbeats and the status of this worker, receives those of the others, and gathers values.

    Args:
        address: The address of the membership server.
        worker: The rank of this worker.
        num_workers: The number of workers.
        credentials: The credentials of the cluster.
        timeout: Seconds until the membership server must respond.
        is_ended: Returns whether the server is known to have ended.

    Attributes:
        own_host: The address of this machine on the connection to the membership server.
        server_host: The address of the membership server's machine.

    Raises:
        UnavailableError: If the server does not respond in time.
        UnauthenticatedError: If the server and this worker do not authenticate each other.
        PermissionDeniedError: If there are no credentials and the server is on another machine.
        RendezvousError: If the server refuses this worker.
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
        self._awaited: set[str] = set()
        self._gathered: dict[str, list[Any] | Comparison] = {}
        self._lost = False
        self._since_heartbeat: SuspendAwareTimer | None = None
        self._heartbeat_age = 0.0
        self._status = WorkerStatus()
        self._inputs: tuple[str, ...] = ()
        self._begins: tuple[tuple[InputIteration, ...], InputIteration | None] = ((), None)
        self._barrier = ""
        self._heard: dict[int, int] = {}
        self._broadcasts: list[Broadcast] = []
        self._listeners: list[Callable[[Broadcast], None]] = []
        self._closed = threading.Event()
        self._stream = _connect(address, worker, num_workers, credentials, timeout, is_ended)
        self.own_host, self.server_host = self._stream.hosts
        self._background = Background(
            f"worker {worker}'s connection to the membership server",
            on_failure=lambda _: self._mark_lost(),
        )
        self._background.start(self._receive_loop, name="membership-receive")
        self._background.start(self._heartbeat_loop, name="membership-heartbeat")

    @property
    def start(self) -> dict[str, Any] | None:
        """The start message that all workers receive when the last one has joined; ``None`` before."""
        return self._start

    @property
    def is_disconnected(self) -> bool:
        """Whether the connection to the membership server has ended."""
        self._background.check()
        return self._lost

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the membership server, which sends two per second."""
        return self._heartbeat_age

    @property
    def is_lost(self) -> bool:
        """Whether the membership server is disconnected, or has exceeded the heartbeat timeout."""
        return self.is_disconnected or self._heartbeat_age >= HEARTBEAT_TIMEOUT_SECONDS

    def views(self) -> list[PeerView]:
        """Returns the last known state of every worker."""
        self._background.check()
        with self._changed:
            return list(self._views)

    def set_status(self, status: WorkerStatus, *, send_now: bool = False) -> None:
        """Sets the status that the others see; sends it with the next heartbeat, or at once."""
        self._status = status
        if send_now:
            self._send_status()

    def set_inputs(self, inputs: tuple[str, ...]) -> None:
        """Sets what this worker waits for outside the common sequence, as part of its status."""
        self._inputs = inputs

    def set_begins(
        self, begins: tuple[InputIteration, ...], main_begins: InputIteration | None
    ) -> None:
        """Sets the iterations that this worker has begun, as part of its status."""
        self._begins = begins, main_begins

    def set_barrier(self, barrier: str) -> None:
        """Sets the optional barrier that this worker waits at, as part of its status."""
        self._barrier = barrier

    def request_status(self, number: int) -> None:
        """Requests the current status of every worker, without waiting for the next heartbeat.

        Args:
            number: The number of the request. A status that answers it contains the number.
        """
        self._background.check()
        self._stream.send({"ask": number})

    def put(
        self, key: str, value: Any, *, entries: list[Any] | None = None, is_awaited: bool = True
    ) -> None:
        """Contributes this worker's value to a gather or a comparison.

        Args:
            key: The key of the gather.
            value: Plain data of this worker.
            entries: The entries to compare; ``None`` if this is not a comparison.
            is_awaited: Whether this worker will take the result, or withdraw.
        """
        self._background.check()
        if is_awaited:
            with self._changed:
                self._awaited.add(key)
        compared = {} if entries is None else {"entries": entries}
        self._stream.send({"put": key, "value": value, **compared})

    def take(self, key: str, seconds: float) -> list[Any] | Comparison | None:
        """Returns the result of a gather or a comparison, or ``None`` if it is not complete in time."""
        self._background.check()
        with self._changed:
            self._changed.wait_for(lambda: key in self._gathered or self._lost, seconds)
            given = self._gathered.pop(key, None)
            if given is not None:
                self._awaited.discard(key)
            return given

    def withdraw(self, key: str) -> None:
        """Withdraws this worker's value from a gather; neither side keeps state of it for this worker."""
        with self._changed:
            self._awaited.discard(key)
            self._gathered.pop(key, None)
        self._stream.send({"withdraw": key})

    def broadcast(self, topic: str, why: str) -> None:
        """Sends a message to every worker, this one included."""
        self._background.check()
        self._stream.send({"call": topic, "why": why})

    def add_listener(self, listener: Callable[[Broadcast], None]) -> None:
        """Calls ``listener`` with every broadcast, in the receiving thread; at once with earlier ones."""
        with self._changed:
            self._listeners.append(listener)
            earlier = list(self._broadcasts)
        for call in earlier:
            listener(call)

    def remove_listener(self, listener: Callable[[Broadcast], None]) -> None:
        """Stops calling ``listener``."""
        with self._changed:
            self._listeners.remove(listener)

    def have_ended(self, workers: Iterable[int]) -> bool:
        """Returns whether these workers have finished their programs; also if the server is lost."""
        views = self.views()
        return self.is_lost or all(
            views[w].gone or views[w].left is not None or views[w].status.phase == LEAVING
            for w in workers
        )

    def wait_for_change(self, ready: Callable[[], bool], seconds: float) -> None:
        """Waits for messages until ``ready()`` holds, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(ready, seconds)

    def leave(self, reason: str, *, keep_connection: bool = False) -> None:
        """Leaves the cluster.

        Args:
            reason: The reason, for the other workers.
            keep_connection: Whether to keep the connection until this process ends, so that the others see
                when it ends.
        """
        self._closed.set()
        self._stream.send({"leave": reason})
        if keep_connection:
            self._stream.flush(_LEAVE_TIMEOUT)
        else:
            self._stream.finish(_LEAVE_TIMEOUT)

    def close(self) -> None:
        """Closes the connection."""
        self._closed.set()
        self._stream.close()

    def _send_status(self) -> None:
        begins, main_begins = self._begins
        status = dataclasses.replace(
            self._status,
            inputs=self._inputs,
            begins=begins,
            main_begins=main_begins,
            meets=self._barrier,
            heard=tuple(sorted(self._heard.items())),
        )
        self._stream.send({"status": status.to_json()})

    def _heartbeat_loop(self) -> None:
        while not self._closed.wait(_HEARTBEAT_SECONDS):
            self._send_status()
            self._update_heartbeat_age()

    def _update_heartbeat_age(self) -> None:
        """Updates the age of the server's last heartbeat.

        TCP alone would report a dead server only after a quarter of an hour: the kernel retransmits the
        unacknowledged heartbeats of this worker, and sends no keepalive probes meanwhile.
        """
        with self._changed:
            if self._since_heartbeat is not None:
                self._heartbeat_age = self._since_heartbeat.seconds()
            if self._heartbeat_age >= HEARTBEAT_TIMEOUT_SECONDS:
                self._changed.notify_all()

    def _receive_loop(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._receive(self._stream.receive())
        self._mark_lost()

    def _mark_lost(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _receive(self, message: dict[str, Any]) -> None:
        listeners: list[Callable[[Broadcast], None]] = []
        with self._changed:
            # The messages of the server, one of these keys in each:
            #     {"start": {...}}                                         all have joined
            #     {"peers": {"kinds": [view, ...], "of": "0010"}}           a heartbeat
            #     {"exchanged": "programs/3", "runs": [[["step", "a1f"], 4]]}  a gather is complete
            #     {"called": "preemption/0", "by": 2, "why": "SIGTERM"}     a broadcast
            #     {"asked": 7, "by": 1}                                    worker 1 wants the status now
            if "start" in message:
                self._start = message["start"]
            elif "called" in message:
                self._broadcasts.append(Broadcast(message["called"], message["by"], message["why"]))
                listeners = list(self._listeners)
            elif "asked" in message:
                # Replaced and not changed: the heartbeat thread reads it without the lock.
                self._heard = {**self._heard, message["by"]: message["asked"]}
            elif "peers" in message:
                self._views = views_from_json(message["peers"])
                # The timeout counts from the first view on: until then the server may still be starting.
                self._since_heartbeat, self._heartbeat_age = SuspendAwareTimer(), 0.0
            elif message.get("exchanged") in self._awaited:
                self._gathered[message["exchanged"]] = (
                    Comparison(message["said"], message["common"])
                    if "said" in message
                    else run_length_decode(message["runs"])
                )
            self._changed.notify_all()
        if "asked" in message:
            self._send_status()
        for listener in listeners:
            listener(self._broadcasts[-1])


def _connect(
    address: Address,
    worker: int,
    num_workers: int,
    credentials: Credentials,
    timeout: float,
    is_ended: Callable[[], bool],
) -> DuplexStream:
    deadline = time.monotonic() + timeout
    own = Identity(WORKER_ROLE, worker)
    notice = WaitingNotice()
    while True:
        try:
            give_up = min(deadline, time.monotonic() + _CONNECT_TIMEOUT)
            connection = connect(
                address, credentials, own=own, wanted=MEMBERSHIP_SERVER, deadline=give_up
            )
            return _introduce(DuplexStream(connection), address, num_workers, give_up)
        except (UnavailableError, DeadlineExceededError) as error:
            if time.monotonic() + _RETRY_SECONDS > deadline or is_ended():
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
        time.sleep(_RETRY_SECONDS)


def _introduce(
    stream: DuplexStream, address: Address, num_workers: int, deadline: float
) -> DuplexStream:
    stream.send({"num_workers": num_workers})
    try:
        answer = stream.receive(deadline)
    except OSError as error:
        stream.close()
        raise UnavailableError(
            f"The leader at {address} closed the connection at once ({error})."
        ) from None
    if "refused" in answer:
        stream.close()
        raise RendezvousError(f"The leader at {address} refused this process: {answer['refused']}.")
    return stream
