"""What goes wrong: errors of functions, things that cannot be sent, tasks that are gone."""

import contextlib
import threading

import numpy as np
import pytest

import stratagem as sg

_shared = {}


def _wait_for_event():
    _shared["started"].set()
    assert _shared["held"].wait(30)


@pytest.fixture(autouse=True)
def _events():
    _shared["started"], _shared["held"] = threading.Event(), threading.Event()
    yield
    _shared["held"].set()


def boom(text="boom"):
    raise ValueError(text)


def test_an_error_has_the_workers_traceback_and_is_raised_once(coordinator):
    value = coordinator.schedule(boom, worker=1)
    with pytest.raises(ValueError, match="boom") as caught:
        coordinator.join()
    note = "\n".join(caught.value.__notes__)
    assert "/job:worker/task:1 at 127.0.0.1" in note
    assert "in boom" in note
    with pytest.raises(ValueError, match="boom"):
        value.fetch()
    coordinator.join()
    assert coordinator.done()
    assert coordinator.schedule(abs, (-1,)).fetch() == 1


@pytest.mark.parametrize("where", ["schedule", "join", "done"])
def test_an_error_cancels_what_is_queued_and_waits_for_what_runs(cluster, where):
    coordinator = cluster.coordinator(closures_per_worker=1)
    running = coordinator.schedule(_wait_for_event, worker=0)
    assert _shared["started"].wait(30)
    failing = coordinator.schedule(boom, worker=1)
    queued = [coordinator.schedule(abs, (1,), worker=0) for _ in range(5)]
    with pytest.raises(ValueError, match="boom"):
        failing.fetch()
    with pytest.raises(sg.errors.CancelledError, match="ValueError: boom"):
        queued[-1].fetch()
    threading.Timer(0.3, _shared["held"].set).start()
    with pytest.raises(ValueError, match="boom"):
        coordinator.schedule(abs, (1,)) if where == "schedule" else getattr(coordinator, where)()
    assert running._closure.settled, "an error was raised while a function still ran"
    assert running.fetch() is None
    assert coordinator.done()


def test_an_argument_that_failed(coordinator):
    value = coordinator.schedule(boom)
    with pytest.raises(ValueError, match="boom"):
        coordinator.join()
    with pytest.raises(sg.errors.CancelledError, match="function 0, which failed"):
        coordinator.schedule(abs, (value,))


def test_exceptions_that_would_mean_something_else_here(coordinator):
    def exits():
        raise SystemExit(3)

    class Unreadable(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    def unreadable():
        raise Unreadable("this", "that")

    coordinator.schedule(exits)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        coordinator.join()
    coordinator.schedule(unreadable)
    with pytest.raises(sg.errors.RemoteError, match="this and that"):
        coordinator.join()


def test_what_cannot_be_sent_is_named(coordinator):
    lock = threading.Lock()

    def captures():
        return lock

    with pytest.raises(TypeError, match=r"'lock', which .*captures uses"):
        coordinator.schedule(captures)
    with pytest.raises(TypeError, match=r"args\[1\] must be picklable with cloudpickle"):
        coordinator.schedule(max, args=(1, lock))
    with pytest.raises(TypeError, match=r"kwargs\['key'\]"):
        coordinator.schedule(max, args=(1,), kwargs={"key": lock})
    coordinator.schedule(lambda: {"fine": 1, "bad": threading.Lock()})
    with pytest.raises(TypeError, match=r"'bad' of the result of .*<lambda>"):
        coordinator.join()
    value = coordinator.schedule(abs, (1,))
    with pytest.raises(TypeError, match="Pass it as an argument"):
        coordinator.schedule(lambda: value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 3}, "fn must be a function, got 3"),
        ({"fn": abs, "args": 3}, "args must be a sequence, got 3"),
        ({"fn": abs, "args": "abc"}, "args must be a sequence"),
        ({"fn": abs, "kwargs": [1]}, "kwargs must be a dictionary"),
    ],
)
def test_wrong_use(coordinator, arguments, message):
    with pytest.raises(ValueError, match=message):
        coordinator.schedule(**arguments)


def test_an_error_in_a_dataset_function(coordinator):
    iterator = iter(coordinator.create_per_worker_dataset(lambda: boom("no data")))
    coordinator.schedule(next, (iterator,))
    with pytest.raises(ValueError, match="no data"):
        coordinator.join()


def test_a_worker_that_leaves_and_comes_back(cluster, coordinator, poll):
    iterator = iter(coordinator.create_per_worker_dataset(lambda: sg.data.Dataset.range(5)))
    assert coordinator.schedule(next, (iterator,), worker=0).fetch() == 0
    cluster.stop("worker", 0)
    values = [coordinator.schedule(abs, (i,)) for i in range(20)]
    assert coordinator.fetch(values) == list(range(20))
    back = coordinator.schedule(next, (iterator,), worker=0)
    cluster.start("worker", 0)
    assert back.fetch() == 0, "the dataset begins anew"


