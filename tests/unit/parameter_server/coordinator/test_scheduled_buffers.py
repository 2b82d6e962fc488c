"""What is changed later, by the caller or by a function on a worker, is not what was sent or returned."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.parameter_server.protocol.serialization import ResultSnapshot, pack
from stratagem.distribute.coordinator import PerWorkerValues

# Up to 64 kB an array travels inside of the pickle, beyond that beside it.
SIZES = {"small": 100, "large": 100_000}

# Functions that are pickled by reference see the objects of this process.
_shared = {}


@pytest.fixture(params=SIZES.values(), ids=SIZES)
def size(request):
    return request.param


@pytest.fixture
def held_worker(cluster):
    """A coordinator whose first worker runs nothing but one function, until the event is set."""
    coordinator = cluster.coordinator(closures_per_worker=1)
    _shared["held"] = threading.Event()
    coordinator.schedule(_wait_for_event, worker=0)
    yield coordinator
    _shared["held"].set()
    coordinator.join()


def _wait_for_event():
    assert _shared["held"].wait(30)


def _means(nest):
    first, (second,) = nest["x"]
    return float(first.mean()), float(second.mean())


def test_arguments_are_those_of_the_call(held_worker, size):
    buffer = np.empty(size, np.float32)
    results = []
    for number in range(5):
        buffer[:] = number
        nest = {"x": (buffer, [buffer[1:]])}
        results.append(held_worker.schedule(_means, args=(nest,), worker=0))
    buffer[:] = -1
    _shared["held"].set()
    assert held_worker.fetch(results) == [(number, number) for number in range(5)]


def test_all_workers_get_what_was_captured_first(coordinator, size):
    table = np.full(size, 1.0, np.float32)

    def first():
        return float(table[0])

    before = coordinator.schedule(first, worker=0).fetch()
    table[:] = 2
    assert (before, coordinator.schedule(first, worker=1).fetch()) == (1.0, 1.0)


def test_per_worker_values_are_those_they_were_made_of(coordinator, size):
    table = np.full(size, 1.0, np.float32)
    values = PerWorkerValues([table, {"x": table}])
    table[:] = 2
    assert coordinator.schedule(np.max, args=(values,), worker=0).fetch() == 1
    table[:] = 3
    assert coordinator.schedule(_of_x, args=(values,), worker=1).fetch() == 1


def _of_x(value):
    return float(value["x"].max())


def _fill(number, size):
    accumulator = _shared.setdefault(size, np.zeros(size, np.float32))
    accumulator[:] = number
    return {"jax": jnp.full(size, number), "numpy": accumulator}


def _add_in_place(value):
    value["numpy"] += 1
    return float(value["numpy"][0]), float(value["jax"][0])


def test_results_are_what_was_returned(cluster, size):
    coordinator = cluster.coordinator(closures_per_worker=1)
    _shared.pop(size, None)
    results = [coordinator.schedule(_fill, args=(k, size), worker=0) for k in range(3)]
    coordinator.join()
    # On the worker that holds the result and on another, neither of which changes it for the other.
    used = [
        coordinator.schedule(_add_in_place, args=(result,), worker=worker)
        for result in results
        for worker in (0, 0, 1)
    ]
    assert coordinator.fetch(used) == [(k + 1, k) for k in range(3) for _ in range(3)]
    for k, result in enumerate(results):
        first, second = result.fetch(), result.fetch()
        first["numpy"][:] = -1
        assert second["numpy"][0] == second["jax"][0] == k


def test_only_memory_that_somebody_can_write_to_is_copied():
    writable, fixed = np.zeros(100_000), np.zeros(100_000)
    fixed.flags.writeable = False
    array = jnp.zeros(100_000)
    for given, shares in ((writable, False), (fixed, True), (array, True)):
        (buffer,) = pack(given).buffers
        assert np.shares_memory(buffer, np.asarray(given)) == shares
    assert ResultSnapshot({"x": array}).get()["x"] is array
    assert isinstance(ResultSnapshot((array, 1)).get()[0], jax.Array)
