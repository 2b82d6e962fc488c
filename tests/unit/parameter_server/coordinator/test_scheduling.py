"""What users do with a coordinator, on a cluster in this process."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.parameter_server.client.parameter_client import ParameterClient, ServerStatus
from stratagem.distribute.coordinator import (
    ClusterCoordinator,
    PerWorkerValues,
    RemoteValue,
    experimental_get_current_worker_index,
)

LARGE = 50_000


def index():
    return experimental_get_current_worker_index()


def test_one_coordinator_for_a_strategy(coordinator):
    assert ClusterCoordinator(coordinator.strategy) is coordinator
    with pytest.raises(ValueError, match="same options"):
        ClusterCoordinator(coordinator.strategy, closures_per_worker=7)
    with pytest.raises(ValueError, match="must be a ParameterServerStrategy"):
        ClusterCoordinator(sg.distribute.MirroredStrategy(["CPU:0"]))


def test_arguments_and_results_of_many_kinds(coordinator):
    def fn(a, *rest, b):
        return {"a": a, "rest": rest, "b": b}

    bfloat = jnp.arange(LARGE, dtype=jnp.bfloat16)
    value = coordinator.schedule(fn, args=(1, "x", bfloat), kwargs={"b": jnp.float32(2.5)})
    assert isinstance(value, RemoteValue)
    result = value.fetch()
    assert result["a"] == 1
    assert result["rest"][0] == "x"
    assert isinstance(result["rest"][1], np.ndarray)
    np.testing.assert_array_equal(result["rest"][1], np.asarray(bfloat))
    assert isinstance(result["b"], np.ndarray)
    assert isinstance(value.get()["b"], jax.Array)
    key = coordinator.schedule(lambda key: key, args=(jax.random.key(3),)).get()
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(3))).all()


def test_arguments_are_those_of_the_time_of_the_call(coordinator):
    batch = np.zeros(3)
    value = coordinator.schedule(np.sum, args=(batch,))
    batch += 1
    assert value.fetch() == 0.0


def test_fetch_of_a_nest(coordinator):
    values = [coordinator.schedule(lambda x: x * x, args=(i,)) for i in range(3)]
    nest = {"first": values[0], "others": (values[1], [values[2], 7])}
    assert coordinator.fetch(nest) == {"first": 0, "others": (1, [4, 7])}


def test_functions_of_every_kind(coordinator):
    class Model:
        def __init__(self, scale):
            self.scale = scale

        def plain(self, x):
            return self.scale * x

        @sg.function
        def compiled(self, x):
            return self.scale * x

        def __call__(self, x):
            return -self.scale * x

    model = Model(3.0)
    one = jnp.float32(1.0)
    functions = [model.plain, model.compiled, model, functools.partial(model.plain), abs]
    values = [coordinator.schedule(fn, args=(one,)) for fn in functions]
    assert coordinator.fetch(values) == [3.0, 3.0, -3.0, 3.0, 1.0]


def test_a_captured_function_is_compiled_once_on_a_worker(coordinator):
    @sg.function
    def step(x):
        return x + 1

    def schedule(x):
        # A new function every time, which captures the same compiled one.
        return coordinator.schedule(
            lambda: (step(x), step.experimental_get_tracing_count()), worker=0
        )

    values = coordinator.fetch([schedule(jnp.float32(i)) for i in range(4)])
    assert [int(count) for _, count in values] == [1] * 4
    assert [float(x) for x, _ in values] == [1.0, 2.0, 3.0, 4.0]


def test_pinned_to_a_worker(coordinator):
    values = [coordinator.schedule(index, worker=i % 2) for i in range(20)]
    assert coordinator.fetch(values) == [0, 1] * 10
    with pytest.raises(ValueError, match=r"one of \[0, 1\], got 2"):
        coordinator.schedule(index, worker=2)


def test_the_worker_index_is_known_on_workers_only():
    with pytest.raises(RuntimeError, match="not run on a worker"):
        index()


def test_priorities(cluster):
    coordinator = cluster.coordinator(closures_per_worker=1)
    held, order = threading.Event(), []
    # Functions that are pickled by reference see the objects of this process.
    _shared["held"], _shared["order"] = held, order
    coordinator.schedule(_wait_for_event, worker=0)
    values = [coordinator.schedule(_note, args=(i,), worker=0, priority=i % 3) for i in range(6)]
    held.set()
    coordinator.fetch(values)
    assert order == [2, 5, 1, 4, 0, 3]


_shared = {}


def _wait_for_event():
    assert _shared["held"].wait(30)


def _note(i):
    _shared["order"].append(i)


def test_several_functions_at_the_same_time_on_a_worker(cluster):
    coordinator = cluster.coordinator(closures_per_worker=2)
    _shared["barrier"] = threading.Barrier(2)
    met = [coordinator.schedule(_meet, worker=1) for _ in range(2)]
    assert sorted(coordinator.fetch(met)) == [0, 1]


def _meet():
    return _shared["barrier"].wait(30)


def test_results_as_arguments(coordinator):
    first = coordinator.schedule(lambda: np.arange(LARGE, dtype=np.float64), worker=0)
    same = coordinator.schedule(lambda x: (index(), float(x.sum())), args=(first,), worker=0)
    other = coordinator.schedule(lambda x: (index(), float(x.sum())), args=(first,), worker=1)
    small = coordinator.schedule(lambda x: x["n"][0] + 1, args=({"n": [other]},), worker=0)
    total = float(np.arange(LARGE).sum())
    assert coordinator.fetch([same, other]) == [(0, total), (1, total)]
    with pytest.raises(TypeError):
        small.fetch()
    with pytest.raises(TypeError):
        coordinator.join()


def test_a_large_result_stays_on_its_worker_until_it_is_dropped(cluster, coordinator, poll):
    value = coordinator.schedule(lambda: np.zeros(LARGE), worker=1)
    coordinator.join()
    (session,) = cluster.service(1)._sessions.values()
    assert len(session._values) == 1
    assert value.fetch().shape == (LARGE,)
    del value
    poll(lambda: not session._values)
    ignored = coordinator.schedule(lambda: np.zeros(LARGE), worker=1)
    del ignored
    coordinator.join()
    poll(lambda: not session._values)


def test_a_result_lost_with_its_worker_is_computed_again(cluster, coordinator):
    value = coordinator.schedule(lambda: np.full(LARGE, index()), worker=None)
    coordinator.join()
    cluster.stop("worker", value._closure.where)
    assert value.fetch().shape == (LARGE,)


@pytest.mark.parametrize("size", [1, LARGE], ids=["argument here", "argument held"])
def test_a_lost_result_of_a_result_is_computed_again(cluster, coordinator, size):
    first = coordinator.schedule(lambda: np.full(size, 3.0), worker=0)
    second = coordinator.schedule(lambda x: np.full(LARGE, x.sum() / size), (first,), worker=1)
    coordinator.join()
    cluster.stop("worker", 1)
    cluster.start("worker", 1)
    assert second.fetch()[0] == 3
    cluster.stop("worker", 0)
    cluster.stop("worker", 1)
    cluster.start("worker", 0)
    cluster.start("worker", 1)
    assert second.fetch()[0] == 3


def test_a_lost_result_of_a_result_that_was_dropped_is_an_error(cluster, coordinator, poll):
    first = coordinator.schedule(lambda: np.ones(LARGE), worker=0)
    second = coordinator.schedule(lambda x: x + 1, (first,), worker=1)
    coordinator.join()
    (session,) = cluster.service(0)._sessions.values()
    del first
    poll(lambda: not session._values)
    cluster.stop("worker", 1)
    with pytest.raises(
        sg.errors.UnavailableError, match="keep references to the RemoteValue arguments"
    ):
        second.fetch()


def test_functions_are_forgotten(cluster, coordinator, poll):
    for i in range(50):
        coordinator.schedule(lambda i=i: i, worker=0).fetch()
    (session,) = cluster.service(0)._sessions.values()
    poll(lambda: len(session._definitions) <= 1)


def test_workers_that_join_later(cluster, monkeypatch, poll):
    import stratagem._src.parameter_server.coordinator.periodic_checks as watch

    monkeypatch.setattr(watch, "_WORKER_DISCOVERY_INTERVAL_SECONDS", 0.02)
    both = cluster.spec
    first = sg.train.ClusterSpec({**both.as_dict(), "worker": [both.task_address("worker", 0)]})
    cluster.spec = first
    coordinator = cluster.coordinator()
    assert coordinator.schedule(index).fetch() == 0
    with pytest.raises(ValueError, match=r"one of \[0\]"):
        coordinator.schedule(index, worker=1)
    monkeypatch.setattr(coordinator.strategy.cluster_resolver, "cluster_spec", lambda: both)
    poll(lambda: coordinator._dispatcher.workers == [0, 1])
    assert coordinator.schedule(index, worker=1).fetch() == 1


def test_a_worker_that_comes_back_elsewhere(cluster, monkeypatch):
    import stratagem._src.parameter_server.coordinator.periodic_checks as watch

    monkeypatch.setattr(watch, "_WORKER_DISCOVERY_INTERVAL_SECONDS", 0.02)
    coordinator = cluster.coordinator()
    assert coordinator.schedule(index, worker=1).fetch() == 1
    cluster.stop("worker", 1)
    with ReservedPorts(1) as ports:
        (port,) = ports
        jobs = cluster.spec.as_dict()
        jobs["worker"][1] = f"127.0.0.1:{port}"
        cluster.spec = moved = sg.train.ClusterSpec(jobs)
        cluster.start("worker", 1)
        monkeypatch.setattr(coordinator.strategy.cluster_resolver, "cluster_spec", lambda: moved)
        assert coordinator.schedule(index, worker=1).fetch() == 1


def test_per_worker_values(coordinator):
    remote = coordinator.schedule(lambda: "remote", worker=0)
    values = PerWorkerValues([7, remote])
    fetched = [coordinator.schedule(lambda x: x, (values,), worker=i).fetch() for i in (0, 1)]
    assert fetched == [7, "remote"]
    with pytest.raises(ValueError, match="one value for each of 2 workers, got 1"):
        coordinator.schedule(abs, (PerWorkerValues([1]),))


def test_per_worker_datasets(coordinator):
    def dataset_fn():
        return sg.data.Dataset.range(10 * index(), 10 * index() + 3)

    dataset = coordinator.create_per_worker_dataset(dataset_fn)
    iterator = iter(dataset)
    step = sg.function(lambda it: next(it) + 100)
    values = [coordinator.schedule(step, (iterator,), worker=i) for i in (0, 1, 0, 1)]
    assert [sorted(map(int, coordinator.fetch(values[i::2]))) for i in (0, 1)] == [
        [100, 101],
        [110, 111],
    ]
    # A function may also capture it.
    assert coordinator.schedule(lambda: next(iterator), worker=1).fetch() == 12
    with pytest.raises(RuntimeError, match="this is the coordinator"):
        next(iterator)
    coordinator.schedule(step, (iterator,), worker=0)
    coordinator.schedule(step, (iterator,), worker=0)
    with pytest.raises(sg.errors.OutOfRangeError, match="End of the"):
        coordinator.join()


def test_per_worker_dataset_of_a_dataset(coordinator):
    dataset = sg.data.Dataset.from_tensor_slices(np.arange(4.0)).batch(2)
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    values = [coordinator.schedule(next, (iterator,), worker=i) for i in (0, 1)]
    assert [v.tolist() for v in coordinator.fetch(values)] == [[0.0, 1.0], [0.0, 1.0]]


def test_variables_of_the_strategy_in_functions(coordinator):
    with coordinator.strategy.scope():
        v = sg.Variable(1.0)

    @sg.function
    def add(x):
        assert sg.distribute.get_strategy().num_replicas_in_sync == 1
        v.assign_add(x)

    for i in range(10):
        coordinator.schedule(add, args=(jnp.float32(i),))
    coordinator.join()
    assert float(v) == 46.0
    assert coordinator.done()


def test_the_queue_is_bounded(cluster):
    coordinator = cluster.coordinator(closures_per_worker=1)
    _shared["held"] = threading.Event()
    coordinator.schedule(_wait_for_event, worker=0)
    coordinator.schedule(_wait_for_event, worker=1)
    scheduled = []

    def fill():
        for i in range(1000):
            coordinator.schedule(abs, (i,))
            scheduled.append(i)

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join(1.0)
    assert thread.is_alive()
    assert 510 <= len(scheduled) <= 514
    _shared["held"].set()
    thread.join(30)
    coordinator.join()
    assert len(scheduled) == 1000


def test_quick_functions_do_not_wait_behind_slow_ones(cluster):
    coordinator = cluster.coordinator(closures_per_worker=1)
    _shared["held"] = threading.Event()
    for _ in range(200):
        coordinator.schedule(abs, (1,), worker=0)
    coordinator.join()
    # Worker 0 is now trusted with many at a time; this blocks it.
    coordinator.schedule(_wait_for_event, worker=0)
    values = [coordinator.schedule(abs, (-i,)) for i in range(100)]
    assert coordinator.fetch(values) == list(range(100))
    _shared["held"].set()
    coordinator.join()


def test_an_iterator_travels_with_its_place(coordinator):
    iterator = iter(sg.data.Dataset.range(6).map(lambda x: x * 10).batch(2))
    next(iterator)
    taken = coordinator.schedule(lambda it: [batch.tolist() for batch in it], args=(iterator,))
    assert taken.fetch() == [[20, 30], [40, 50]]
    assert next(iterator).tolist() == [20, 30]


def test_one_timeout_counts_for_workers_and_parameter_servers(cluster, monkeypatch, poll):
    asked = []

    def check(client, server, timeout):
        asked.append(timeout)
        return ServerStatus(is_same=True, num_updates=0)

    monkeypatch.setattr(ParameterClient, "check", check)
    cluster.coordinator(worker_timeout=7.0)
    poll(lambda: asked)
    assert set(asked) == {7.0}