def test_no_worker_for_too_long(cluster):
    coordinator = cluster.coordinator(patience=0.5)
    assert coordinator.schedule(abs, (-1,)).fetch() == 1
    cluster.stop("worker", 0)
    pinned = coordinator.schedule(abs, (1,), worker=0)
    with pytest.raises(
        sg.errors.UnavailableError, match=r"for worker 0, which was not available for 0.5 s"
    ):
        coordinator.join()
    with pytest.raises(sg.errors.UnavailableError):
        pinned.fetch()
    cluster.stop("worker", 1)
    value = coordinator.schedule(abs, (1,))
    with pytest.raises(
        sg.errors.UnavailableError, match=r"none was available for 0.5 s.*task:0.*task:1"
    ):
        value.fetch()
    with pytest.raises(sg.errors.UnavailableError):
        coordinator.done()
    cluster.start("worker", 1)
    assert coordinator.schedule(abs, (-3,)).fetch() == 3


def test_a_lost_parameter_server(cluster, poll):
    coordinator = cluster.coordinator()
    with coordinator.strategy.scope():
        v = sg.Variable(np.zeros(4))
    coordinator.schedule(lambda: v.assign_add(np.ones(4))).fetch()
    running = coordinator.schedule(_wait_for_event)
    cluster.stop("ps", 0)
    with pytest.raises(sg.errors.PSUnavailableError, match="/job:ps/task:0 at 127"):
        coordinator.schedule(v.read_value).fetch()
    _shared["held"].set()
    for call in (coordinator.join, coordinator.done, lambda: coordinator.schedule(abs, (1,))):
        with pytest.raises(sg.errors.PSUnavailableError):
            # Raised once for each time that the server is found missing.
            poll(lambda call=call: call() and False)
    assert running._closure.settled


def test_a_parameter_server_that_was_away_while_nothing_ran(cluster, poll):
    coordinator = cluster.coordinator()
    assert coordinator.schedule(abs, (-2,)).fetch() == 2
    cluster.stop("ps", 0)
    poll(lambda: coordinator._dispatcher.state.has_error)
    cluster.start("ps", 0)
    poll(lambda: not coordinator._dispatcher.state.has_error)
    assert coordinator.schedule(abs, (-3,)).fetch() == 3
    assert coordinator.done()


def test_the_next_coordinator_is_served(cluster, poll):
    first = cluster.coordinator()
    first.schedule(_wait_for_event, worker=0)
    for _ in range(10):
        first.schedule(np.zeros, (100_000,), worker=1)
    poll(lambda: first._dispatcher.state.num_in_flight == 1)
    second = cluster.coordinator()
    assert second.schedule(abs, (-2,), worker=0).fetch() == 2
    assert second.schedule(abs, (-2,), worker=1).fetch() == 2
    first._dispatcher.stop()
    poll(lambda: len(cluster.service(1)._sessions) == 1)
    _shared["held"].set()
    with pytest.raises(sg.errors.CancelledError, match="coordinator has ended"):
        first.join()


def test_a_coordinator_that_falls_silent_is_dropped(cluster, monkeypatch, poll):
    import stratagem._src.parameter_server.worker.worker_service as worker_service

    monkeypatch.setattr(worker_service, "_LEASE_SECONDS", 0.1)
    coordinator = cluster.coordinator()
    value = coordinator.schedule(np.zeros, (100_000,), worker=0)
    coordinator.join()
    # Between two signs of life the lease ends again and again, and every time work goes on.
    poll(lambda: not cluster.service(0)._sessions)
    assert value.fetch().shape == (100_000,)


def test_workers_that_do_not_trust_the_coordinator(cluster, monkeypatch, caplog, poll):
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "another secret than before")
    for index in (0, 1):
        cluster.stop("worker", index)
        cluster.start("worker", index)
    monkeypatch.delenv("STRATAGEM_CLUSTER_SECRET")
    coordinator = cluster.coordinator()
    with pytest.raises(sg.errors.UnauthenticatedError, match="/job:worker/task:"):
        coordinator.schedule(abs, (-1,)).fetch()
    # With another one that works, it is no error.
    cluster.stop("worker", 1)
    cluster.start("worker", 1)
    poll(lambda: coordinator._dispatcher.state.workers == {1})
    poll(lambda: "/job:worker/task:0 refuses work" in caplog.text)
    with contextlib.suppress(sg.errors.UnauthenticatedError):  # noted before worker 1 came
        coordinator.join()
    assert coordinator.schedule(abs, (-1,)).fetch() == 1


def test_a_result_that_another_worker_cannot_get_is_computed_again(cluster, coordinator):
    value = coordinator.schedule(np.ones, (100_000,))
    coordinator.join()
    holder = value._closure.where
    (session,) = cluster.service(holder)._sessions.values()
    session._values.clear()
    total = coordinator.schedule(np.sum, (value,), worker=1 - holder)
    assert total.fetch() == 100_000
