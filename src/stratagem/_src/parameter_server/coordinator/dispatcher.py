"""``Dispatcher``: threads and connections around the coordinator's rules."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stratagem._src.core.errors import CancelledError, ContextError, PSUnavailableError
from stratagem._src.parameter_server.coordinator.closure import Closure, Status
from stratagem._src.parameter_server.coordinator.mean_latency import MeanLatency
from stratagem._src.parameter_server.coordinator.payload import Payload
from stratagem._src.parameter_server.coordinator.references import (
    SentReference,
    closures_needed,
    refer,
)
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.coordinator.state import CoordinatorPhase, CoordinatorState
from stratagem._src.parameter_server.coordinator.worker_absence import WorkerAbsence
from stratagem._src.parameter_server.coordinator.worker_link import WorkerLink
from stratagem._src.parameter_server.coordinator.worker_links import WorkerLinks
from stratagem._src.parameter_server.protocol.definition import Definition, Definitions
from stratagem._src.parameter_server.protocol.shipping import ByReference, Parcel, unpack
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.transport import Credentials

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.server_restorer import ServerRestorer

__all__ = ["Dispatcher"]

Result = TypeVar("Result")

_logger = logging.getLogger("stratagem")
_QUEUED_PER_WORKER = 256
_SECONDS_TO_DRAIN = 5.0
_POLL_SECONDS = 1.0
_HAS_ENDED = "The coordinator has ended."


class Dispatcher:
    """Carries out what ``CoordinatorState`` decides, and waits on behalf of the user.

    If one of its threads ends by an error that nobody expected, everything stops, and that error is
    what every call raises from then on: nobody can say what the thread would still have done.

    Args:
        credentials: What the coordinator proves to them.
        strategy: The pickled strategy.
        owner: What the parameter servers call the coordinator.
        replaces: What they called the one that it took over from; empty if it did not.
        closures_per_worker: How many closures a worker runs at the same time.
        worker_timeout: After how many seconds without an answer a worker is lost.
        patience: How many seconds to wait for a worker when there is none.
    """

    def __init__(
        self,
        credentials: Credentials,
        strategy: Parcel,
        *,
        owner: str,
        replaces: str,
        closures_per_worker: int,
        worker_timeout: float,
        patience: float,
    ) -> None:
        self.identity: str = secrets.token_hex(8)
        self.strategy = strategy
        self.owner = owner
        self.replaces = replaces
        self.closures_per_worker = closures_per_worker
        self.worker_timeout = worker_timeout
        # Reentrant: a signal handler may interrupt a call of the same thread, see _as_user.
        self.lock: threading.RLock = threading.RLock()
        self._is_changing = False
        self.state: CoordinatorState = CoordinatorState()
        self.ended: threading.Event = threading.Event()
        self.background: Background = Background("the coordinator", on_failure=self._break_down)
        self.abandoned = False
        self.dropped: collections.deque[Closure] = collections.deque()
        self._links = WorkerLinks()
        self.definitions: Definitions = Definitions(self._links.forget)
        self._numbers = itertools.count()
        self._has_room = threading.Condition(self.lock)
        self._has_ended = threading.Condition(self.lock)
        self._credentials = credentials
        self._refusals: set[int] = set()
        self._drain_until: float | None = None
        self.patience = patience
        self._absence: WorkerAbsence = WorkerAbsence(patience)
        self.restorer: ServerRestorer | None = None
        self._waiters: weakref.WeakSet[threading.Condition] = weakref.WeakSet()
        self._latency = MeanLatency()
        observer = recorder()
        if observer is not None:
            observer.add_source("coordinator", self.figures)

    def figures(self) -> dict[str, float]:
        """Returns how long the queue is, how quickly functions return, and how many ran again."""
        with self.lock:
            state = self.state
            return {
                "workers": len(state.workers),
                "queued": state.num_queued,
                "in_flight": state.num_in_flight,
                "returned": state.num_returned,
                "retries": state.num_retries,
                "latency_seconds": self._latency.take(),
            }

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self.ended.is_set()

    def set_workers(self, workers: Mapping[int, str]) -> None:
        """Takes in where the workers are: begins to look for new ones, and for others elsewhere.

        Args:
            workers: The workers' addresses, by index. One that is missing is not forgotten.
        """
        with self.lock:
            if self.stopped:
                return
            new = self._links.update(
                workers, lambda index, address: WorkerLink(self, index, address, self._credentials)
            )
            if new:
                self._has_room.notify_all()
        for link in new:
            link.start()

    @property
    def workers(self) -> list[int]:
        """The indices of the workers."""
        return sorted(self._links)

    def addresses(self) -> dict[int, str]:
        """Returns where each worker is, by its index."""
        return {index: link.address for index, link in self._links.items()}

    @property
    def _most_queued(self) -> int:
        return _QUEUED_PER_WORKER * max(1, len(self._links))

    def stop(self) -> None:
        """Ends the threads and tells the workers."""
        if not self.background.process.is_here:
            return
        with self.lock:
            if self.stopped:
                return
            self.ended.set()
            self._settle(self.state.abort(CancelledError(_HAS_ENDED)))
            self._settle(self.state.stop_draining())
        self._links.close()

    def _break_down(self, error: BaseException) -> None:
        """Stops because a thread did; ``error`` is what those who wait raise."""
        error.add_note("Raised in a thread of the coordinator, which has stopped because of it.")
        with self.lock:
            self.ended.set()
            self._has_room.notify_all()
            self._has_ended.notify_all()
            for condition in self._waiters:
                condition.notify_all()
        self._links.close()

    # What users do.

    def schedule(
        self,
        definition: Definition,
        arguments: Parcel,
        workers: frozenset[int] | None,
        priority: float,
    ) -> RemoteValue:
        """Queues a closure; waits while the queue is full.

        Raises:
            BaseException: The error of an earlier closure.
        """
        needs = list(closures_needed(arguments.references))
        closure = Closure(next(self._numbers), None, needs, workers, priority)
        closure.scheduled_at = time.monotonic()
        value = RemoteValue(self, closure)
        closure.owner = weakref.ref(value)
        closure.payload = Payload(definition, arguments, closure.owner)

        def queue() -> None:
            while self._raise_error() and self.state.num_queued >= self._most_queued:
                self._wait(self._has_room)
            for needed in needs:
                if needed.status is Status.FAILED:
                    raise CancelledError(
                        f"An argument is the result of function {needed.number}, which failed."
                    ) from needed.error
            self._settle(self.state.schedule(closure))
            self._wake_for(closure)

        self._as_user(queue)
        return value

    def join(self) -> None:
        """Waits until every closure has ended.

        Raises:
            BaseException: The first error of a closure.
        """

        def wait() -> None:
            while self._raise_error() and not self.state.is_at_rest:
                self._wait(self._has_ended)

        self._as_user(wait)

    def done(self) -> bool:
        """Returns whether every closure has ended.

        Raises:
            BaseException: The first error of a closure.
        """
        return self._as_user(lambda: self._raise_error() and self.state.is_at_rest)

    def fetch(self, value: RemoteValue, *, as_jax: bool) -> Any:
        """Waits for a result and returns it."""

        def wait() -> tuple[Closure, Parcel | None, int | None]:
            closure = self._wait_for(value)
            if closure.status is Status.FAILED:
                assert closure.error is not None
                raise closure.error
            return closure, value._parcel, closure.where

        def lose(closure: Closure, holder: int | None) -> None:
            if closure.where == holder:
                self.state.value_lost(closure)

        while True:
            closure, parcel, holder = self._as_user(wait)
            if parcel is None:
                assert holder is not None
                parcel = self._links[holder].fetch(closure.number)
            if parcel is not None:
                return unpack(parcel, as_jax=as_jax)
            self._as_user(functools.partial(lose, closure, holder))

    def _as_user(self, call: Callable[[], Result]) -> Result:
        """Returns what ``call`` returns, which is called with the lock held.

        A signal handler runs in the middle of whatever the main thread does, also while that holds the
        lock and has changed half of the state.

        Raises:
            ContextError: In a handler that interrupts another such call, unless that one waits.
        """
        self.background.process.check()
        with self.lock:
            if self._is_changing:
                raise ContextError(
                    "A signal handler cannot schedule functions, or wait for them, while it interrupts a "
                    "call of the same coordinator in the same thread. Set a flag in the handler, and do "
                    "it in the loop when the flag is set."
                )
            self._is_changing = True
            try:
                return call()
            finally:
                self._is_changing = False

    def _wait(self, condition: threading.Condition) -> None:
        """Waits, in a call of ``_as_user``, until the condition may have become true."""
        self._is_changing = False
        try:
            # For a while: it may become true in a handler that runs before this begins to wait.
            condition.wait(_POLL_SECONDS)
        finally:
            self._is_changing = True

    # What links report. All of it with the lock.

    def take(self, worker: int, limit: int) -> list[Closure]:
        """Returns closures for a worker to run."""
        taken, settled = self.state.take(worker, limit)
        self._settle(settled)
        # Not for every closure: who waits for room then has work for a while.
        if taken and self.state.num_queued <= 3 * self._most_queued // 4:
            self._has_room.notify_all()
        return taken

    def refer(self, reference: ByReference, worker: int) -> tuple[Definition | None, SentReference]:
        """Returns how a worker finds what an argument refers to, and a definition that it needs."""
        return refer(reference, worker, self._links)

    def succeeded(self, worker: int, number: int, parcel: Parcel | None) -> None:
        """Takes in a result, or that the worker holds it."""
        settled = self.state.succeeded(worker, number, held=parcel is None)
        for closure in settled:
            self._latency.add(time.monotonic() - closure.scheduled_at)
            value = closure.payload.value()
            if value is not None:
                value._parcel = parcel
            elif parcel is None:
                self.dropped.append(closure)
        had_waiters = self.state.num_queued > 0
        self._settle(settled)
        if had_waiters:
            self._links.wake_all()

    def failed(self, worker: int, number: int, error: BaseException) -> None:
        """Takes in what a closure raised."""
        was_open = self.state.phase is CoordinatorPhase.OPEN
        if isinstance(error, PSUnavailableError):
            if self.restorer is not None:
                self.restorer.begin(error)
                self._settle(self.state.interrupted(worker, number, error))
                return
            self._abort(error)
        self._settle(self.state.failed(worker, number, error))
        if was_open:
            self._links.recall_all()

    def put_back(self, worker: int, number: int, missing: int | None) -> None:
        """Takes in that a closure was not started."""
        if missing is not None:
            for closure in self.state.in_flight_on(worker):
                if closure.number == number:
                    self.dropped.extend(n for n in closure.needs if n.number == missing)
            self.take_dropped()
        self._settle(self.state.put_back(worker, number))
        self._links.wake_all()

    def worker_joined(self, worker: int) -> None:
        """Takes in that a worker is there."""
        self.state.worker_joined(worker)
        self._refusals.discard(worker)
        _logger.info("%s is there.", self._links[worker].task)

    def worker_lost(self, worker: int, error: Exception) -> None:
        """Takes in that a worker is gone."""
        count = self.state.num_in_flight_on(worker)
        again = f" Its {count} functions run again elsewhere." if count else ""
        _logger.warning("Lost a worker: %s%s", error, again)
        self._settle(self.state.worker_lost(worker, error))
        self._links.wake_all()

    def take_dropped(self) -> None:
        """Lets workers drop results that nobody can ask for."""
        while self.dropped:
            closure = self.dropped.popleft()
            holder = self.state.release(closure)
            if holder is not None:
                self._links[holder].released.append(closure.number)

    # What is reported from elsewhere, without the lock.

    def worker_refused(self, worker: int, error: Exception, *, is_proven: bool) -> None:
        """Takes in that a worker is there, but does not want or is not able to work.

        The others go on without it. It is an error if there are none; or, unless the worker has proved
        who it is, when all have refused: whoever listens on the port of a worker that is dead or late
        can refuse.
        """
        with self.lock:
            if self.stopped:
                return
            if worker not in self._refusals:
                self._refusals.add(worker)
                _logger.warning("%s does not work: %s", self._links[worker].task, error)
            if not self.state.workers and (is_proven or self._refusals.issuperset(self._links)):
                self._abort(error)

    def withdraw(self, error: BaseException) -> None:
        """Takes in that what was given to ``server_lost`` has passed."""
        with self.lock:
            self.state.withdraw(error)
            if self.state.phase is CoordinatorPhase.OPEN:
                self._drain_until = None

    def check(self) -> None:
        """Looks whether something has been waited for too long; called every now and then."""
        if self.abandoned:
            self.stop()
        now = time.monotonic()
        with self.lock:
            if self._drain_until is not None and now >= self._drain_until:
                self._drain_until = None
                self._settle(self.state.stop_draining())
            missing: list[frozenset[int] | None] = [*self.state.missing_workers()]
            if not self.state.workers and not self.state.is_idle:
                missing.append(None)
            if error := self._absence.error(missing, now, self._links.values()):
                self._abort(error)

    def server_lost(self, error: PSUnavailableError) -> bool:
        """Takes in that a server is gone; returns whether ``withdraw`` may take that back."""
        with self.lock:
            if self.restorer is None:
                is_news = self.state.phase is CoordinatorPhase.OPEN
                self._abort(error)
                return is_news
            self.restorer.begin(error)
            return False

    def pause(self) -> None:
        """Gives no closures to workers, and asks for those back that have not started; with the lock."""
        self.state.pause()
        self._links.recall_all()

    def resume(self, error: BaseException | None) -> None:
        """Gives closures to workers again, or takes in that nothing can go on."""
        with self.lock:
            self.state.resume()
            if error is not None:
                self._abort(error)
            self._has_ended.notify_all()
            self._links.wake_all()

    def _abort(self, error: BaseException) -> None:
        settled = self.state.abort(error)
        if self.state.phase is CoordinatorPhase.DRAINING and self._drain_until is None:
            self._drain_until = time.monotonic() + _SECONDS_TO_DRAIN
        self._settle(settled)
        self._links.recall_all()

    # What all of them share, with the lock.

    def _raise_error(self) -> bool:
        """Raises the error of a closure if there is one, once all closures have ended."""
        self.background.check()
        while self.state.phase is CoordinatorPhase.DRAINING and not self.state.has_error:
            self._wait(self._has_ended)
            self.background.check()
        error = self.state.take_error()
        if error is not None:
            self._drain_until = None
            raise error
        if self.stopped:
            raise CancelledError(_HAS_ENDED)
        return True

    def _wait_for(self, value: RemoteValue) -> Closure:
        closure = value._closure
        while True:
            if self.stopped and (closure.status is Status.LOST or not closure.settled):
                self.background.check()
                raise CancelledError(_HAS_ENDED)
            if closure.status is Status.LOST:
                self._settle(self.state.demand(closure))
                self._links.wake_all()
            if closure.settled:
                return closure
            if value._waiter is None:
                value._waiter = threading.Condition(self.lock)
                self._waiters.add(value._waiter)
            self._wait(value._waiter)

    def _settle(self, closures: Iterable[Closure]) -> None:
        for closure in closures:
            value = closure.payload.value()
            if value is not None and value._waiter is not None:
                value._waiter.notify_all()
            if closure.status is Status.HELD:
                closure.payload = closure.payload.without_values()
            else:
                closure.payload = closure.payload.emptied()
        if self.state.is_idle:
            self._has_ended.notify_all()
            self._has_room.notify_all()

    def _wake_for(self, closure: Closure) -> None:
        if closure.status is Status.QUEUED:
            self._links.wake_one(closure.workers, self.state.num_in_flight_on)
        else:
            self._links.wake_all()
