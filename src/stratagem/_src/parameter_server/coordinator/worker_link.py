"""``WorkerLink``: the coordinator's session with one worker."""

from __future__ import annotations

import collections
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from stratagem._src.core.errors import (
    DeadlineExceededError,
    RemoteError,
    StratagemError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.parameter_server.coordinator.closure import Closure
from stratagem._src.parameter_server.coordinator.flow_control import FlowControl
from stratagem._src.parameter_server.protocol.definition import Definition
from stratagem._src.parameter_server.protocol.serialization import Payload
from stratagem._src.parameter_server.protocol.worker_messages import (
    BYE,
    HELLO,
    MAX_POLL_WAIT_SECONDS,
    POLL,
    VALUE,
    ClosureCall,
    Define,
    Failed,
    Held,
    Hello,
    NotStarted,
    PollRequest,
    Report,
    Returned,
    decode,
    encode,
    payload_from_message,
)
from stratagem._src.transport import Credentials, Identity, Message, TransportClient
from stratagem._src.transport.remote_error import exception_from_bytes

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher

__all__ = ["WorkerLink"]

_logger = logging.getLogger("stratagem")
_REPORT_TYPES = frozenset(get_args(Report))
_NUM_LANES = 2
_HEARTBEAT_INTERVAL_SECONDS = 1.0
_RPC_TIMEOUT_SECONDS = 60.0
_MIN_BYTES_PER_SECOND = 5e6
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.05, 0.25
_OWN = Identity("coordinator")


class WorkerLink:
    """Maintains a session with one worker, sends it closures and receives its reports.

    Two threads, the lanes, talk to the worker: while one long-polls for reports, the other sends new
    closures. When the worker is lost, one lane keeps trying to reconnect.

    Args:
        dispatcher: The dispatcher. Its lock guards all state here.
        index: The worker's index.
        address: The worker's address.
        credentials: The coordinator's credentials.
    """

    def __init__(
        self, dispatcher: Dispatcher, index: int, address: str, credentials: Credentials
    ) -> None:
        self.index = index
        self.address = address
        self.task = Identity.of_task("worker", index)
        self.last_error: Exception | None = None
        self.num_waiting = 0
        self.forgotten: collections.deque[int] = collections.deque()
        self.released: list[int] = []
        self._dispatcher = dispatcher
        self._credentials = credentials
        self._state = dispatcher.state
        self._lock = dispatcher.lock
        self._wake = threading.Condition(self._lock)
        self._client: TransportClient | None = None
        self._session: str | None = None
        self._connecting = self._polling = self._recall = False
        self._sent: set[int] = set()
        self._last_heartbeat = 0.0
        self._num_reports = 0
        self._flow_control = FlowControl(dispatcher.closures_per_worker)

    def start(self) -> None:
        """Starts the lanes."""
        for lane in range(_NUM_LANES):
            name = f"coordinator-worker-{self.index}-{lane}"
            self._dispatcher.background.start(self._run_lane, name=name)

    def wake(self) -> None:
        """Wakes one lane to look for work; called with the lock."""
        self._wake.notify()

    def wake_all(self) -> None:
        """Wakes both lanes; called with the lock."""
        self._wake.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether the worker can take a closure and a lane is idle."""
        return (
            self.num_waiting > 0
            and self._session is not None
            and self._state.num_in_flight_on(self.index) < self._flow_control.max_in_flight
        )

    @property
    def session(self) -> str | None:
        """The id of the session, or ``None`` while there is none."""
        return self._session

    def recall(self) -> None:
        """Recalls the closures that have not started; called with the lock."""
        self._recall = True
        self._wake.notify()

    def fetch(self, closure: int) -> Payload | None:
        """Fetches a result that the worker holds; ``None`` if it does not hold it, or is lost."""
        with self._lock:
            client, session = self._client, self._session
        if client is None or session is None:
            return None
        try:
            reply = client.call(VALUE, encode((session, closure)), timeout=_RPC_TIMEOUT_SECONDS)
        except (UnavailableError, DeadlineExceededError) as error:
            self._lose(session, error)
            return None
        return payload_from_message(reply) if reply.body else None

    def close(self) -> None:
        """Ends the session; called without the lock, when the dispatcher has stopped."""
        with self._lock:
            client, session = self._client, self._session
            self._session = None
            self._wake.notify_all()
        if client is None:
            return
        if session is not None:
            try:
                client.call(BYE, encode(session), timeout=1.0)
            except (StratagemError, OSError) as error:
                _logger.debug("could not close the session with %s: %s", self.task, error)
        client.close()

    def _run_lane(self) -> None:
        while (step := self._next_step()) is not None:
            step()

    def _next_step(self) -> Callable[[], None] | None:
        with self._lock:
            while not self._dispatcher.stopped:
                if self._session is not None:
                    step = self._next_poll()
                    if step is not None:
                        return step
                elif not self._connecting:
                    self._connecting = True
                    return self._connect
                self.num_waiting += 1
                self._wake.wait(_HEARTBEAT_INTERVAL_SECONDS)
                self.num_waiting -= 1
            return None

    def _next_poll(self) -> Callable[[], None] | None:
        """Returns the next request to send, if there is work, a recall, a poll or a heartbeat due."""
        self._dispatcher.release_dropped()
        in_flight = self._state.num_in_flight_on(self.index)
        room = self._flow_control.max_in_flight - in_flight
        closures: list[Closure] = []
        if room > 0:
            closures = self._dispatcher.take(self.index, room)
        now = time.monotonic()
        may_poll = not self._polling and in_flight + len(closures) > 0
        is_due = now - self._last_heartbeat >= _HEARTBEAT_INTERVAL_SECONDS
        if not (closures or self._recall or may_poll or is_due):
            return None
        assert self._session is not None
        assert self._client is not None
        definitions: list[Define] = []
        calls = [self._call(closure, definitions) for closure in closures]
        released, self.released = self.released, []
        forgotten = [self.forgotten.popleft() for _ in range(len(self.forgotten))]
        forgotten = [number for number in forgotten if number in self._sent]
        self._sent.difference_update(forgotten)
        recall, self._recall = self._recall, False
        self._polling |= may_poll
        self._last_heartbeat = now
        request = PollRequest(
            self._session,
            definitions,
            calls,
            forgotten,
            released,
            recall,
            MAX_POLL_WAIT_SECONDS if may_poll else 0.0,
        )
        return functools.partial(self._poll, request, self._client, self._num_reports)

    def _call(self, closure: Closure, definitions: list[Define]) -> ClosureCall:
        """Returns the message for a closure; appends the definitions that the worker lacks."""
        definition: Definition = closure.spec.definition
        arguments: Payload = closure.spec.arguments
        self._define(definition, definitions)
        references = []
        for reference in arguments.references:
            needed, sent = self._dispatcher.refer(reference, self.index)
            if needed is not None:
                self._define(needed, definitions)
            references.append(sent)
        return ClosureCall(
            closure.number, definition.number, arguments._replace(references=()), tuple(references)
        )

    def _define(self, definition: Definition, definitions: list[Define]) -> None:
        if definition.number in self._sent:
            return
        for required in definition.requires:
            self._define(required, definitions)
        self._sent.add(definition.number)
        definitions.append(definition.message())

    def _poll(self, request: PollRequest, client: TransportClient, num_reports: int) -> None:
        message = encode(request)
        size = sum(array.nbytes for array in message.arrays) + len(message.body)
        timeout = self._dispatcher.worker_timeout + size / _MIN_BYTES_PER_SECOND
        try:
            reply = client.call(POLL, message, timeout=request.wait + timeout)
            reports = self._decode_reports(reply)
        except (UnavailableError, DeadlineExceededError) as error:
            self._lose(request.session, error)
            return
        except Exception as error:
            if self._lose(request.session, error):
                self._dispatcher.worker_refused(self.index, error, is_proven=True)
            return
        if reports is None:
            lost = UnavailableError(f"{self.task} at {self.address} was restarted.")
            self._lose(request.session, lost)
            return
        with self._lock:
            if self._session != request.session:
                return
            if request.wait:
                self._polling = False
                is_stalled = not reports and self._num_reports == num_reports
                if is_stalled and self._flow_control.on_stall():
                    self._recall = True
            self._num_reports += len(reports)
            for report in reports:
                self._take_report(report)

    def _decode_reports(self, reply: Message) -> list[Report] | None:
        """Returns the reports of a reply, or ``None`` if the worker does not know the session.

        Raises:
            RemoteError: If the reply is anything else.
        """
        reports: Any = decode(reply)
        if reports is None:
            return None
        if isinstance(reports, list) and _REPORT_TYPES.issuperset(map(type, reports)):
            return reports
        raise RemoteError(
            f"A worker must reply with reports of functions, got {reports!r:.200} from {self.task} at "
            f"{self.address}. Coordinator and workers must run the same version of stratagem."
        )

    def _take_report(self, report: Report) -> None:
        dispatcher = self._dispatcher
        if isinstance(report, (Returned, Held)):
            self._flow_control.record(report.seconds)
            dispatcher.succeeded(
                self.index, report.closure, report.payload if isinstance(report, Returned) else None
            )
        elif isinstance(report, NotStarted):
            dispatcher.put_back(self.index, report.closure, report.missing)
        else:
            assert isinstance(report, Failed)
            error = exception_from_bytes(report.error, f"{self.task} at {self.address}")
            dispatcher.failed(self.index, report.closure, error)

    def _connect(self) -> None:
        backoff = _MIN_BACKOFF_SECONDS
        while True:
            client = TransportClient(self.address, self._credentials, wanted=self.task, own=_OWN)
            hello = Hello(
                self._dispatcher.identity,
                self._dispatcher.strategy,
                self._dispatcher.closures_per_worker,
                self._dispatcher.owner,
                self._dispatcher.replaces,
            )
            try:
                session = decode(client.call(HELLO, encode(hello), timeout=_RPC_TIMEOUT_SECONDS))
            except (UnavailableError, DeadlineExceededError) as error:
                self._record_failure(client, error)
            except Exception as error:
                self._record_failure(client, error)
                is_proven = not isinstance(error, UnauthenticatedError)
                self._dispatcher.worker_refused(self.index, error, is_proven=is_proven)
            else:
                with self._lock:
                    stopped = self._dispatcher.stopped
                    if not stopped:
                        self._begin(client, session)
                if stopped:
                    client.close()
                return
            with self._lock:
                self._wake.wait(backoff)
                if self._dispatcher.stopped:
                    return
            backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)

    def _record_failure(self, client: TransportClient, error: Exception) -> None:
        self.last_error = error
        client.close()

    def _begin(self, client: TransportClient, session: str) -> None:
        self._connecting = self._polling = self._recall = False
        self._client, self._session = client, session
        self._sent.clear()
        self.forgotten.clear()
        self.released.clear()
        self._flow_control = FlowControl(self._dispatcher.closures_per_worker)
        self._last_heartbeat = time.monotonic()
        self._dispatcher.worker_joined(self.index)
        self._wake.notify_all()

    def _lose(self, session: str, error: Exception) -> bool:
        """Drops a session and returns whether it was still the current one."""
        with self._lock:
            if self._session != session or self._dispatcher.stopped:
                return False
            client, self._client, self._session = self._client, None, None
            self.last_error = error
            self._dispatcher.worker_lost(self.index, error)
            self._wake.notify_all()
        if client is not None:
            client.close()
        return True
