"""``Dispatcher``: runs the coordinator's scheduling rules with threads and worker connections."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from stratagem._src.core.errors import CancelledError, ContextError, PSUnavailableError
from stratagem._src.core.wakeup import Wakeup
from stratagem._src.parameter_server.coordinator.closure import Closure, Status
from stratagem._src.parameter_server.coordinator.closure_spec import ClosureSpec
from stratagem._src.parameter_server.coordinator.mean_latency import MeanLatency
from stratagem._src.parameter_server.coordinator.no_worker_timeout import NoWorkerTimeout
from stratagem._src.parameter_server.coordinator.references import (
    SentReference,
    closures_needed,
    refer,
)
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.coordinator.state import CoordinatorPhase, CoordinatorState
from stratagem._src.parameter_server.coordinator.worker_link import WorkerLink
from stratagem._src.parameter_server.coordinator.worker_links import WorkerLinks
from stratagem._src.parameter_server.protocol.definition import Definition, Definitions
from stratagem._src.parameter_server.protocol.serialization import ByReference, Payload, unpack
from stratagem._src.process.background import Background
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.transport import Credentials

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.server_restorer import ServerRestorer

__all__ = ["Dispatcher"]

Result = TypeVar("Result")
_Waiters: TypeAlias = collections.deque[Wakeup]

_logger = logging.getLogger("stratagem")
_QUEUED_PER_WORKER = 256
_DRAIN_TIMEOUT_SECONDS = 5.0
_POLL_INTERVAL_SECONDS = 1.0
_HAS_ENDED = "The coordinator has ended."


class Dispatcher:
    """Executes the decisions of ``CoordinatorState``, and blocks the user's calls until they are done.

    If an unexpected error ends one of its threads, everything stops, and every later call raises that
    error, because the thread's remaining work is lost.

    Args:
        credentials: The coordinator's credentials.
        strategy: The pickled strategy.
        owner: The coordinator's id on the parameter servers.
        replaces: The id of the coordinator that it took over from; empty if there is none.
        closures_per_worker: Number of closures that a worker runs concurrently.
        worker_timeout: Seconds without a reply after which a worker is lost.
        patience: Seconds to wait for a worker when there is none.
    """

    def __init__(
        self,
        credentials: Credentials,
        strategy: Payload,
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
        # Reentrant: a signal handler may interrupt a call in the same thread, see _run_locked.
        self.lock: threading.RLock = threading.RLock()
        self._is_changing = False
        self.state: CoordinatorState = CoordinatorState()
        self.ended: threading.Event = threading.Event()
        self.background: Background = Background(
            "the coordinator", on_failure=self._stop_on_failure
        )
        self.abandoned = False
        self.dropped: collections.deque[Closure] = collections.deque()
        self._links = WorkerLinks()
        self.definitions: Definitions = Definitions(self._links.forget)
        self._numbers = itertools.count()
        self._waiting_for_room: _Waiters = collections.deque()
        self._waiting_for_end: _Waiters = collections.deque()
        self._credentials = credentials
        self._refusals: set[int] = set()
        self._drain_until: float | None = None
        self.patience = patience
        self._no_worker_timeout: NoWorkerTimeout = NoWorkerTimeout(patience)
        self.restorer: ServerRestorer | None = None
        self._latency = MeanLatency()
        observer = recorder()
        if observer is not None:
            observer.add_source("coordinator", self.metrics)

    def metrics(self) -> dict[str, float]:
        """Returns the queue length, the mean latency of functions, and the number of retries."""
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
        """Sets the workers' addresses: connects to new workers, and reconnects to moved ones.

        Args:
            workers: The addresses by index. A worker that is missing here stays known.
        """
        with self.lock:
            if self.stopped:
                return
            new = self._links.update(
                workers, lambda index, address: WorkerLink(self, index, address, self._credentials)
            )
            if new:
                _wake(self._waiting_for_room)
        for link in new:
            link.start()

    @property
    def workers(self) -> list[int]:
        """The indices of the workers."""
        return sorted(self._links)

    def addresses(self) -> dict[int, str]:
        """Returns the address of each worker, by index."""
        return {index: link.address for index, link in self._links.items()}

    @property
    def _max_queued(self) -> int:
        return _QUEUED_PER_WORKER * max(1, len(self._links))

    def stop(self) -> None:
        """Stops the threads and closes the sessions with the workers."""
        if not self.background.process.is_here:
            return
        with self.lock:
            if self.stopped:
                return
            self.ended.set()
            self._settle(self.state.abort(CancelledError(_HAS_ENDED)))
            self._settle(self.state.stop_draining())
        self._links.close()

    def _stop_on_failure(self, error: BaseException) -> None:
        """Stops after a thread failed; blocked calls raise ``error``."""
        error.add_note("Raised in a thread of the coordinator, which has stopped because of it.")
        with self.lock:
            self.ended.set()
            _wake(self._waiting_for_room)
            _wake(self._waiting_for_end)
        self._links.close()

    # --- called by users ------------------------------------------------------------------------

    def schedule(
        self,
        definition: Definition,
        arguments: Payload,
        workers: frozenset[int] | None,
        priority: float,
    ) -> RemoteValue:
        """Queues a closure; blocks while the queue is full.

        Raises:
            BaseException: The error of an earlier closure.
        """
        needs = list(closures_needed(arguments.references))
        closure = Closure(next(self._numbers), None, needs, workers, priority)
        closure.scheduled_at = time.monotonic()
        value = RemoteValue(self, closure)
        closure.owner = weakref.ref(value)
        closure.spec = ClosureSpec(definition, arguments, closure.owner)

        def queue() -> None:
            self._raise_error()
            if self.state.num_queued >= self._max_queued:
                raise _NotYet(self._waiting_for_room)
            for needed in needs:
                if needed.status is Status.FAILED:
                    raise CancelledError(
                        f"An argument is the result of function {needed.number}, which failed."
                    ) from needed.error
            self._settle(self.state.schedule(closure))
            self._wake_for(closure)

        self._run_locked(queue)
        return value

    def join(self) -> None:
        """Waits until every closure has ended.

        Raises:
            BaseException: The first error of a closure.
        """

        def check() -> None:
            self._raise_error()
            if not self.state.is_at_rest:
                raise _NotYet(self._waiting_for_end)

        self._run_locked(check)

    def done(self) -> bool:
        """Returns whether every closure has ended.

        Raises:
            BaseException: The first error of a closure.
        """

        def check() -> bool:
            self._raise_error()
            return self.state.is_at_rest

        return self._run_locked(check)

    def cancel(self, values: Iterable[RemoteValue]) -> None:
        """Cancels the closures of values, and waits a few seconds for those that workers run.

        An error of theirs is not raised later.
        """
        closures = [value._closure for value in values]
        deadline = time.monotonic() + _DRAIN_TIMEOUT_SECONDS

        def cancel() -> None:
            self._settle(self.state.cancel(closures, CancelledError("The call was interrupted.")))
            self._links.recall_all()

        def wait() -> None:
            is_error_pending = self.state.is_error_of(closures)
            if is_error_pending and self.state.has_error:
                self.state.take_error()
                self._drain_until = None
                return
            is_over = not is_error_pending and all(closure.settled for closure in closures)
            if not is_over and time.monotonic() < deadline:
                raise _NotYet(self._waiting_for_end)

        self._run_locked(cancel)
        self._run_locked(wait)

    def fetch(self, value: RemoteValue, *, as_jax: bool) -> Any:
        """Waits for a result and returns it."""

        def find() -> tuple[Closure, Payload | None, int | None]:
            closure = self._settled(value)
            if closure.status is Status.FAILED:
                assert closure.error is not None
                raise closure.error
            return closure, value._payload, closure.where

        def lose(closure: Closure, holder: int | None) -> None:
            if closure.where == holder:
                self.state.value_lost(closure)

        while True:
            closure, payload, holder = self._run_locked(find)
            if payload is None:
                assert holder is not None
                payload = self._links[holder].fetch(closure.number)
            if payload is not None:
                return unpack(payload, as_jax=as_jax)
            self._run_locked(functools.partial(lose, closure, holder))

    def _run_locked(self, call: Callable[[], Result]) -> Result:
        """Calls ``call`` with the lock held and returns its result; again later if it raises ``_NotYet``.

        A signal handler interrupts the main thread anywhere, also while it holds the (reentrant) lock and
        has changed only half of the state. If the handler raises, the call is as good as not made: what it
        changes counts with its last step, and a thread that was not woken polls. That is also why it waits
        without the lock, on an object of its own: a ``threading.Condition`` may lose it in an interrupt.

        Raises:
            ContextError: In a signal handler that interrupts another such call, unless that one waits.
        """
        self.background.process.check()
        wakeup: Wakeup | None = None
        waiters: _Waiters = collections.deque()
        while True:
            with self.lock:
                if self._is_changing:
                    raise ContextError(
                        "A signal handler cannot schedule functions, or wait for them, while it interrupts "
                        "a call of the same coordinator in the same thread. Set a flag in the handler, and "
                        "check the flag in the training loop."
                    )
                self._is_changing = True
                try:
                    if wakeup is not None:
                        with contextlib.suppress(ValueError):  # it was woken
                            waiters.remove(wakeup)
                    return call()
                except _NotYet as later:
                    wakeup, waiters = wakeup or Wakeup(), later.waiters
                    waiters.append(wakeup)
                finally:
                    self._is_changing = False
            # Not for ever: another thread's wake may have been interrupted, too.
            wakeup.wait(_POLL_INTERVAL_SECONDS)

    # --- called by worker links, with the lock --------------------------------------------------

    def take(self, worker: int, limit: int) -> list[Closure]:
        """Returns closures for a worker to run."""
        taken, settled = self.state.take(worker, limit)
        self._settle(settled)
        # Only below three quarters, not for every closure: a blocked schedule() then has room for many.
        if taken and self.state.num_queued <= 3 * self._max_queued // 4:
            _wake(self._waiting_for_room)
        return taken

    def refer(self, reference: ByReference, worker: int) -> tuple[Definition | None, SentReference]:
        """Returns how a worker finds an argument's referent, and the definition that it needs for it."""
        return refer(reference, worker, self._links)

    def succeeded(self, worker: int, number: int, payload: Payload | None) -> None:
        """Handles the success of a closure; ``payload`` is ``None`` if the worker holds the result."""
        settled = self.state.succeeded(worker, number, held=payload is None)
        for closure in settled:
            self._latency.add(time.monotonic() - closure.scheduled_at)
            value = closure.spec.value()
            if value is not None:
                value._payload = payload
            elif payload is None:
                self.dropped.append(closure)
        had_waiters = self.state.num_queued > 0
        self._settle(settled)
        if had_waiters:
            self._links.wake_all()

    def failed(self, worker: int, number: int, error: BaseException) -> None:
        """Handles the exception of a closure."""
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
        """Requeues a closure that was not started."""
        if missing is not None:
            for closure in self.state.in_flight_on(worker):
                if closure.number == number:
                    self.dropped.extend(n for n in closure.needs if n.number == missing)
            self.release_dropped()
        self._settle(self.state.put_back(worker, number))
        self._links.wake_all()

    def worker_joined(self, worker: int) -> None:
        """Handles a worker that has connected."""
        self.state.worker_joined(worker)
        self._refusals.discard(worker)
        _logger.info("%s is connected.", self._links[worker].task)

    def worker_lost(self, worker: int, error: Exception) -> None:
        """Handles the loss of a worker."""
        count = self.state.num_in_flight_on(worker)
        again = f" Its {count} functions run again on other workers." if count else ""
        _logger.warning("Lost a worker: %s%s", error, again)
        self._settle(self.state.worker_lost(worker, error))
        self._links.wake_all()

    def release_dropped(self) -> None:
        """Tells workers to drop results that are no longer referenced."""
        while self.dropped:
            closure = self.dropped.popleft()
            holder = self.state.release(closure)
            if holder is not None:
                self._links[holder].released.append(closure.number)

    # --- called by other threads, without the lock ----------------------------------------------

    def worker_refused(self, worker: int, error: Exception, *, is_proven: bool) -> None:
        """Handles a worker that is reachable but rejects the coordinator or fails.

        The other workers continue. If there is no other worker, this is an error: immediately if the
        worker is authenticated (``is_proven``), else only when all workers have refused, because any
        process that listens on the port of a dead or late worker can refuse.
        """
        with self.lock:
            if self.stopped:
                return
            if worker not in self._refusals:
                self._refusals.add(worker)
                _logger.warning("%s refuses work: %s", self._links[worker].task, error)
            if not self.state.workers and (is_proven or self._refusals.issuperset(self._links)):
                self._abort(error)

    def withdraw(self, error: BaseException) -> None:
        """Withdraws an error that was reported to ``server_lost``: the server is back."""
        with self.lock:
            self.state.withdraw(error)
            if self.state.phase is CoordinatorPhase.OPEN:
                self._drain_until = None

    def check(self) -> None:
        """Checks the deadlines; called periodically."""
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
            if error := self._no_worker_timeout.error(missing, now, self._links.values()):
                self._abort(error)

    def server_lost(self, error: PSUnavailableError) -> bool:
        """Handles the loss of a server; returns whether ``withdraw`` may undo it."""
        with self.lock:
            if self.restorer is None:
                is_news = self.state.phase is CoordinatorPhase.OPEN
                self._abort(error)
                return is_news
            self.restorer.begin(error)
            return False

    def pause(self) -> None:
        """Stops assigning closures to workers, and recalls those that have not started; with the lock."""
        self.state.pause()
        self._links.recall_all()

    def resume(self, error: BaseException | None) -> None:
        """Assigns closures to workers again; with an error, fails all closures."""
        with self.lock:
            self.state.resume()
            if error is not None:
                self._abort(error)
            _wake(self._waiting_for_end)
            self._links.wake_all()

    def _abort(self, error: BaseException) -> None:
        settled = self.state.abort(error)
        if self.state.phase is CoordinatorPhase.DRAINING and self._drain_until is None:
            self._drain_until = time.monotonic() + _DRAIN_TIMEOUT_SECONDS
        self._settle(settled)
        self._links.recall_all()

    # --- shared, with the lock ------------------------------------------------------------------

    def _raise_error(self) -> None:
        """Raises a closure's error, if there is one, after all closures have ended.

        Raises:
            _NotYet: If there is one, and closures still run.
        """
        self.background.check()
        if self.state.phase is CoordinatorPhase.DRAINING and not self.state.has_error:
            raise _NotYet(self._waiting_for_end)
        error = self.state.take_error()
        if error is not None:
            self._drain_until = None
            raise error
        if self.stopped:
            raise CancelledError(_HAS_ENDED)

    def _settled(self, value: RemoteValue) -> Closure:
        """Returns the closure of a value if its outcome is known; runs it again if its result was lost.

        Raises:
            _NotYet: If it is not known yet.
        """
        closure = value._closure
        if self.stopped and (closure.status is Status.LOST or not closure.settled):
            self.background.check()
            raise CancelledError(_HAS_ENDED)
        if closure.status is Status.LOST:
            self._settle(self.state.demand(closure))
            self._links.wake_all()
        if not closure.settled:
            raise _NotYet(value._waiters)
        return closure

    def _settle(self, closures: Iterable[Closure]) -> None:
        for closure in closures:
            value = closure.spec.value()
            if value is not None:
                _wake(value._waiters)
            if closure.status is Status.HELD:
                closure.spec = closure.spec.without_values()
            else:
                closure.spec = closure.spec.emptied()
        if self.state.is_idle:
            _wake(self._waiting_for_end)
            _wake(self._waiting_for_room)

    def _wake_for(self, closure: Closure) -> None:
        if closure.status is Status.QUEUED:
            self._links.wake_one(closure.workers, self.state.num_in_flight_on)
        else:
            self._links.wake_all()


class _NotYet(Exception):
    """What a call needs has not happened; it is made again when the waiters are woken."""

    def __init__(self, waiters: _Waiters) -> None:
        super().__init__()
        self.waiters = waiters


def _wake(waiters: _Waiters) -> None:
    while waiters:
        waiters.popleft().wake()
