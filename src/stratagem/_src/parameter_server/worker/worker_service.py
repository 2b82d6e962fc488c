"""``WorkerService``: the RPC methods of a worker."""

from __future__ import annotations

import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable

from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.parameter_server.protocol.serialization import Payload
from stratagem._src.parameter_server.protocol.worker_messages import (
    BYE,
    HELLO,
    POLL,
    VALUE,
    Hello,
    PollRequest,
    ValueAt,
    decode,
    encode,
    payload_from_message,
    payload_to_message,
)
from stratagem._src.parameter_server.worker.session import ValueMissing, WorkerSession
from stratagem._src.process.background import Background
from stratagem._src.process.fork import at_exit
from stratagem._src.transport import Credentials, Handler, Identity, Message, TransportClient

__all__ = ["WorkerService"]

_logger = logging.getLogger("stratagem")
_LEASE_SECONDS = 30.0
_TAKEOVER_TIMEOUT_SECONDS = 3.0
_FETCH_TIMEOUT_SECONDS = 60.0
_SHUTDOWN_TIMEOUT_SECONDS = 2.0

_services: weakref.WeakSet[WorkerService] = weakref.WeakSet()


@at_exit
def _close_all() -> None:
    services = list(_services)
    for service in services:
        service.close()
    deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_SECONDS
    for service in services:
        service.wait_for_threads(deadline - time.monotonic())


class WorkerService:
    """Runs closures for coordinators.

    A coordinator that has sent nothing for 30 s counts as lost, and its session is dropped. When another
    coordinator connects, 3 s are enough; if it has taken over from the earlier one, that one's session is
    dropped immediately.

    Args:
        job_name: The job of this task.
        task_index: The index of this task.
        credentials: The credentials of this task, for connections to other workers.
    """

    def __init__(self, job_name: str, task_index: int, credentials: Credentials) -> None:
        self.handlers: dict[str, Handler] = {
            HELLO: self._hello,
            POLL: self._poll,
            VALUE: self._value,
            BYE: self._bye,
        }
        self._task = Identity.of_task(job_name, task_index)
        self._task_index = task_index
        self._credentials = credentials
        self._lock = threading.Lock()
        self._sessions: dict[str, WorkerSession] = {}
        self._peers: dict[str, TransportClient] = {}
        self._background = Background(str(self._task))
        self._of_sessions: weakref.WeakSet[Background] = weakref.WeakSet()
        self._is_watching = False
        self._closed = threading.Event()
        _services.add(self)

    def close(self) -> None:
        """Ends the sessions, without waiting for running closures."""
        self._closed.set()
        with self._lock:
            sessions, self._sessions = self._sessions, {}
            peers, self._peers = self._peers, {}
        for session in sessions.values():
            session.close()
        for peer in peers.values():
            peer.close()

    def wait_for_threads(self, seconds: float) -> None:
        """Waits for the threads of closed sessions.

        A thread that is inside XLA when the interpreter shuts down crashes the process.
        """
        deadline = time.monotonic() + seconds
        for background in list(self._of_sessions):
            background.join(max(deadline - time.monotonic(), 0.0))

    def _hello(self, message: Message) -> Message:
        self._background.check()
        hello: Hello = decode(message)
        session = WorkerSession(
            secrets.token_hex(8), hello, self._task_index, self._fetch_from_peer
        )
        self._drop(
            lambda other: (
                other.coordinator == hello.coordinator
                or (other.owner == hello.replaces and hello.replaces != hello.owner)
                or _seconds_since_heard(other) > _TAKEOVER_TIMEOUT_SECONDS
            )
        )
        with self._lock:
            self._sessions[session.token] = session
            self._of_sessions.add(session.background)
            if not self._is_watching:
                self._is_watching = True
                self._background.start(self._watch, name="worker-sessions")
        return encode(session.token)

    def _poll(self, message: Message) -> Message:
        self._background.check()
        request: PollRequest = decode(message)
        session = self._sessions.get(request.session)
        return encode(None if session is None else session.poll(request))

    def _value(self, message: Message) -> Message:
        token, closure = decode(message)
        session = self._sessions.get(token)
        try:
            return Message() if session is None else payload_to_message(session.value(closure))
        except ValueMissing:
            return Message()

    def _bye(self, message: Message) -> Message:
        token = decode(message)
        self._drop(lambda session: session.token == token)
        return Message()

    def _fetch_from_peer(self, where: ValueAt) -> Payload:
        with self._lock:
            if where.address not in self._peers:
                self._peers[where.address] = TransportClient(
                    where.address, self._credentials, wanted=where.task, own=self._task
                )
            peer = self._peers[where.address]
        try:
            answer = peer.call(
                VALUE, encode((where.session, where.closure)), timeout=_FETCH_TIMEOUT_SECONDS
            )
        except (UnavailableError, DeadlineExceededError):
            raise ValueMissing(where.closure) from None
        if not answer.body:
            raise ValueMissing(where.closure)
        return payload_from_message(answer)

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            dropped = self._drop(lambda session: _seconds_since_heard(session) > _LEASE_SECONDS)
            for session in dropped:
                _logger.warning(
                    "%s: no request from coordinator %s for %g s; dropping its functions.",
                    self._task,
                    session.coordinator,
                    _LEASE_SECONDS,
                )
            with self._lock:
                if not self._sessions:
                    self._is_watching = False
                    return

    def _drop(self, is_over: Callable[[WorkerSession], bool]) -> list[WorkerSession]:
        with self._lock:
            over = [session for session in self._sessions.values() if is_over(session)]
            for session in over:
                del self._sessions[session.token]
        for session in over:
            session.close()
        return over


def _seconds_since_heard(session: WorkerSession) -> float:
    return time.monotonic() - session.last_heard
