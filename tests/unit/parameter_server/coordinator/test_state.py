"""The coordinator's rules: case by case, and under random events in random order."""

import weakref

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratagem._src.core.errors import CancelledError, PSUnavailableError, UnavailableError
from stratagem._src.parameter_server.coordinator.closure import Closure, Status
from stratagem._src.parameter_server.coordinator.state import CoordinatorPhase, CoordinatorState


@pytest.fixture
def state():
    state = CoordinatorState()
    state.worker_joined(0)
    state.worker_joined(1)
    return state


def numbers(closures):
    return [closure.number for closure in closures]


def taken(state, worker, limit=1):
    closures, settled = state.take(worker, limit)
    assert not settled
    return numbers(closures)


def schedule(state, *closures):
    for closure in closures:
        assert state.schedule(closure) == []


def test_priority_then_age(state):
    schedule(state, Closure(0), Closure(1, priority=1), Closure(2), Closure(3, priority=1))
    assert taken(state, 0, 4) == [1, 3, 0, 2]


def test_pinned_closures_wait_for_their_worker(state):
    schedule(state, Closure(0, workers=frozenset({1})), Closure(1))
    assert taken(state, 0, 5) == [1]
    assert taken(state, 1, 5) == [0]


def test_a_lost_workers_closures_go_back_to_their_place(state):
    schedule(state, *map(Closure, range(4)))
    assert taken(state, 0, 2) == [0, 1]
    assert state.worker_lost(0) == []
    assert state.num_retries == 2
    assert taken(state, 1, 4) == [0, 1, 2, 3]


def test_cancelled_closures_do_not_run_and_stop_nothing(state):
    closures = [Closure(number) for number in range(4)]
    closures.append(Closure(4, needs=closures[1:2]))
    schedule(state, *closures)
    assert taken(state, 0, 1) == [0]
    assert taken(state, 1, 1) == [1]
    reason = CancelledError("interrupted")
    assert sorted(numbers(state.cancel(closures[:3], reason))) == [2, 4]  # 4 needs 1
    assert all(closure.error is reason for closure in (closures[2], closures[4]))
    assert numbers(state.worker_lost(0)) == [0]  # it does not run again
    error = ValueError("no")
    assert numbers(state.failed(1, 1, error)) == [1]
    assert closures[1].error is error
    assert state.phase is CoordinatorPhase.OPEN
    assert taken(state, 1, 5) == [3]
    assert numbers(state.succeeded(1, 3)) == [3]
    assert state.is_at_rest


def test_the_pending_error_of_a_cancelled_closure_is_known(state):
    closures = [Closure(0), Closure(1)]
    schedule(state, *closures)
    taken(state, 0, 1)
    assert not state.is_error_of(closures)
    state.failed(0, 0, ValueError("no"))
    assert state.is_error_of(closures)
    assert not state.is_error_of(closures[1:])


def test_first_error_wins_and_is_raised_once_when_all_have_ended(state):
    closures = [Closure(number) for number in range(4)]
    schedule(state, *closures)
    assert taken(state, 0, 2) == [0, 1]
    assert taken(state, 1, 1) == [2]
    first, second = ValueError("first"), ValueError("second")
    assert numbers(state.failed(0, 0, first)) == [0, 3]
    assert isinstance(closures[3].error, CancelledError)
    assert closures[3].error.__cause__ is first
    assert state.take_error() is None, "closures 1 and 2 still run"
    assert state.take(1, 1) == ([], [])
    assert numbers(state.failed(1, 2, second)) == [2]
    assert closures[2].error is second
    assert numbers(state.succeeded(0, 1)) == [1]
    assert state.take_error() is first
    assert state.take_error() is None
    schedule(state, Closure(5))
    assert taken(state, 0) == [5]


def test_closures_of_a_worker_lost_while_draining_are_cancelled(state):
    closures = [Closure(0), Closure(1)]
    schedule(state, *closures)
    taken(state, 0), taken(state, 1)
    state.failed(0, 0, ValueError())
    assert numbers(state.worker_lost(1)) == [1]
    assert isinstance(closures[1].error, CancelledError)
    assert isinstance(state.take_error(), ValueError)


def test_a_reason_to_stop_that_has_passed_is_forgotten_if_nobody_met_it(state):
    away, other = ConnectionError("away"), ConnectionError("other")
    state.abort(away)
    state.withdraw(other)
    assert state.has_error
    state.withdraw(away)
    assert not state.has_error
    assert state.take_error() is None
    schedule(state, Closure(0))
    assert taken(state, 0) == [0]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_reason_to_stop_that_has_passed_is_raised_if_a_closure_failed(state, is_running):
    away = ConnectionError("away")
    schedule(state, Closure(0))
    if is_running:
        taken(state, 0)
    state.abort(away)
    state.withdraw(away)
    state.stop_draining()
    assert state.take_error() is away


