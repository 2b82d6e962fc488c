"""``CoordinatorState``: the scheduling rules, as a state machine without I/O.

Events go in as method calls; each returns the closures that were settled by it.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable

from stratagem._src.core.errors import CancelledError, UnavailableError
from stratagem._src.parameter_server.coordinator.closure import Closure, Status
from stratagem._src.parameter_server.coordinator.closure_queue import ClosureQueue

__all__ = ["CoordinatorPhase", "CoordinatorState"]


_MAX_LOSSES = 16


class CoordinatorPhase(enum.Enum):
    """Whether the coordinator schedules closures."""

    OPEN = "assigns closures to workers"
    DRAINING = "has an error, and waits for the closures in flight"


class CoordinatorState:
    """Decides which worker runs which closure, and tracks the outcomes.

    An error of a function stops everything: queued closures are cancelled, those in flight drain, and
    then the first error is raised, once. The closures of a lost worker return to their place in the
    queue. A result that was lost with its worker is recomputed when it is needed, as long as its inputs
    are available or can be recomputed too.

    >>> from stratagem._src.parameter_server.coordinator.closure import Closure
    >>> state = CoordinatorState()
    >>> state.worker_joined(0); state.worker_joined(1)
    >>> for number in range(3):
    ...     _ = state.schedule(Closure(number))
    >>> state.take(0, limit=2)
    ([<closure 0 IN_FLIGHT>, <closure 1 IN_FLIGHT>], [])
    >>> state.worker_lost(0)
    []
    >>> state.take(1, limit=1)
    ([<closure 0 IN_FLIGHT>], [])
    >>> state.failed(1, 0, ValueError("no"))
    [<closure 0 FAILED>, <closure 1 FAILED>, <closure 2 FAILED>]
    >>> state.take_error(), state.take_error()
    (ValueError('no'), None)
    """

    def __init__(self) -> None:
        self.phase: CoordinatorPhase = CoordinatorPhase.OPEN
        self.workers: set[int] = set()
        self._queue = ClosureQueue()
        self._waiting: dict[int, Closure] = {}
        self._in_flight: defaultdict[int, dict[int, Closure]] = defaultdict(dict)
        self._held: defaultdict[int, dict[int, Closure]] = defaultdict(dict)
        self._error: BaseException | None = None
        self._unobserved_error: BaseException | None = None
        self._is_paused = False
        self.num_returned: int = 0
        self.num_retries: int = 0

    # --- queries --------------------------------------------------------------------------------

    @property
    def num_queued(self) -> int:
        """Number of closures that are not assigned to a worker."""
        return len(self._queue) + len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        """Number of closures that workers have."""
        return sum(map(len, self._in_flight.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no closure is left to run."""
        return not (any(self._in_flight.values()) or self._waiting or self._queue)

    @property
    def is_at_rest(self) -> bool:
        """Whether no closure is left to run, and scheduling is not paused."""
        return self.is_idle and not self._is_paused

    @property
    def has_error(self) -> bool:
        """Whether ``take_error`` would return an error: all closures have ended."""
        return self.phase is CoordinatorPhase.DRAINING and not any(self._in_flight.values())

    def in_flight_on(self, worker: int) -> list[Closure]:
        """Returns the closures that a worker has."""
        return list(self._in_flight[worker].values())

    def num_in_flight_on(self, worker: int) -> int:
        """Returns the number of closures that a worker has."""
        return len(self._in_flight[worker])

    def has_work_for(self, worker: int) -> bool:
        """Returns whether there is a closure for a worker to start."""
        return (
            not self._is_paused
            and self.phase is CoordinatorPhase.OPEN
            and self._queue.has_work_for(worker)
        )

    def missing_workers(self) -> list[frozenset[int]]:
        """Returns the worker groups that queued closures need and that have no connected worker."""
        return [group for group in self._queue.meant_for() if not group & self.workers]

    def is_error_of(self, closures: Iterable[Closure]) -> bool:
        """Returns whether the pending error is that of one of these closures."""
        return self._error is not None and any(c.error is self._error for c in closures)

    def take_error(self) -> BaseException | None:
        """Returns and clears the error to raise, if all closures have ended."""
        if not self.has_error:
            return None
        error, self._error, self._unobserved_error = self._error, None, None
        self.phase = CoordinatorPhase.OPEN
        return error

    # --- events ---------------------------------------------------------------------------------

    def schedule(self, closure: Closure) -> list[Closure]:
        """Adds a closure. There must be no pending error."""
        assert self.phase is CoordinatorPhase.OPEN, "raise the error before scheduling more"
        return self._enqueue(closure)

    def worker_joined(self, worker: int) -> None:
        """A worker has connected, for the first time or again."""
        assert not self._in_flight[worker], "a worker joins after it was lost"
        self.workers.add(worker)

    def worker_lost(self, worker: int, reason: BaseException | None = None) -> list[Closure]:
        """A worker is lost, with its closures in flight and its held results."""
        self.workers.discard(worker)
        for closure in self._held.pop(worker, {}).values():
            closure.status, closure.where = Status.LOST, None
        settled: list[Closure] = []
        for closure in self._in_flight.pop(worker, {}).values():
            closure.losses += 1
            if closure.losses < _MAX_LOSSES:
                self.num_retries += 1
                settled += self._put_back(closure)
            else:
                settled += self._fail_and_stop(closure, _lost_too_often_error(closure, reason))
        return settled

    def take(self, worker: int, limit: int) -> tuple[list[Closure], list[Closure]]:
        """Assigns up to ``limit`` closures to a worker; returns them, and closures that failed instead."""
        taken: list[Closure] = []
        settled: list[Closure] = []
        while not self._is_paused and self.phase is CoordinatorPhase.OPEN and len(taken) < limit:
            closure = self._queue.pop(worker)
            if closure is None:
                break
            if not all(map(_is_available, closure.needs)):
                settled += self._enqueue(closure)
                continue
            closure.status, closure.where = Status.IN_FLIGHT, worker
            self._in_flight[worker][closure.number] = closure
            taken.append(closure)
        return taken, settled

    def succeeded(self, worker: int, number: int, *, held: bool = False) -> list[Closure]:
        """A closure has returned; its result is here, or the worker holds it."""
        closure = self._in_flight[worker].pop(number, None)
        if closure is None:
            return []
        if held:
            closure.status = Status.HELD
            self._held[worker][number] = closure
        else:
            closure.status, closure.where = Status.SUCCEEDED, None
        self.num_returned += 1
        closure.release_needs()
        waiters, closure.waiters = closure.waiters, []
        for waiter in waiters:
            waiter.unmet -= 1
            if not waiter.unmet and self._waiting.pop(waiter.number, None) is not None:
                self._make_ready(waiter)
        return [closure]

    def failed(self, worker: int, number: int, error: BaseException) -> list[Closure]:
        """A closure has raised: the first error wins, and stops everything, unless it was cancelled."""
        closure = self._in_flight[worker].pop(number, None)
        if closure is None:
            return []
        if closure.cancelled_with is not None:
            return _fail(closure, error)
        return self._fail_and_stop(closure, error)

    def pause(self) -> None:
        """A server is lost: assigns no closures until ``resume``."""
        self._is_paused = True

    def resume(self) -> None:
        """The servers are back."""
        self._is_paused = False

    def interrupted(self, worker: int, number: int, error: BaseException) -> list[Closure]:
        """A closure has raised because a server was lost: runs it again, a limited number of times."""
        closure = self._in_flight[worker].pop(number, None)
        if closure is None:
            return []
        closure.losses += 1
        if closure.losses < _MAX_LOSSES:
            self.num_retries += 1
            return self._put_back(closure)
        return self._fail_and_stop(closure, error)

    def put_back(self, worker: int, number: int) -> list[Closure]:
        """A worker returns a closure that it did not start."""
        closure = self._in_flight[worker].pop(number, None)
        return [] if closure is None else self._put_back(closure)

    def abort(self, error: BaseException) -> list[Closure]:
        """Fails every queued closure, for a reason outside the functions."""
        if self.phase is not CoordinatorPhase.OPEN:
            return []
        self._unobserved_error = error if self.is_idle else None
        return self._stop(error, lambda _: error)

    def withdraw(self, error: BaseException) -> None:
        """Withdraws the error of ``abort``: it is not raised, unless a closure has failed with it."""
        if self.has_error and self._error is error and self._unobserved_error is error:
            self.take_error()

    def cancel(self, closures: Iterable[Closure], error: BaseException) -> list[Closure]:
        """Fails closures that have not started, and those that need them; others do not run again."""
        unseen, cancelled = list(closures), []
        while unseen:
            closure = unseen.pop()
            if not closure.settled:
                closure.cancelled_with = error
                cancelled.append(closure)
                unseen += closure.waiters
        waiting = [closure for closure in cancelled if closure.status is not Status.IN_FLIGHT]
        self._queue.remove(set(waiting))
        for closure in waiting:
            self._waiting.pop(closure.number, None)
        return [settled for closure in waiting for settled in _fail(closure, error)]

    def stop_draining(self) -> list[Closure]:
        """Stops waiting for closures in flight; later reports about them are ignored."""
        if self.phase is not CoordinatorPhase.DRAINING:
            return []
        error = self._error
        assert error is not None
        settled: list[Closure] = []
        for closures in self._in_flight.values():
            for closure in closures.values():
                settled += _fail(closure, error)
            closures.clear()
        return settled

    def value_lost(self, closure: Closure) -> None:
        """A worker no longer holds a result."""
        if closure.status is Status.HELD:
            assert closure.where is not None
            self._held[closure.where].pop(closure.number, None)
            closure.status, closure.where = Status.LOST, None

    def demand(self, closure: Closure) -> list[Closure]:
        """A result is needed: if it is lost, runs its closure again, after the closures that it needs."""
        if closure.status is not Status.LOST:
            return []
        lost = _closures_to_rerun(closure)
        if lost is None:
            return _fail(closure, _unrecoverable_error(closure))
        if self.phase is not CoordinatorPhase.OPEN:
            assert self._error is not None
            return _fail(closure, _cancelled(closure, self._error))
        for again in lost:
            again.reacquire_needs()
        return [settled for again in lost for settled in self._enqueue(again)]

    def release(self, closure: Closure) -> int | None:
        """A result is no longer referenced; returns the worker that holds it, or ``None``."""
        if closure.status is not Status.HELD:
            return None
        assert closure.where is not None
        self._held[closure.where].pop(closure.number, None)
        holder, closure.where = closure.where, None
        closure.status = Status.LOST
        return holder

    def _enqueue(self, closure: Closure) -> list[Closure]:
        settled: list[Closure] = []
        for needed in closure.needs:
            settled += self.demand(needed)
        failure = next((n for n in closure.needs if n.status is Status.FAILED), None)
        if failure is not None:
            assert failure.error is not None
            return settled + self._fail_and_stop(closure, failure.error)
        pending = [needed for needed in closure.needs if not needed.settled]
        closure.unmet = len(pending)
        closure.where = None
        if not pending:
            self._make_ready(closure)
            return settled
        closure.status = Status.WAITING
        for needed in pending:
            needed.waiters.append(closure)
        # Last: after an interrupt before, nothing waits for a closure that nothing would make ready.
        self._waiting[closure.number] = closure
        return settled

    def _make_ready(self, closure: Closure) -> None:
        closure.status = Status.QUEUED
        self._queue.put(closure)

    def _put_back(self, closure: Closure) -> list[Closure]:
        if closure.cancelled_with is not None:
            return _fail(closure, closure.cancelled_with)
        if self.phase is CoordinatorPhase.OPEN:
            return self._enqueue(closure)
        assert self._error is not None
        return _fail(closure, _cancelled(closure, self._error))

    def _fail_and_stop(self, closure: Closure, error: BaseException) -> list[Closure]:
        settled = _fail(closure, error)
        if self.phase is CoordinatorPhase.OPEN:
            settled += self._stop(error, lambda other: _cancelled(other, error))
        return settled

    def _stop(
        self, error: BaseException, error_of: Callable[[Closure], BaseException]
    ) -> list[Closure]:
        self.phase = CoordinatorPhase.DRAINING
        self._error = error
        queued: Iterable[Closure] = [*self._queue.clear(), *self._waiting.values()]
        self._waiting = {}
        return [
            settled
            for closure in sorted(queued, key=lambda closure: closure.number)
            for settled in _fail(closure, error_of(closure))
        ]


