"""Variables that every worker has for itself."""

import gc

import numpy as np
import pytest

import stratagem as sg
from stratagem.distribute.coordinator import experimental_get_current_worker_index


def set_to(variable, value):
    variable.assign(value)


def test_each_worker_has_its_own_value(coordinator):
    with coordinator.strategy.scope():
        count = sg.Variable(np.zeros(2, np.float32), name="count", per_worker_variable=True)
    assert (count.name, count.shape, count.trainable) == ("count:0", (2,), False)

    def add(x):
        count.assign_add([x, 1.0])
        return count.read_value()

    for worker, x in [(0, 1.0), (1, 10.0), (0, 1.0)]:
        coordinator.schedule(add, (x,), worker=worker)
        coordinator.join()
    values = count.read_all()
    assert [value.tolist() for value in values] == [[2.0, 2.0], [10.0, 1.0]]
    # The coordinator has one too, and it may be an argument.
    assert count.numpy().tolist() == [0.0, 0.0]
    count.assign_add([5.0, 5.0])
    coordinator.schedule(set_to, (count, [7.0, 7.0]), worker=1).fetch()
    assert [value.tolist() for value in count.read_all()] == [[2.0, 2.0], [7.0, 7.0]]


def test_each_worker_calls_the_initial_function(coordinator):
    def initial():
        try:
            return float(experimental_get_current_worker_index())
        except RuntimeError:
            return -1.0

    with coordinator.strategy.scope():
        v = sg.Variable(initial, dtype="float32", shape=(), per_worker_variable=True)
    assert [float(value) for value in v.read_all()] == [0.0, 1.0]
    assert float(v) == -1.0


def test_a_worker_that_comes_back_begins_anew(cluster, coordinator):
    with coordinator.strategy.scope():
        v = sg.Variable(1.0, per_worker_variable=True)
    coordinator.schedule(set_to, (v, 5.0), worker=0).fetch()
    coordinator.schedule(set_to, (v, 6.0), worker=1).fetch()
    cluster.stop("worker", 0)
    cluster.start("worker", 0)
    assert [float(value) for value in v.read_all()] == [1.0, 6.0]


def test_it_is_forgotten(cluster, coordinator, poll):
    with coordinator.strategy.scope():
        v = sg.Variable(1.0, per_worker_variable=True)
    v.read_all()
    (session,) = cluster.service(0)._sessions.values()
    number = v.definition.number
    assert number in session._definitions._entries
    del v
    gc.collect()
    poll(lambda: number not in session._definitions._entries)


def test_as_a_result_it_is_its_value(coordinator):
    with coordinator.strategy.scope():
        v = sg.Variable(1.0, per_worker_variable=True)
    result = coordinator.schedule(lambda: v.assign(5.0)).fetch()
    assert isinstance(result, np.ndarray)
    assert result == 5.0


def test_other_strategies_have_none():
    with pytest.raises(TypeError, match="per_worker_variable"):
        sg.Variable(1.0, per_worker_variable=True)
