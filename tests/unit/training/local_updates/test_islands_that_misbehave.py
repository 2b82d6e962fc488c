"""Islands that die at the wrong moment, differ, have NaN, or are interrupted."""

import concurrent.futures
import os
import signal
import socket
import threading
import time

import numpy as np
import optax
import pytest
from island_threads import TARGETS, Island, reference, run_all

import stratagem as sg
from stratagem._src.control_plane.island_server.island_messages import IslandPlace, with_body
from stratagem._src.control_plane.island_server.island_server import IslandServer
from stratagem._src.core.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from stratagem._src.training.local_updates import island_workers
from stratagem._src.training.local_updates.island_client import IslandClient, Outcome
from stratagem._src.training.local_updates.outer_state import OuterState
from stratagem._src.transport import Credentials


def poll(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def join_all(*islands):
    run_all(*[island.islands.join for island in islands])


def test_an_island_that_dies_while_others_wait_for_it(server):
    first, second = (Island(server, i, sync_every=1) for i in range(2))
    join_all(first, second)

    def die():
        poll(lambda: first.islands._client.waits_for == "island 1")
        second.islands._close()  # as a killed process does: without a word

    started = time.monotonic()
    run_all(first.inner_step, die)
    assert time.monotonic() - started < 10  # the end of its connection says it, no deadline
    assert first.islands.metrics["islands"] == 1
    first.islands.leave()


def test_an_island_that_dies_after_it_has_contributed_counts(server):
    first, second = (Island(server, i, sync_every=1) for i in range(2))
    join_all(first, second)

    def contribute_and_die():
        poll(lambda: server._contributions)
        second.islands._client.close()

    def die():
        with pytest.raises(UnavailableError):
            second.inner_step()

    run_all(die, contribute_and_die)
    first.inner_step()
    assert first.islands.metrics["islands"] == 2
    np.testing.assert_array_equal(first.value, reference(1, 1)[0])
    first.islands.leave()


def test_an_island_that_returns_at_the_last_step_ends_with_the_others(server):
    first, second = (Island(server, i) for i in range(2))
    returned = Island(server, 1, first=99.0)
    join_all(first, second)
    second.islands._close()
    poll(
        lambda: server._rounds.present() == [0]
    )  # until then the one that has gone counts as present

    def finish():
        first.inner_step()
        poll(lambda: server._rounds.present() == [0, 1])
        first.inner_step()  # admits the other, which needs a state now
        first.islands.leave()

    run_all(finish, lambda: returned.train(2))
    assert (returned.islands.num_steps, returned.islands.round) == (2, 1)
    np.testing.assert_array_equal(returned.value, first.value)


def test_an_island_that_returns_with_another_model(server):
    first, second = (Island(server, i) for i in range(2))
    join_all(first, second)
    # The first that had joined is no exception.
    first.islands._close()
    other = Island(server, 0, shape=(4,))
    with pytest.raises(
        InvalidArgumentError, match=r"float32\[4\].* on island 0 and .*float32\[3\]"
    ):
        other.islands.join()
    second.islands._close()


@pytest.mark.parametrize("other", [None, optax.sgd(0.5), optax.sgd(0.7, momentum=0.9)])
def test_islands_with_different_outer_optimizers(server, other):
    first = Island(server, 0, outer_optimizer=optax.sgd(0.7), timeout_seconds=1.0)
    second = Island(server, 1, outer_optimizer=other, timeout_seconds=1.0)
    with pytest.raises(InvalidArgumentError, match="outer_optimizer"):
        run_all(lambda: first.train(2), lambda: second.train(2))


def test_nan_of_one_island_does_not_reach_the_others(server):
    first, second = (Island(server, i, sync_every=1) for i in range(2))

    def diverge():
        with second.islands:
            second.inner_step()
            second.w.assign(np.float32([1, np.nan, 1]))
            second.islands.step()

    def fail():
        with pytest.raises(InvalidArgumentError, match=r"finite .*'.*' of island 1 at step 2"):
            diverge()

    run_all(lambda: first.train(3), fail)
    assert np.isfinite(first.value).all()
    assert first.islands.metrics["islands"] == 1


def test_two_processes_with_the_number_of_one_island(server):
    first, second = (Island(server, i, sync_every=1) for i in range(2))
    join_all(first, second)
    twin = Island(server, 0, sync_every=1)

    def twin_trains():
        with twin.islands:
            twin.inner_step()

    def first_fails():
        poll(lambda: len(server._rounds._sessions) == 3)
        with pytest.raises(InvalidArgumentError, match="another process has joined as island 0"):
            first.inner_step()
        first.islands._close()

    def second_trains():
        while twin.islands.round == 0:
            second.inner_step()
        second.islands.leave()

    run_all(twin_trains, first_fails, second_trains)


def test_a_late_island_is_dropped_before_anybody_gives_up():
    """The server drops it a tick after the deadline; an answer from between the two is no reason to end."""

    answers = [
        {"waits_for": [1], "idle_seconds": 1.1, "patience": 1.0},
        {"waits_for": [1], "idle_seconds": 5.0, "patience": 8.0},
        {"num_islands": 1},
    ]

    class Contact:
        def poll(self, method, body, timeout):
            return with_body(answers.pop(0))

    client = IslandClient(IslandPlace(0, 2, "127.0.0.1:1"), "", timeout=1.0)
    client.hold(OuterState(0, 0, (), ()), 0)
    client._until_there(Contact(), "mean", {}, "num_islands")
    assert answers == []


@pytest.mark.parametrize("number", [1, 3])
def test_checkpoints_restored_with_another_number_of_islands(server, tmp_path, number):
    both = [Island(server, i, sync_every=1) for i in range(2)]
    run_all(*[lambda island=island: island.train(2) for island in both])
    path = sg.train.Checkpoint(w=both[0].w, islands=both[0].islands).write(str(tmp_path / "saved"))
    again = IslandServer("127.0.0.1:0", number, Credentials())
    again.start()
    try:
        islands = [
            Island(again, i, sync_every=1, first=7.0, num_islands=number) for i in range(number)
        ]
        # A new island has no checkpoint: it begins with the state of the others.
        for island in islands[:2]:
            checkpoint = sg.train.Checkpoint(w=island.w, islands=island.islands)
            checkpoint.read(path).assert_consumed()
        run_all(*[lambda island=island: island.train(3) for island in islands])
    finally:
        again.shutdown()
    w = reference(2, 1)[0]
    expected = np.mean([w - 0.25 * (w - TARGETS[i]) for i in range(number)], axis=0)
    for island in islands:
        assert (island.islands.num_steps, island.islands.round) == (3, 3)
        np.testing.assert_allclose(island.value, expected, rtol=1e-6)


def test_ctrl_c_while_an_island_waits(server):
    first, second = (Island(server, i, sync_every=1) for i in range(2))
    join_all(first, second)

    def interrupt():
        poll(lambda: first.islands._client.waits_for == "island 1")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        first.inner_step()
    thread.join()
    # Between steps all is as after a step whose outer step is under way: it can go on.
    run_all(second.inner_step, first.islands.synchronize)
    np.testing.assert_array_equal(first.value, second.value)
    for island in (first, second):
        island.islands._close()


def said_of(future):
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    return island_workers.IslandWorkers(strategy)._said(future, lambda: "island 1")


def test_an_outcome_that_comes_just_after_the_leader_stopped_waiting(monkeypatch):
    class Late(concurrent.futures.Future):
        def result(self, timeout=None):
            if timeout is None:
                return super().result()
            self.set_result(Outcome("go"))
            raise concurrent.futures.TimeoutError

    monkeypatch.setattr(island_workers, "_KEEPALIVE_SECONDS", 0.0)
    assert said_of(Late()) == {"waits_for": "island 1"}


def test_workers_hear_of_a_deadline_that_their_leader_missed():
    future = concurrent.futures.Future()
    future.set_exception(DeadlineExceededError("no island has made a step"))
    assert said_of(future) == {
        "type": "DeadlineExceededError",
        "error": "no island has made a step",
    }


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
def test_the_server_does_not_send_to_a_silent_host_for_longer_than_the_timeout(server):
    first = Island(server, 0, num_islands=1)
    held = OuterState(0, 0, (np.zeros(3, np.float32),), ())
    client = IslandClient(IslandPlace(0, 2, server.address), first.islands._layout(), 1.0)
    client.hold(held, 0)
    contact = client._connect()
    try:
        [connection] = server._listener._connections
        made = connection._stream._socket
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
    finally:
        contact.close()
