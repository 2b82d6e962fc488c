"""What counts as a step where somebody observes the process, and how many examples it takes."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.telemetry.measurement.recorder import begin_recording, end_recording


@pytest.fixture
def observer():
    yield begin_recording()
    end_recording()


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def total(strategy):
    with strategy.scope():
        return sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)


def test_every_run_of_a_compiled_step_is_one(observer, strategy, total):
    @sg.function
    def step(x):
        strategy.run(lambda x: total.assign_add(x), args=(x,))

    for _ in range(5):  # the first is compiled, the next is not quick yet
        step(np.float32(1))
    assert observer.take().steps == 5


def test_a_function_that_changes_nothing_makes_no_step(observer, strategy, total):
    read = sg.function(lambda: strategy.run(lambda: total * 2))
    for _ in range(3):
        read()
    assert observer.take().steps == 0


def test_an_eager_run_is_one_step(observer, strategy, total):
    for _ in range(3):
        strategy.run(lambda: total.assign_add(np.float32(1)))
    assert observer.take().steps == 3


def test_a_compiled_function_in_a_run_is_one_step(observer, total):
    alone = sg.distribute.OneDeviceStrategy("CPU:0")
    with alone.scope():
        count = sg.Variable(0.0)
    add = sg.function(lambda: count.assign_add(1.0))
    for _ in range(3):
        alone.run(add)
        alone.run(lambda: add())
    assert observer.take().steps == 6


def test_a_loop_over_a_dataset_in_a_function_makes_its_steps(observer, strategy, total):
    dataset = strategy.experimental_distribute_dataset(sg.data.Dataset.range(8).batch(2))

    @sg.function
    def epoch():
        for element in dataset:
            strategy.run(lambda x: total.assign_add(x.sum().astype("float32")), args=(element,))

    epoch()
    interval = observer.take()
    assert (interval.steps, interval.examples) == (4, 8)


@pytest.mark.parametrize("compiled", [True, False])
def test_examples_are_those_that_were_drawn_also_of_the_last_smaller_batch(
    observer, strategy, total, compiled
):
    dataset = sg.data.Dataset.from_tensor_slices({"x": np.ones((7, 3), np.float32)}).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    def step():
        return strategy.run(lambda e: total.assign_add(e["x"].sum()), args=(next(iterator),))

    run = sg.function(step) if compiled else step
    run(), run()
    interval = observer.take()
    assert (interval.steps, interval.examples) == (2, 7)
    assert float(total) == 21.0
    assert 0 < interval.input_seconds < interval.seconds + interval.program_seconds


def test_nobody_is_told_what_nobody_observes(strategy, total):
    step = sg.function(lambda: strategy.run(lambda: total.assign_add(np.float32(1))))
    step()
    sg.train.report(loss=1.0)


def test_reported_figures(observer, strategy):
    mirrored = strategy.reduce("SUM", strategy.run(lambda: np.float32(1)), axis=None)
    half = jnp.bfloat16(1)
    sg.train.report(loss=np.float32(2), accuracy=1, total=mirrored, one=np.zeros((1, 1)), half=half)
    assert set(observer.take_reported()) == {"loss", "accuracy", "total", "one", "half"}


@pytest.mark.parametrize("value", ["text", [1.0], np.zeros(3), np.array(["a"]), None, 1j])
def test_what_is_no_number_is_refused_and_nothing_taken(observer, value):
    with pytest.raises(sg.errors.InvalidArgumentError, match="got loss="):
        sg.train.report(fine=1.0, loss=value)
    assert observer.take_reported() == {}


def test_per_replica_values_are_to_be_reduced_first(observer, strategy):
    per_replica = strategy.run(lambda: sg.distribute.get_replica_context().replica_id_in_sync_group)
    with pytest.raises(sg.errors.InvalidArgumentError, match=r"strategy\.reduce"):
        sg.train.report(loss=per_replica)
