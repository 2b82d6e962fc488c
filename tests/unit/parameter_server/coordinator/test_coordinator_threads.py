"""A thread that ends by an error nobody expected: who waits, and who asks next, raises it."""

import contextlib
import pickle
import threading
import traceback

import numpy as np
import pytest

import stratagem as sg
import stratagem._src.parameter_server.coordinator.periodic_checks as watch
from stratagem._src.parameter_server.protocol.worker_messages import encode
from stratagem._src.parameter_server.worker.worker_service import WorkerService
from stratagem._src.transport import Message

_shared = {}


def _wait_for_event():
    _shared["started"].set()
    assert _shared["held"].wait(30)


@pytest.fixture(autouse=True)
def _events():
    _shared["started"], _shared["held"] = threading.Event(), threading.Event()
    yield
    _shared["held"].set()


class Nonsense(Exception):
    pass


def raise_nonsense(*args, **kwargs):
    raise Nonsense("an error that nobody expected")


def wait_in_threads(coordinator, in_thread):
    """Lets threads wait for a function that does not end, in every way there is."""
    running = coordinator.schedule(_wait_for_event, worker=0)
    assert _shared["started"].wait(30)

    def fill():
        while True:
            coordinator.schedule(_wait_for_event, worker=0)

    return [in_thread(call) for call in (coordinator.join, running.fetch, fill)]


def check_that_it_broke(coordinator, outcomes, poll, kind=Nonsense, function="raise_nonsense"):
    """Checks that all who wait and all who ask raise the error, with the traceback of its origin."""
    for outcome in outcomes:
        assert isinstance(poll(lambda outcome=outcome: outcome)[0], kind)
    asks = (coordinator.join, coordinator.done, lambda: coordinator.schedule(abs, (1,)))
    for ask in (*asks, *asks):
        with pytest.raises(kind) as caught:
            ask()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names.count(function) == 1, names
        assert any("a thread of the coordinator" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("rule", ["take", "num_in_flight_on"])
def test_a_lane_whose_rules_fail(coordinator, in_thread, monkeypatch, poll, rule):
    outcomes = wait_in_threads(coordinator, in_thread)
    monkeypatch.setattr(coordinator._dispatcher.state, rule, raise_nonsense)
    check_that_it_broke(coordinator, outcomes, poll)


def test_a_check_of_deadlines_that_fails(coordinator, in_thread, monkeypatch, poll):
    outcomes = wait_in_threads(coordinator, in_thread)
    monkeypatch.setattr(coordinator._dispatcher.state, "missing_workers", raise_nonsense)
    check_that_it_broke(coordinator, outcomes, poll)


def test_a_resolver_that_returns_nonsense(cluster, in_thread, monkeypatch, poll):
    monkeypatch.setattr(watch, "_WORKER_DISCOVERY_INTERVAL_SECONDS", 0.02)
    coordinator = cluster.coordinator()
    outcomes = wait_in_threads(coordinator, in_thread)
    resolver = coordinator.strategy.cluster_resolver
    monkeypatch.setattr(resolver, "cluster_spec", lambda: {"worker": 3})
    check_that_it_broke(coordinator, outcomes, poll, ValueError, "_workers_in")


def test_a_resolver_that_is_away_is_asked_again(cluster, monkeypatch, poll, caplog):
    monkeypatch.setattr(watch, "_WORKER_DISCOVERY_INTERVAL_SECONDS", 0.02)
    coordinator = cluster.coordinator()
    resolver = coordinator.strategy.cluster_resolver
    monkeypatch.setattr(resolver, "cluster_spec", raise_nonsense)
    poll(lambda: "failed to list the workers" in caplog.text)
    assert coordinator.schedule(abs, (-1,)).fetch() == 1


def test_a_parameter_server_that_no_longer_trusts_the_coordinator(
    cluster, in_thread, monkeypatch, poll
):
    coordinator = cluster.coordinator()
    outcomes = wait_in_threads(coordinator, in_thread)
    cluster.stop("ps", 0)
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "another secret than before")
    cluster.start("ps", 0)
    monkeypatch.delenv("STRATAGEM_CLUSTER_SECRET")
    check_that_it_broke(coordinator, outcomes, poll, PermissionError, "check_server")


def test_results_that_are_here_stay(cluster, monkeypatch, poll):
    coordinator = cluster.coordinator()
    small = coordinator.schedule(abs, (-3,))
    large = coordinator.schedule(np.ones, (100_000,))
    coordinator.join()
    monkeypatch.setattr(coordinator._dispatcher.state, "missing_workers", raise_nonsense)
    poll(lambda: not coordinator._dispatcher.background.alive())
    assert not cluster.service(0)._sessions, "the workers are told"
    assert small.fetch() == 3
    with pytest.raises(Nonsense):
        large.fetch()


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (Message(b"not a pickle"), pickle.UnpicklingError, ""),
        (encode({"some": "object"}), sg.errors.RemoteError, "got {'some': 'object'} from"),
        (encode(["report"]), sg.errors.RemoteError, "/job:worker/task:0 at 127"),
    ],
)
def test_a_worker_that_answers_with_nonsense(
    cluster, in_thread, monkeypatch, poll, answer, kind, text
):
    cluster.stop("worker", 1)
    cluster.stop("worker", 0)
    with monkeypatch.context() as corrupt:
        corrupt.setattr(WorkerService, "_poll", lambda service, request: answer)
        cluster.start("worker", 0)
    coordinator = cluster.coordinator()
    outcomes = in_thread(lambda: coordinator.schedule(abs, (-1,)).fetch())
    error = poll(lambda: outcomes)[0]
    assert isinstance(error, kind)
    assert text in str(error)
    cluster.start("worker", 1)
    poll(lambda: 1 in coordinator._dispatcher.state.workers)
    with contextlib.suppress(kind):  # what fetch has raised already
        coordinator.join()
    assert coordinator.schedule(abs, (-2,), worker=1).fetch() == 2


class HasNoText(BaseException):
    """Cannot be told to the coordinator."""

    def __str__(self):
        raise Nonsense("an error that nobody expected")


def test_a_thread_of_a_worker_that_ends(cluster, in_thread, poll):
    coordinator = cluster.coordinator()

    def fails():
        raise HasNoText

    outcomes = in_thread(lambda: coordinator.schedule(fails).fetch())
    error = poll(lambda: outcomes)[0]
    text = "".join(traceback.format_exception(error))
    assert "an error that nobody expected" in text
    assert "/job:worker/task:" in text
    assert "in _run_calls" in text, "the traceback of the worker's thread"
    with contextlib.suppress(Exception):
        coordinator.join()
    assert coordinator.schedule(abs, (-2,)).fetch() == 2


def test_the_watcher_of_a_workers_sessions_that_fails(cluster, monkeypatch, poll):
    cluster.stop("worker", 1)
    coordinator = cluster.coordinator()
    assert coordinator.schedule(abs, (-2,)).fetch() == 2
    monkeypatch.setattr(
        "stratagem._src.parameter_server.worker.worker_service._seconds_since_heard", raise_nonsense
    )
    poll(lambda: not cluster.service(0)._background.alive())
    with pytest.raises(Nonsense) as caught:
        poll(lambda: coordinator.schedule(abs, (-2,)).fetch() and False)
    assert "in _watch" in caught.value.__notes__[0]