def test_closures_given_back_are_cancelled_after_an_error_and_queued_otherwise(state):
    schedule(state, Closure(0), Closure(1))
    taken(state, 0, 2)
    assert state.put_back(0, 1) == []
    assert taken(state, 1) == [1]
    state.failed(0, 0, ValueError())
    assert numbers(state.put_back(1, 1)) == [1]
    assert state.has_error


def test_a_dependent_closure_waits_and_prefers_the_worker_with_the_result(state):
    first = Closure(0)
    second = Closure(1, needs=[first])
    schedule(state, first, second, Closure(2))
    assert taken(state, 0, 3) == [0, 2]
    state.succeeded(0, 0, held=True)
    assert second.status is Status.QUEUED
    schedule(state, Closure(3))
    assert taken(state, 1, 1) == [3], "left to worker 0, which holds the argument"
    assert taken(state, 1, 1) == [1], "but not left undone"


def test_a_lost_result_is_computed_again_when_it_is_needed(state):
    first = Closure(0)
    schedule(state, first)
    taken(state, 0)
    state.succeeded(0, 0, held=True)
    state.worker_lost(0)
    assert first.status is Status.LOST
    assert state.is_idle
    second = Closure(1, needs=[first])
    schedule(state, second)
    assert taken(state, 1, 2) == [0]
    state.succeeded(1, 0)
    assert taken(state, 1, 2) == [1]


def test_a_result_lost_while_its_user_is_queued(state):
    first = Closure(0)
    second = Closure(1, needs=[first])
    schedule(state, first, second)
    taken(state, 0)
    state.succeeded(0, 0, held=True)
    state.worker_lost(0)
    assert taken(state, 1, 2) == [0]
    assert second.status is Status.WAITING


def compute(state, worker, closure, *, held=True):
    schedule(state, closure)
    assert taken(state, worker) == [closure.number]
    state.succeeded(worker, closure.number, held=held)


@pytest.mark.parametrize(
    "argument", ["here", "held elsewhere", "lost too", "in a chain of lost ones"]
)
def test_a_lost_result_of_results_is_computed_again_while_they_can_be_had(state, argument):
    first = Closure(0)
    compute(state, 0 if argument == "held elsewhere" else 1, first, held=argument != "here")
    chain = [first]
    for number in range(1, 3000 if argument == "in a chain of lost ones" else 2):
        chain.append(Closure(number, needs=[chain[-1]]))
        compute(state, 1, chain[-1])
    state.worker_lost(1)
    again = [closure for closure in chain if closure.status is Status.LOST]
    assert state.demand(chain[-1]) == []
    for closure in again:
        assert taken(state, 0, 5) == [closure.number]
        state.succeeded(0, closure.number, held=True)
    assert chain[-1].status is Status.HELD
    assert state.is_idle


def test_a_lost_result_of_a_result_that_has_gone_is_an_error(state):
    first = Closure(0)
    second = Closure(1, needs=[first])
    compute(state, 0, first)
    compute(state, 0, second)
    assert state.release(first) == 0
    del first
    state.worker_lost(0)
    third = Closure(2, needs=[second])
    assert numbers(state.schedule(third)) == [1, 2]
    assert isinstance(state.take_error(), UnavailableError)


def test_a_lost_result_of_a_result_that_nobody_owns_is_an_error(state):
    class Owner:
        pass

    owner, first = Owner(), Closure(0)
    first.owner = weakref.ref(owner)
    second = Closure(1, needs=[first])
    compute(state, 0, first, held=False)
    compute(state, 0, second)
    state.worker_lost(0)
    del owner
    assert state.demand(second) == [second]
    assert second.status is Status.FAILED
    assert state.phase is CoordinatorPhase.OPEN


def test_the_end_of_a_chain_of_results_does_not_keep_the_rest(state):
    first = Closure(0)
    second = Closure(1, needs=[first])
    compute(state, 0, first)
    compute(state, 0, second)
    state.release(first)
    gone = weakref.ref(first)
    del first
    assert gone() is None


def test_abort_fails_everything_with_the_reason(state):
    closures = [Closure(0), Closure(1)]
    schedule(state, *closures)
    taken(state, 0)
    error = UnavailableError("no server")
    assert numbers(state.abort(error)) == [1]
    assert not state.has_error
    assert numbers(state.stop_draining()) == [0]
    assert closures[0].error is closures[1].error is error
    assert state.succeeded(0, 0) == [], "came too late"
    assert state.take_error() is error


def test_a_closure_that_ends_its_workers_is_given_up(state):
    schedule(state, Closure(0), Closure(1))
    for _ in range(15):
        assert taken(state, 0) == [0]
        assert state.worker_lost(0) == []
        state.worker_joined(0)
    assert taken(state, 0) == [0]
    assert numbers(state.worker_lost(0)) == [0, 1]
    with pytest.raises(UnavailableError, match="running on 16 workers that were lost"):
        raise state.take_error()


def test_missing_workers(state):
    schedule(state, Closure(0, workers=frozenset({1})), Closure(1, workers=frozenset({0})))
    state.worker_lost(1)
    assert state.missing_workers() == [{1}]


WORKERS = st.integers(0, 2)


