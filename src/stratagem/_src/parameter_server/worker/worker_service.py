"""``WorkerService``: the part of a worker that coordinators talk to."""

from __future__ import annotations

import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable

from stratagem._src.core.errors import DeadlineExceededError, UnavailableError
from stratagem._src.parameter_server.protocol.shipping import Parcel
from stratagem._src.parameter_server.protocol.worker_messages import (
    BYE,
    EXCHANGE,
    HELLO,
    VALUE,
    Exchange,
    Hello,
    ValueAt,
    read,
    read_parcel,
    written,
    written_parcel,
)
from stratagem._src.parameter_server.worker.session import ValueMissing, WorkerSession
from stratagem._src.process.background import Background
from stratagem._src.process.fork import at_exit
from stratagem._src.transport import Caller, Credentials, Handler, Identity, Message

__all__ = ["WorkerService"]

_logger = logging.getLogger("stratagem")
_LEASE_SECONDS = 30.0
_SILENCE_SECONDS = 3.0
_SECONDS_TO_FETCH = 60.0
_SECONDS_AT_EXIT = 2.0

_services: weakref.WeakSet[WorkerService] = weakref.WeakSet()


@at_exit
def _close_all() -> None:
    services = list(_services)
    for service in services:
        service.close()
    deadline = time.monotonic() + _SECONDS_AT_EXIT
    for service in services:
        service.wait_for_threads(deadline - time.monotonic())


class WorkerService:
    """Runs closures for coordinators.

    A coordinator that has been silent for half a minute is taken for dead, and what it left is
    dropped; when another one comes, a few seconds of silence are enough, and none are needed if it says
    that it has taken over.

    Args:
        job_name: The job of this task.
        task_index: The index of this task.
        credentials: What this task proves to other workers.
    """

    def __init__(self, job_name: str, task_index: int, credentials: Credentials) -> None:
        self.handlers: dict[str, Handler] = {
            HELLO: self._hello,
            EXCHANGE: self._exchange,
            VALUE: self._value,
            BYE: self._bye,
        }
        self._task = Identity.of_task(job_name, task_index)
        self._task_index = task_index
        self._credentials = credentials
        self._lock = threading.Lock()
        self._sessions: dict[str, WorkerSession] = {}
        self._peers: dict[str, Caller] = {}
        self._background = Background(str(self._task))
        self._of_sessions: weakref.WeakSet[Background] = weakref.WeakSet()
        self._is_watching = False
        self._closed = threading.Event()
        _services.add(self)

    def close(self) -> None:
        """Ends the sessions. Closures that run are not waited for."""
        self._closed.set()
        with self._lock:
            sessions, self._sessions = self._sessions, {}
            peers, self._peers = self._peers, {}
        for session in sessions.values():
            session.close()
        for peer in peers.values():
            peer.close()

    def wait_for_threads(self, seconds: float) -> None:
        """Waits for the threads of sessions that were closed.

        A thread that is inside of XLA when the interpreter goes away takes the process down with it.
        """
        deadline = time.monotonic() + seconds
        for background in list(self._of_sessions):
            background.join(max(deadline - time.monotonic(), 0.0))

    def _hello(self, message: Message) -> Message:
        self._background.check()
        hello: Hello = read(message)
        session = WorkerSession(
            secrets.token_hex(8), hello, self._task_index, self._fetch_from_peer
        )
        self._drop(
            lambda other: (
                other.coordinator == hello.coordinator
                or (other.owner == hello.replaces and hello.replaces != hello.owner)
                or _silence(other) > _SILENCE_SECONDS
            )
        )
        with self._lock:
            self._sessions[session.token] = session
            self._of_sessions.add(session.background)
            if not self._is_watching:
                self._is_watching = True
                self._background.start(self._watch, name="worker-sessions")
        return written(session.token)

    def _exchange(self, message: Message) -> Message:
        self._background.check()
        request: Exchange = read(message)
        session = self._sessions.get(request.session)
        return written(None if session is None else session.exchange(request))

    def _value(self, message: Message) -> Message:
        token, closure = read(message)
        session = self._sessions.get(token)
        try:
            return Message() if session is None else written_parcel(session.value(closure))
        except ValueMissing:
            return Message()

    def _bye(self, message: Message) -> Message:
        token = read(message)
        self._drop(lambda session: session.token == token)
        return Message()

    def _fetch_from_peer(self, where: ValueAt) -> Parcel:
        with self._lock:
            if where.address not in self._peers:
                self._peers[where.address] = Caller(
                    where.address, self._credentials, wanted=where.task, own=self._task
                )
            peer = self._peers[where.address]
        try:
            answer = peer.call(
                VALUE, written((where.session, where.closure)), timeout=_SECONDS_TO_FETCH
            )
        except (UnavailableError, DeadlineExceededError):
            raise ValueMissing(where.closure) from None
        if not answer.body:
            raise ValueMissing(where.closure)
        return read_parcel(answer)

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            dropped = self._drop(lambda session: _silence(session) > _LEASE_SECONDS)
            for session in dropped:
                _logger.warning(
                    "%s: coordinator %s has been silent for %g s; its functions are dropped.",
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


def _silence(session: WorkerSession) -> float:
    return time.monotonic() - session.last_heard
