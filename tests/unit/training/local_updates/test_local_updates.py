"""Islands as threads of one process, with a real server between them, against NumPy."""

import threading
import time

import numpy as np
import optax
import pytest
from island_threads import DILOCO, RATE, TARGETS, Island, LocalUpdates, reference, run_all

import stratagem as sg
from stratagem._src.control_plane.island_server.island_server import IslandServer
from stratagem._src.core.errors import (
    ContextError,
    DeadlineExceededError,
    InvalidArgumentError,
)
from stratagem._src.transport import Credentials


def test_every_step_averaged_is_synchronous_sgd(server):
    both = [Island(server, i, sync_every=1) for i in range(2)]
    run_all(*[lambda island=island: island.train(6) for island in both])
    w = np.zeros(3, np.float32)
    for _ in range(6):
        w = w - RATE * np.mean([w - TARGETS[0], w - TARGETS[1]], axis=0)
    for island in both:  # no rounding: all are small multiples of 1/4096
        np.testing.assert_array_equal(island.value, w)


@pytest.mark.parametrize("same", [False, True], ids=["own data", "same data"])
def test_every_step_averaged_is_the_mean_of_adam_steps(server, same):
    """With the same gradients everywhere that is synchronous Adam; with own ones, each has its moments."""
    targets = (TARGETS[0], TARGETS[0 if same else 1])
    adam = optax.adam(0.1)
    both = [Island(server, i, sync_every=1) for i in range(2)]

    def train(island):
        state = adam.init(island.value)
        with island.islands:
            for _ in range(6):
                gradient = island.value - targets[island.number]
                update, state = adam.update(gradient, state)
                island.w.assign_add(np.asarray(update))
                island.islands.step()

    run_all(*[lambda island=island: train(island) for island in both])
    w, states = np.zeros(3, np.float32), [adam.init(np.zeros(3, np.float32))] * 2
    for _ in range(6):
        made = [adam.update(w - t, s) for t, s in zip(targets, states, strict=True)]
        states = [state for _, state in made]
        w = np.mean([w + np.asarray(update) for update, _ in made], axis=0)
    for island in both:
        np.testing.assert_allclose(island.value, w, rtol=1e-6)


@pytest.mark.parametrize("overlap", [0, 1, 3])
@pytest.mark.parametrize("outer", [None, DILOCO])
def test_outer_steps(server, outer, overlap):
    optimizer = None if outer is None else optax.sgd(**outer)
    options = {"sync_every": 3, "outer_optimizer": optimizer, "overlap_steps": overlap}
    both = [Island(server, i, **options) for i in range(2)]
    run_all(*[lambda island=island: island.train(12) for island in both])
    expected = reference(12, 3, outer=optimizer, overlap=overlap)
    np.testing.assert_array_equal(both[0].value, both[1].value)
    np.testing.assert_allclose(both[0].value, expected[0], rtol=1e-5)


@pytest.mark.parametrize("every", [1, 2, 4])
def test_bytes_fall_with_the_steps_between(server, every):
    both = [Island(server, i, sync_every=every) for i in range(2)]
    run_all(*[lambda island=island: island.train(8) for island in both])
    for island in both:
        metrics = island.islands.metrics
        assert metrics["bytes_sent"] == metrics["bytes_received"] == 12 * 8 // every
        assert metrics["islands"] == 2


def test_all_begin_with_the_values_of_island_0(server):
    both = [Island(server, i, first=float(10 * i)) for i in range(2)]
    run_all(*[lambda island=island: island.islands.join() for island in both])
    np.testing.assert_array_equal(both[1].value, both[0].value)
    run_all(*[lambda island=island: island.islands.leave() for island in both])


def test_the_steps_since_the_last_outer_step_are_averaged_at_the_end(server):
    both = [Island(server, i, sync_every=4) for i in range(2)]
    run_all(*[lambda island=island: island.train(6) for island in both])
    np.testing.assert_array_equal(both[0].value, both[1].value)
    assert [island.islands.round for island in both] == [2, 2]


def test_a_lost_island_is_done_without_and_returns(server):
    first, second = (Island(server, i) for i in range(2))
    returned = Island(server, 1, first=99.0)
    stopped, is_back, seen = threading.Event(), threading.Event(), []

    def go_on():
        with first.islands:
            while not is_back.is_set():
                first.inner_step()
                seen.append(first.islands.metrics["islands"])
                if stopped.is_set() and seen[-1] == 1:
                    time.sleep(0.005)  # as long as an inner step might take
            while first.islands.num_steps % 2:
                first.inner_step()

    def be_lost():
        second.islands.join()
        for _ in range(4):
            second.inner_step()
        second.islands._close()  # as a killed process does: without a word
        stopped.set()
        deadline = time.monotonic() + 20
        while 1 not in seen:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with returned.islands:
            assert returned.islands.num_steps >= 4
            assert returned.islands.num_steps == 2 * returned.islands.round
            assert not np.any(returned.value == 99.0)
            for _ in range(4):
                returned.inner_step()
            assert returned.islands.metrics["islands"] == 2
            is_back.set()

    run_all(go_on, be_lost)
    assert seen[3] == 2
    assert 1 in seen