class AnyOrder(RuleBasedStateMachine):
    """Events in any order; at the end, every closure has settled."""

    def __init__(self):
        super().__init__()
        self.state = CoordinatorState()
        self.closures = []
        self.raised = []
        self.errors = 0

    def settle(self, closures):
        for closure in closures:
            assert closure.settled
            if closure.status is Status.FAILED:
                assert closure.error is not None

    def in_flight(self):
        return [c for worker in range(3) for c in self.state.in_flight_on(worker)]

    @rule(worker=WORKERS)
    def join(self, worker):
        if worker not in self.state.workers:
            self.state.worker_joined(worker)

    @rule(worker=WORKERS)
    def lose(self, worker):
        self.settle(self.state.worker_lost(worker))

    @precondition(lambda self: self.state.phase is CoordinatorPhase.OPEN)
    @rule(
        workers=st.none() | st.frozensets(WORKERS, min_size=1),
        priority=st.integers(0, 2),
        needs=st.lists(st.integers(0, 30), max_size=2),
    )
    def schedule(self, workers, priority, needs):
        known = [self.closures[n] for n in needs if n < len(self.closures)]
        needed = {c.number: c for c in known if c.status is not Status.FAILED}
        closure = Closure(len(self.closures), None, needed.values(), workers, priority)
        self.closures.append(closure)
        self.settle(self.state.schedule(closure))

    @rule(worker=WORKERS, limit=st.integers(1, 3))
    def take(self, worker, limit):
        if worker not in self.state.workers:
            return
        open_before = self.state.phase is CoordinatorPhase.OPEN
        closures, settled = self.state.take(worker, limit)
        self.settle(settled)
        assert open_before or not closures
        for closure in closures:
            assert closure.workers is None or worker in closure.workers
            assert all(n.status in (Status.SUCCEEDED, Status.HELD) for n in closure.needs)

    @precondition(lambda self: self.in_flight())
    @rule(
        data=st.data(), outcome=st.sampled_from(["here", "held", "failed", "back", "held", "here"])
    )
    def report(self, data, outcome):
        closure = data.draw(st.sampled_from(self.in_flight()))
        worker, number = closure.where, closure.number
        if outcome == "failed":
            self.errors += 1
            settled = self.state.failed(worker, number, ValueError(self.errors))
        elif outcome == "back":
            settled = self.state.put_back(worker, number)
        else:
            settled = self.state.succeeded(worker, number, held=outcome == "held")
        self.settle(settled)
        assert self.state.succeeded(worker, number) == [], "a report that comes twice has no effect"

    @precondition(lambda self: self.closures)
    @rule(data=st.data())
    def fetch(self, data):
        closure = data.draw(st.sampled_from(self.closures))
        self.settle(self.state.demand(closure))
        assert closure.status is not Status.LOST

    @precondition(lambda self: self.closures)
    @rule(data=st.data())
    def lose_a_value(self, data):
        self.state.value_lost(data.draw(st.sampled_from(self.closures)))

    @rule(give_up=st.booleans())
    def abort(self, give_up):
        self.settle(self.state.abort(UnavailableError("gone")))
        if give_up:
            self.settle(self.state.stop_draining())

    @rule()
    def raise_error(self):
        error = self.state.take_error()
        if error is not None:
            assert error not in self.raised, "raised twice"
            assert not self.state.num_in_flight
            self.raised.append(error)

    @invariant()
    def every_unsettled_closure_is_in_one_place(self):
        unsettled = [c for c in self.closures if not c.settled]
        in_flight = self.in_flight()
        assert len(set(numbers(in_flight))) == len(in_flight) == self.state.num_in_flight
        assert self.state.num_queued == len(unsettled) - len(in_flight)
        assert self.state.is_idle == (not unsettled)

    def teardown(self):
        for worker in range(3):
            self.join(worker)
        for _ in range(10 * len(self.closures) + 10):
            if self.state.is_idle and not self.state.has_error:
                break
            self.raise_error()
            for worker in range(3):
                self.take(worker, 3)
            for closure in self.in_flight():
                self.settle(self.state.succeeded(closure.where, closure.number))
        assert all(closure.settled for closure in self.closures)
        assert self.state.phase is CoordinatorPhase.OPEN


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_nothing_is_given_out_while_it_is_paused():
    state = CoordinatorState()
    state.worker_joined(0)
    state.pause()
    state.schedule(Closure(0))
    assert state.take(0, 4) == ([], [])
    assert not state.is_at_rest
    state.resume()
    ((closure,), _) = state.take(0, 4)
    state.succeeded(0, closure.number)
    assert state.is_at_rest
    state.pause()
    assert state.is_idle
    assert not state.is_at_rest


def test_an_interrupted_closure_runs_again_but_not_for_ever():
    state = CoordinatorState()
    state.worker_joined(0)
    state.schedule(Closure(0))
    error = PSUnavailableError("away")
    settled = []
    while not settled:
        state.take(0, 1)
        settled = state.interrupted(0, 0, error)
    assert settled[0].error is error
    assert settled[0].losses == 16
    assert state.take_error() is error
