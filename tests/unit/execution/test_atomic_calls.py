"""Concurrent calls on the same variables behave as if one came after the other."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.errors import ContextError

PATIENCE = 60
SUM = {"aggregation": sg.VariableAggregation.SUM}
ON_READ = {"synchronization": sg.VariableSynchronization.ON_READ, **SUM}


def two():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def in_scope(strategy, **options):
    with strategy.scope():
        return sg.Variable(0.0, **options)


def sharded(strategy):
    with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
        return sg.Variable(np.zeros(2, np.float32), **SUM)


# What makes a strategy, and a variable of it.
PLACEMENTS = {
    "plain": (sg.distribute.get_strategy, lambda strategy: sg.Variable(0.0)),
    "mirrored": (two, lambda strategy: in_scope(strategy, **SUM)),
    "sync on read": (two, lambda strategy: in_scope(strategy, **ON_READ)),
    "central": (
        lambda: sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
        lambda strategy: in_scope(strategy, **SUM),
    ),
    "sharded": (two, sharded),
}


@pytest.fixture(params=PLACEMENTS)
def placed(request):
    """A strategy and two variables of one placement."""
    make_strategy, make = PLACEMENTS[request.param]
    strategy = make_strategy()
    return strategy, make(strategy), make(strategy)


@pytest.fixture(autouse=True)
def threads_change_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


def value(variable):
    return float(np.sum(np.asarray(variable.read_value()))) / max(1, np.size(variable.read_value()))


def adding(strategy, *variables, callback=False):
    """Returns a compiled step that adds one to each variable, for each replica."""

    def replica():
        for variable in variables:
            variable.assign_add(jnp.ones(variable.shape))

    def step():
        strategy.run(replica)
        if callback:
            jax.debug.callback(lambda x: None, jnp.zeros(()))

    return sg.function(step)


def together(*calls, times=60):
    begin = threading.Barrier(len(calls))

    def repeat(call):
        begin.wait(PATIENCE)
        for _ in range(times):
            call()

    with ThreadPoolExecutor(len(calls)) as threads:
        for result in [threads.submit(repeat, call) for call in calls]:
            result.result(PATIENCE)
    return times


def test_no_update_is_lost_beside_a_step_with_a_callback(placed):
    strategy, v, _ = placed
    one, another = (adding(strategy, v, callback=True) for _ in range(2))
    plain = adding(strategy, v)
    for step in (one, another, plain):
        step()
    each = strategy.num_replicas_in_sync
    before = value(v)
    times = together(one, another, plain, times=30)
    assert value(v) == before + 3 * times * each


def test_no_update_is_lost_between_eager_runs_steps_and_updates(placed):
    strategy, v, _ = placed
    step = adding(strategy, v)
    step()
    each = strategy.num_replicas_in_sync

    def run():
        strategy.run(lambda: v.assign_add(jnp.ones(v.shape)))

    def read_then_assign():
        def replica():
            v.assign_add(v.read_value() * 0 + 1)

        strategy.run(replica)

    run()
    before = value(v)
    times = together(step, run, read_then_assign, times=15)
    assert value(v) == before + 3 * times * each


def test_a_call_returns_what_it_has_written_itself():
    v = sg.Variable(0, dtype=jnp.int32)

    @sg.function
    def count():
        v.assign_add(jnp.int32(1))
        return v.read_value(), v.read_value() + 0

    count()
    results = []
    times = together(*[lambda: results.append(count())] * 4, times=400)
    pairs = [(int(a), int(b)) for a, b in results]
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
    assert sorted(a for a, _ in pairs) == list(range(2, 4 * times + 2))


def test_values_returned_together_are_of_one_moment():
    v, w = sg.Variable(0.0), sg.Variable(0.0)
    step = sg.function(lambda: (v.assign_add(1.0), w.assign_add(1.0), None)[2])
    both = sg.function(lambda: (v.read_value(), w.read_value()))
    step(), both()
    torn = []

    def look():
        a, b = both()
        if float(a) != float(b):
            torn.append((a, b))

    together(step, step, look, times=300)
    assert not torn


def test_a_failed_run_takes_back_nobody_elses_updates(placed):
    strategy, v, w = placed
    step = adding(strategy, v, w)
    step()
    each = strategy.num_replicas_in_sync

    def fail():
        v.assign_add(jnp.ones(v.shape))
        raise KeyError

    def failing():
        with pytest.raises(KeyError):
            strategy.run(fail)

    failing()
    before = value(v)
    times = together(step, failing, times=30)
    assert value(v) == value(w) == before + times * each


def test_others_read_the_values_before_a_run_that_goes_on(placed):
    strategy, v, w = placed
    changed, go_on = threading.Event(), threading.Event()

    def replica():
        v.assign_add(jnp.ones(v.shape))
        changed.set()
        assert go_on.wait(PATIENCE)
        w.assign_add(jnp.ones(w.shape))
        return v.read_value()

    v.assign(np.zeros(v.shape)), w.assign(np.zeros(w.shape))
    step = adding(strategy, w)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(strategy.run, replica)
        assert changed.wait(PATIENCE)
        assert (value(v), value(w)) == (0, 0)
        other = threads.submit(lambda: (step(), value(w)))  # w is free until the run uses it
        assert other.result(PATIENCE)[1] == strategy.num_replicas_in_sync
        waiting = threads.submit(v.assign, np.full(v.shape, 7.0))
        assert not waiting.done()
        go_on.set()
        running.result(PATIENCE)
        waiting.result(PATIENCE)
    assert (value(v), value(w)) == (7, 2 * strategy.num_replicas_in_sync)


def test_a_failed_loop_keeps_what_others_have_changed():
    strategy = two()
    v, w = in_scope(strategy, **SUM), in_scope(strategy, **SUM)
    dataset = strategy.experimental_distribute_dataset(
        sg.data.Dataset.from_tensor_slices(np.ones(8, np.float32)).batch(2)
    )

    @sg.function
    def loop(fails):
        for number, x in enumerate(dataset):
            strategy.run(lambda x: (v.assign_add(x.sum()), w.assign_add(x.sum())), args=(x,))
            if fails and number == 2:
                with ThreadPoolExecutor(1) as another_thread:
                    another_thread.submit(w.assign_add, 100.0).result(PATIENCE)
                raise KeyError("told to")

    loop(False)
    assert (float(v), float(w)) == (8, 8)
    with pytest.raises(KeyError) as raised:
        loop(True)
    assert (float(v), float(w)) == (8, 8 + 6 + 100)
    assert "Other threads have changed" in raised.value.__notes__[0]


def test_a_callback_cannot_update_what_its_step_uses():
    v, other = sg.Variable(0.0), sg.Variable(0.0)

    def step(target):
        v.assign_add(1.0)
        jax.debug.callback(lambda: target.assign_add(1.0))

    with pytest.raises(ContextError, match="cannot update a variable that the step"):
        sg.function(lambda: step(v))()
    sg.function(lambda: step(other))()
    assert (float(v), float(other)) == (1, 1)


def test_a_callback_reads_the_values_before_its_step():
    v, seen = sg.Variable(1.0), []

    @sg.function
    def step():
        v.assign_add(1.0)
        jax.debug.callback(lambda: seen.append(float(v)))

    step(), step()
    assert seen == [1, 2]


def test_a_save_is_of_one_moment_and_a_restore_happens_at_once(placed, tmp_path):
    strategy, v, w = placed
    step = adding(strategy, v, w)
    for _ in range(3):
        step()
    checkpoint = sg.train.Checkpoint(v=v, w=w)
    first = checkpoint.save(tmp_path / "first")
    checkpoint.sync()
    saver, paths = sg.train.Checkpoint(v=v, w=w), []

    def save():
        paths.append(saver.save(tmp_path / "again"))

    def both():
        def replica():
            v.assign_add(jnp.ones(v.shape))
            w.assign_add(jnp.ones(w.shape))

        strategy.run(replica)

    together(step, both, save, lambda: checkpoint.restore(first), times=5)
    assert value(v) == value(w)
    saver.sync()
    for path in paths:
        checkpoint.restore(path)
        assert value(v) == value(w)
