"""``CoordinatorState``: what happens to closures, as rules without I/O.

Reports go in as method calls; what comes back are the closures whose outcome became known.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable

from stratagem._src.core.errors import CancelledError, UnavailableError
from stratagem._src.parameter_server.coordinator.closure import Closure, Status
from stratagem._src.parameter_server.coordinator.closure_queue import ClosureQueue

__all__ = ["CoordinatorPhase", "CoordinatorState"]


_MOST_LOSSES = 16


class CoordinatorPhase(enum.Enum):
    """What the coordinator does with closures."""

    OPEN = "gives closures to workers"
    DRAINING = "has an error, and waits for the closures that workers have"


class CoordinatorState:
    """Decides which worker runs what, and what becomes of a closure.

    An error of a function stops everything: closures that no worker has are cancelled, those that
    workers have are waited for, and then the first error is raised, once. The closures of a lost
    worker go back to their place in the queue. A result that was lost with the worker that held it
    is computed again when somebody needs it, as long as the results that it was made from are there or
    can be computed again too.

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
        self._nobody_met: BaseException | None = None
        self._is_paused = False
        self.num_returned: int = 0
        self.num_retries: int = 0

    # What is asked.

    @property
    def num_queued(self) -> int:
        """How many closures no worker has."""
        return len(self._queue) + len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        """How many closures workers have."""
        return sum(map(len, self._in_flight.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no closure is left to run."""
        return not self._queue and not self._waiting and not any(self._in_flight.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether no closure is left to run, and nothing is waited for that closures would need."""
        return self.is_idle and not self._is_paused

    @property
    def has_error(self) -> bool:
        """Whether ``take_error`` would give one: all closures have ended."""
        return self.phase is CoordinatorPhase.DRAINING and not any(self._in_flight.values())

    def in_flight_on(self, worker: int) -> list[Closure]:
        """Returns the closures that a worker has."""
        return list(self._in_flight[worker].values())

    def num_in_flight_on(self, worker: int) -> int:
        """Returns how many closures a worker has."""
        return len(self._in_flight[worker])

    def has_work_for(self, worker: int) -> bool:
        """Returns whether a worker could start something."""
        return (
            not self._is_paused
            and self.phase is CoordinatorPhase.OPEN
            and self._queue.has_work_for(worker)
        )

    def missing_workers(self) -> list[frozenset[int]]:
        """Returns the groups of workers that closures are meant for, and none of which is there."""
        return [group for group in self._queue.meant_for() if not group & self.workers]

    def take_error(self) -> BaseException | None:
        """Returns the error that is to be raised, if everything has ended, and forgets it."""
        if not self.has_error:
            return None
        error, self._error, self._nobody_met = self._error, None, None
        self.phase = CoordinatorPhase.OPEN
        return error

    # What is reported.

    def schedule(self, closure: Closure) -> list[Closure]:
        """Takes in a closure. There must be no error that waits to be raised."""
        assert self.phase is CoordinatorPhase.OPEN, "raise the error before scheduling more"
        return self._enqueue(closure)

    def worker_joined(self, worker: int) -> None:
        """A worker is there, new or again."""
        assert not self._in_flight[worker], "a worker joins after it was lost"
        self.workers.add(worker)

    def worker_lost(self, worker: int, reason: BaseException | None = None) -> list[Closure]:
        """A worker is gone, with what it ran and held."""
        self.workers.discard(worker)
        for closure in self._held.pop(worker, {}).values():
            closure.status, closure.where = Status.LOST, None
        settled: list[Closure] = []
        for closure in self._in_flight.pop(worker, {}).values():
            closure.losses += 1
            if closure.losses < _MOST_LOSSES:
                self.num_retries += 1
                settled += self._put_back(closure)
            else:
                settled += self._stop_because(closure, _deadly(closure, reason))
        return settled

    def take(self, worker: int, limit: int) -> tuple[list[Closure], list[Closure]]:
        """Gives a worker up to ``limit`` closures to run, and says which have failed instead."""
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
        """A closure has returned; its result is here, or held by the worker."""
        closure = self._in_flight[worker].pop(number, None)
        if closure is None:
            return []
        if held:
            closure.status = Status.HELD
            self._held[worker][number] = closure
        else:
            closure.status, closure.where = Status.SUCCEEDED, None
        self.num_returned += 1
        closure.let_needs_go()
        waiters, closure.waiters = closure.waiters, []
        for waiter in waiters:
            waiter.unmet -= 1
            if not waiter.unmet and self._waiting.pop(waiter.number, None) is not None:
                self._make_ready(waiter)
        return [closure]

    def failed(self, worker: int, number: int, error: BaseException) -> list[Closure]:
        """A closure has raised: the first error wins, and stops everything."""
        closure = self._in_flight[worker].pop(number, None)
        if closure is None:
            return []
        return self._stop_because(closure, error)

    def pause(self) -> None:
        """Something is missing that closures need: none is given to a worker until ``resume``."""
        self._is_paused = True

    def resume(self) -> None:
        """What was missing is there again."""
        self._is_paused = False

    def interrupted(self, worker: int, number: int, error: BaseException) -> list[Closure]:
        """A closure has raised because something was missing: it runs again, but not for ever."""
        closure = self._in_flight[worker].pop(number, None)
        if closure is None:
            return []
        closure.losses += 1
        if closure.losses < _MOST_LOSSES:
            self.num_retries += 1
            return self._put_back(closure)
        return self._stop_because(closure, error)

    def put_back(self, worker: int, number: int) -> list[Closure]:
        """A worker gives back a closure that it could not start, or did not because of an error."""
        closure = self._in_flight[worker].pop(number, None)
        return [] if closure is None else self._put_back(closure)

    def abort(self, error: BaseException) -> list[Closure]:
        """Nothing can go on, for a reason outside of the functions: fails every queued closure."""
        if self.phase is not CoordinatorPhase.OPEN:
            return []
        self._nobody_met = error if self.is_idle else None
        return self._stop(error, lambda _: error)

    def withdraw(self, error: BaseException) -> None:
        """What ``abort`` was told has passed: it is not raised, unless a closure has failed of it."""
        if self.has_error and self._error is error and self._nobody_met is error:
            self.take_error()

    def stop_draining(self) -> list[Closure]:
        """Waits no longer for closures that workers have; what they report is ignored."""
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
        """A worker no longer has a result that it held."""
        if closure.status is Status.HELD:
            assert closure.where is not None
            self._held[closure.where].pop(closure.number, None)
            closure.status, closure.where = Status.LOST, None

    def demand(self, closure: Closure) -> list[Closure]:
        """Somebody needs a result; if it is lost, the closure runs again, after others that it needs."""
        if closure.status is not Status.LOST:
            return []
        lost = _to_run_again(closure)
        if lost is None:
            return _fail(closure, _gone_for_good(closure))
        if self.phase is not CoordinatorPhase.OPEN:
            assert self._error is not None
            return _fail(closure, _cancelled(closure, self._error))
        for again in lost:
            again.take_needs_back()
        return [settled for again in lost for settled in self._enqueue(again)]

    def release(self, closure: Closure) -> int | None:
        """Nobody can ask for a result any more; returns the worker that still holds it."""
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
            return settled + self._stop_because(closure, failure.error)
        pending = [needed for needed in closure.needs if not needed.settled]
        closure.unmet = len(pending)
        closure.where = None
        if not pending:
            self._make_ready(closure)
            return settled
        closure.status = Status.WAITING
        self._waiting[closure.number] = closure
        for needed in pending:
            needed.waiters.append(closure)
        return settled

    def _make_ready(self, closure: Closure) -> None:
        closure.status = Status.QUEUED
        self._queue.put(closure)

    def _put_back(self, closure: Closure) -> list[Closure]:
        if self.phase is CoordinatorPhase.OPEN:
            return self._enqueue(closure)
        assert self._error is not None
        return _fail(closure, _cancelled(closure, self._error))

    def _stop_because(self, closure: Closure, error: BaseException) -> list[Closure]:
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


def _to_run_again(closure: Closure) -> list[Closure] | None:
    """Returns the closures to run for a lost result, oldest first; ``None`` if it is gone for good."""
    lost = {closure.number: closure}
    unseen = [closure]
    while unseen:
        needs = unseen.pop().needed_before()
        if needs is None or any(need.status is Status.FAILED for need in needs):
            return None
        for need in needs:
            if need.status is Status.LOST and need.number not in lost:
                lost[need.number] = need
                unseen.append(need)
    return [lost[number] for number in sorted(lost)]


def _fail(closure: Closure, error: BaseException) -> list[Closure]:
    closure.status, closure.where, closure.error = Status.FAILED, None, error
    closure.let_needs_go()
    closure.waiters = []
    return [closure]


def _cancelled(closure: Closure, cause: BaseException) -> CancelledError:
    error = CancelledError(
        f"Function {closure.number} was cancelled before it finished, because another scheduled "
        f"function failed with {type(cause).__name__}: {cause}"
    )
    error.__cause__ = cause
    return error


def _deadly(closure: Closure, reason: BaseException | None) -> UnavailableError:
    last = "" if reason is None else f" The last one: {type(reason).__name__}: {reason}"
    error = UnavailableError(
        f"Function {closure.number} was given to {closure.losses} workers that were lost, one after "
        f"the other. It may be what ends them: look at their output.{last}"
    )
    error.__cause__ = reason
    return error


def _gone_for_good(closure: Closure) -> UnavailableError:
    return UnavailableError(
        f"The result of function {closure.number} was held by a worker that is gone, and cannot be "
        "computed again, because results that the function was given are no longer there. Fetch a "
        "result that must survive, or keep the RemoteValue arguments of its function."
    )