def test_a_server_that_is_started_again(server):
    both = [Island(server, i) for i in range(2)]
    run_all(*[lambda island=island: island.islands.join() for island in both])
    for _ in range(2):
        run_all(*[island.inner_step for island in both])
    address = server.address
    server.shutdown()
    again = IslandServer(address, 2, Credentials())
    again.start()
    try:
        for _ in range(2):
            run_all(*[island.inner_step for island in both])
        run_all(*[lambda island=island: island.islands.leave() for island in both])
    finally:
        again.shutdown()
    expected = reference(4, 2)
    for island in both:
        np.testing.assert_allclose(island.value, expected[0], rtol=1e-5)


def test_a_server_that_does_not_come():
    alone = Island("127.0.0.1:1", 0, timeout_seconds=0.5)
    with pytest.raises(
        DeadlineExceededError, match=r"could not reach the island server .* 127\.0\.0\.1:1"
    ):
        alone.islands.join()


def test_an_island_that_does_not_come_is_done_without(server):
    alone = Island(server, 0, timeout_seconds=1.0)
    alone.train(2)
    assert alone.islands.metrics["islands"] == 1


def test_islands_that_differ(server):
    both = [Island(server, i, sync_every=2 + i, timeout_seconds=2.0) for i in range(2)]
    with pytest.raises(InvalidArgumentError, match="same variables, sync_every"):
        run_all(*[lambda island=island: island.train(2) for island in both])


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("at", [4, 5])
def test_restored_checkpoints_continue_exactly(server, tmp_path, overlap, at):
    outer = optax.sgd(**DILOCO)
    options = {"sync_every": 3, "outer_optimizer": outer, "overlap_steps": overlap}

    def saved(island):
        return sg.train.Checkpoint(w=island.w, islands=island.islands)

    def train_and_save(island):
        island.islands.join()
        while island.islands.num_steps < at:
            island.inner_step()
        saved(island).write(str(tmp_path / f"island-{island.number}"))
        if island.islands._pending is not None:
            # An island that is lost before it has sent is left out of that round, for good.
            island.islands._pending.future.result(20)
        island.islands._close()

    def restore_and_train(island):
        saved(island).read(str(tmp_path / f"island-{island.number}")).assert_consumed()
        island.train(9)

    run_all(*[lambda i=i: train_and_save(Island(server, i, **options)) for i in range(2)])
    both = [Island(server, i, first=7.0, **options) for i in range(2)]
    run_all(*[lambda island=island: restore_and_train(island) for island in both])
    expected = reference(9, 3, outer=outer, overlap=overlap)
    np.testing.assert_allclose(both[0].value, expected[0], rtol=1e-5)
    np.testing.assert_array_equal(both[0].value, both[1].value)


def test_a_checkpoint_restored_between_outer_steps_is_refused(tmp_path):
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        w = sg.Variable(np.zeros(1, np.float32))
    islands = LocalUpdates(strategy, [w], sync_every=1)
    checkpoint = sg.train.Checkpoint(islands=islands)
    checkpoint.write(str(tmp_path / "saved"))
    islands.join()
    islands.step()
    checkpoint.read(str(tmp_path / "saved"))
    with pytest.raises(ContextError, match="restored before join"):
        islands.step()


def test_calls_outside():
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    islands = LocalUpdates(strategy, sync_every=1)
    with pytest.raises(ContextError, match="between join"):
        islands.step()
    with pytest.raises(ContextError, match="needs its variables"):
        islands.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync_every": 0}, "sync_every must be an integer, at least 1, got 0"),
        ({"sync_every": 2, "overlap_steps": 3}, "from 0 to 2, got 3"),
        ({"sync_every": 2, "timeout_seconds": 0}, "must be > 0"),
        ({"sync_every": 2, "island": 1}, "given together"),
        ({"sync_every": 2, "outer_optimizer": 0.7}, "optax transformation"),
    ],
)
def test_arguments(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        LocalUpdates(sg.distribute.OneDeviceStrategy("CPU:0"), **options)


@pytest.mark.parametrize("value", [np.int32(1), 3.0])
def test_what_cannot_be_averaged(value):
    variable = sg.Variable(value) if isinstance(value, np.generic) else value
    with pytest.raises(InvalidArgumentError, match="LocalUpdates averages"):
        LocalUpdates(sg.distribute.OneDeviceStrategy("CPU:0"), [variable], sync_every=1)


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("STRATAGEM_ISLAND", "1")
    monkeypatch.setenv("STRATAGEM_ISLANDS", "3")
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(ValueError, match="STRATAGEM_ISLANDS_SERVER"):
        LocalUpdates(strategy, sync_every=1)
    monkeypatch.setenv("STRATAGEM_ISLANDS_SERVER", "10.0.0.1:7000")
    islands = LocalUpdates(strategy, sync_every=1)
    assert (islands.island, islands.num_islands) == (1, 3)