def _is_available(closure: Closure) -> bool:
    return closure.status in (Status.SUCCEEDED, Status.HELD)


def _closures_to_rerun(closure: Closure) -> list[Closure] | None:
    """Returns the closures to rerun for a lost result, oldest first; ``None`` if it is unrecoverable."""
    lost = {closure.number: closure}
    unseen = [closure]
    while unseen:
        needs = unseen.pop().released_needs()
        if needs is None or any(need.status is Status.FAILED for need in needs):
            return None
        for need in needs:
            if need.status is Status.LOST and need.number not in lost:
                lost[need.number] = need
                unseen.append(need)
    return [lost[number] for number in sorted(lost)]


def _fail(closure: Closure, error: BaseException) -> list[Closure]:
    closure.status, closure.where, closure.error = Status.FAILED, None, error
    closure.release_needs()
    closure.waiters = []
    return [closure]


def _cancelled(closure: Closure, cause: BaseException) -> CancelledError:
    error = CancelledError(
        f"Function {closure.number} was cancelled before it finished, because another scheduled "
        f"function failed with {type(cause).__name__}: {cause}"
    )
    error.__cause__ = cause
    return error


def _lost_too_often_error(closure: Closure, reason: BaseException | None) -> UnavailableError:
    last = "" if reason is None else f" The last one: {type(reason).__name__}: {reason}"
    error = UnavailableError(
        f"Function {closure.number} was running on {closure.losses} workers that were lost, one after "
        f"the other. It may be what kills them: look at their logs.{last}"
    )
    error.__cause__ = reason
    return error


def _unrecoverable_error(closure: Closure) -> UnavailableError:
    return UnavailableError(
        f"The result of function {closure.number} was lost with the worker that held it, and cannot be "
        "recomputed, because results that were its arguments are gone. Fetch a result that must "
        "survive, or keep references to the RemoteValue arguments of its function."
    )
