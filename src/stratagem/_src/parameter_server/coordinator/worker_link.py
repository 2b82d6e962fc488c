"""``WorkerLink``: the coordinator's side of the conversation with one worker."""

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
from stratagem._src.parameter_server.coordinator.flow_control import Pace
from stratagem._src.parameter_server.protocol.definition import Definition
from stratagem._src.parameter_server.protocol.shipping import Parcel
from stratagem._src.parameter_server.protocol.worker_messages import (
    BYE,
    EXCHANGE,
    HELLO,
    LONGEST_WAIT_SECONDS,
    VALUE,
    ClosureCall,
    Define,
    Exchange,
    Failed,
    Held,
    Hello,
    NotStarted,
    Report,
    Returned,
    read,
    read_parcel,
    written,
)
from stratagem._src.transport import Caller, Credentials, Identity, Message
from stratagem._src.transport.remote_error import exception_from_bytes

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher

__all__ = ["WorkerLink"]

_logger = logging.getLogger("stratagem")
_KINDS_OF_REPORTS = frozenset(get_args(Report))
_NUM_LANES = 2
_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_TO_GREET = 60.0
_SLOWEST_BYTES_PER_SECOND = 5e6
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_OWN = Identity("coordinator")


class WorkerLink:
    """Keeps a session with one worker, gives it closures and takes its reports.

    Two threads, the lanes, talk to the worker: while one waits there for reports, the other sends
    what is new. When the worker is lost, one of them goes on trying to reach it.

    Args:
        dispatcher: Whose link it is. Its lock guards everything here.
        index: The worker's index.
        address: Where it listens.
        credentials: What the coordinator proves.
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
        self._caller: Caller | None = None
        self._session: str | None = None
        self._connecting = self._polling = self._recall = False
        self._sent: set[int] = set()
        self._last_sign = 0.0
        self._num_reports = 0
        self._pace = Pace(dispatcher.closures_per_worker)

    def start(self) -> None:
        """Starts the lanes."""
        for lane in range(_NUM_LANES):
            name = f"coordinator-worker-{self.index}-{lane}"
            self._dispatcher.background.start(self._run_lane, name=name)

    def wake(self) -> None:
        """Makes a lane look for work; called with the lock."""
        self._wake.notify()

    def wake_all(self) -> None:
        """Makes both lanes look around; called with the lock."""
        self._wake.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether the worker can be given a closure and a lane is free to do it."""
        return (
            self.num_waiting > 0
            and self._session is not None
            and self._state.num_in_flight_on(self.index) < self._pace.most_in_flight
        )

    @property
    def session(self) -> str | None:
        """The name of the session, or ``None`` while there is none."""
        return self._session

    def recall(self) -> None:
        """Asks for the closures that have not started; called with the lock."""
        self._recall = True
        self._wake.notify()

    def fetch(self, closure: int) -> Parcel | None:
        """Returns a result that the worker holds, or ``None`` if it does not, or is lost."""
        with self._lock:
            caller, session = self._caller, self._session
        if caller is None or session is None:
            return None
        try:
            answer = caller.call(VALUE, written((session, closure)), timeout=_SECONDS_TO_GREET)
        except (UnavailableError, DeadlineExceededError) as error:
            self._lose(session, error)
            return None
        return read_parcel(answer) if answer.body else None

    def close(self) -> None:
        """Ends the session; called without the lock, when the dispatcher has stopped."""
        with self._lock:
            caller, session = self._caller, self._session
            self._session = None
            self._wake.notify_all()
        if caller is None:
            return
        if session is not None:
            try:
                caller.call(BYE, written(session), timeout=1.0)
            except (StratagemError, OSError) as error:
                _logger.debug("%s was not told of the end: %s", self.task, error)
        caller.close()

    def _run_lane(self) -> None:
        while (step := self._next_step()) is not None:
            step()

    def _next_step(self) -> Callable[[], None] | None:
        with self._lock:
            while not self._dispatcher.stopped:
                if self._session is not None:
                    step = self._compose()
                    if step is not None:
                        return step
                elif not self._connecting:
                    self._connecting = True
                    return self._connect
                self.num_waiting += 1
                self._wake.wait(_SECONDS_BETWEEN_SIGNS)
                self.num_waiting -= 1
            return None

    def _compose(self) -> Callable[[], None] | None:
        """Returns the next exchange, if there is a reason for one."""
        self._dispatcher.take_dropped()
        in_flight = self._state.num_in_flight_on(self.index)
        room = self._pace.most_in_flight - in_flight
        closures: list[Closure] = []
        if room > 0:
            closures = self._dispatcher.take(self.index, room)
        now = time.monotonic()
        may_poll = not self._polling and in_flight + len(closures) > 0
        is_due = now - self._last_sign >= _SECONDS_BETWEEN_SIGNS
        if not (closures or self._recall or may_poll or is_due):
            return None
        assert self._session is not None
        assert self._caller is not None
        definitions: list[Define] = []
        calls = [self._call(closure, definitions) for closure in closures]
        released, self.released = self.released, []
        forgotten = [self.forgotten.popleft() for _ in range(len(self.forgotten))]
        forgotten = [number for number in forgotten if number in self._sent]
        self._sent.difference_update(forgotten)
        recall, self._recall = self._recall, False
        self._polling |= may_poll
        self._last_sign = now
        request = Exchange(
            self._session,
            definitions,
            calls,
            forgotten,
            released,
            recall,
            LONGEST_WAIT_SECONDS if may_poll else 0.0,
        )
        return functools.partial(self._exchange, request, self._caller, self._num_reports)

    def _call(self, closure: Closure, definitions: list[Define]) -> ClosureCall:
        """Returns what the worker is sent for a closure; adds the definitions that it lacks."""
        definition: Definition = closure.payload.definition
        arguments: Parcel = closure.payload.arguments
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

    def _exchange(self, request: Exchange, caller: Caller, num_reports: int) -> None:
        message = written(request)
        size = sum(array.nbytes for array in message.arrays) + len(message.body)
        patience = self._dispatcher.worker_timeout + size / _SLOWEST_BYTES_PER_SECOND
        try:
            answer = caller.call(EXCHANGE, message, timeout=request.wait + patience)
            reports = self._reports_in(answer)
        except (UnavailableError, DeadlineExceededError) as error:
            self._lose(request.session, error)
            return
        except Exception as error:
            if self._lose(request.session, error):
                self._dispatcher.worker_refused(self.index, error, is_proven=True)
            return
        if reports is None:
            lost = UnavailableError(f"{self.task} at {self.address} has started anew.")
            self._lose(request.session, lost)
            return
        with self._lock:
            if self._session != request.session:
                return
            if request.wait:
                self._polling = False
                stands_still = not reports and self._num_reports == num_reports
                if stands_still and self._pace.stand_still():
                    self._recall = True
            self._num_reports += len(reports)
            for report in reports:
                self._take_report(report)

    def _reports_in(self, answer: Message) -> list[Report] | None:
        """Returns the reports of an answer, or ``None`` if the worker does not know the session.

        Raises:
            RemoteError: If the answer is something else.
        """
        reports: Any = read(answer)
        if reports is None:
            return None
        if isinstance(reports, list) and _KINDS_OF_REPORTS.issuperset(map(type, reports)):
            return reports
        raise RemoteError(
            f"A worker must answer with reports of functions, got {reports!r:.200} from {self.task} at "
            f"{self.address}. Coordinator and workers must run the same version of stratagem."
        )

    def _take_report(self, report: Report) -> None:
        dispatcher = self._dispatcher
        if isinstance(report, (Returned, Held)):
            self._pace.note(report.seconds)
            dispatcher.succeeded(
                self.index, report.closure, report.parcel if isinstance(report, Returned) else None
            )
        elif isinstance(report, NotStarted):
            dispatcher.put_back(self.index, report.closure, report.missing)
        else:
            assert isinstance(report, Failed)
            error = exception_from_bytes(report.error, f"{self.task} at {self.address}")
            dispatcher.failed(self.index, report.closure, error)

    def _connect(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            caller = Caller(self.address, self._credentials, wanted=self.task, own=_OWN)
            hello = Hello(
                self._dispatcher.identity,
                self._dispatcher.strategy,
                self._dispatcher.closures_per_worker,
                self._dispatcher.owner,
                self._dispatcher.replaces,
            )
            try:
                session = read(caller.call(HELLO, written(hello), timeout=_SECONDS_TO_GREET))
            except (UnavailableError, DeadlineExceededError) as error:
                self._note_failure(caller, error)
            except Exception as error:
                self._note_failure(caller, error)
                is_proven = not isinstance(error, UnauthenticatedError)
                self._dispatcher.worker_refused(self.index, error, is_proven=is_proven)
            else:
                with self._lock:
                    stopped = self._dispatcher.stopped
                    if not stopped:
                        self._begin(caller, session)
                if stopped:
                    caller.close()
                return
            with self._lock:
                self._wake.wait(pause)
                if self._dispatcher.stopped:
                    return
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _note_failure(self, caller: Caller, error: Exception) -> None:
        self.last_error = error
        caller.close()

    def _begin(self, caller: Caller, session: str) -> None:
        self._connecting = self._polling = self._recall = False
        self._caller, self._session = caller, session
        self._sent.clear()
        self.forgotten.clear()
        self.released.clear()
        self._pace = Pace(self._dispatcher.closures_per_worker)
        self._last_sign = time.monotonic()
        self._dispatcher.worker_joined(self.index)
        self._wake.notify_all()

    def _lose(self, session: str, error: Exception) -> bool:
        """Gives up a session and returns whether it was still the present one."""
        with self._lock:
            if self._session != session or self._dispatcher.stopped:
                return False
            caller, self._caller, self._session = self._caller, None, None
            self.last_error = error
            self._dispatcher.worker_lost(self.index, error)
            self._wake.notify_all()
        if caller is not None:
            caller.close()
        return True
