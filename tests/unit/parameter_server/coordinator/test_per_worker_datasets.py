"""Per-worker datasets: what they may be made of, and what they tell."""

import numpy as np
import pytest

import stratagem as sg
from stratagem.distribute.coordinator import (
    PerWorkerValues,
    experimental_get_current_worker_index,
)

_shared = {}


def dataset_of_this_worker():
    index = experimental_get_current_worker_index()
    _shared.setdefault("made on", []).append(index)
    return sg.data.Dataset.range(10 * index, 10 * index + 4)


@pytest.fixture(autouse=True)
def _nothing_made():
    _shared.clear()


def next_batch(iterator):
    return np.asarray(next(iterator)).tolist()


def test_of_a_distributed_dataset(coordinator):
    strategy = coordinator.strategy
    dataset = sg.data.Dataset.range(8).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(coordinator.create_per_worker_dataset(distributed))
    for worker in (0, 1):
        drawn = [coordinator.schedule(next_batch, (iterator,), worker=worker) for _ in range(2)]
        assert sorted(coordinator.fetch(drawn)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # The coordinator can look at it too.
    assert [x.tolist() for x in distributed] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(distributed) == 2


def test_of_a_dataset_distributed_from_a_function(coordinator):
    def dataset_fn(context):
        assert context.num_input_pipelines == 1
        return dataset_of_this_worker().batch(context.get_per_replica_batch_size(2))

    distributed = coordinator.strategy.distribute_datasets_from_function(dataset_fn)
    iterator = iter(coordinator.create_per_worker_dataset(distributed))
    assert coordinator.schedule(next_batch, (iterator,), worker=1).fetch() == [10, 11]
    assert _shared["made on"] == [1], "neither in the coordinator nor on another worker"


def test_of_what_is_no_dataset(coordinator):
    with pytest.raises(ValueError, match=r"takes a function that returns a dataset.*got 3"):
        coordinator.create_per_worker_dataset(3)
    mirrored = sg.distribute.MirroredStrategy(["CPU:0"])
    foreign = mirrored.experimental_distribute_dataset(sg.data.Dataset.range(4).batch(2))
    with pytest.raises(ValueError, match="must be created by the coordinator's own strategy"):
        coordinator.create_per_worker_dataset(foreign)


def test_element_specs(coordinator):
    spec = sg.data.Dataset.range(3).batch(2).element_spec
    of_function = coordinator.create_per_worker_dataset(lambda: sg.data.Dataset.range(3).batch(2))
    assert of_function.element_spec == spec
    of_dataset = coordinator.create_per_worker_dataset(sg.data.Dataset.range(3).batch(2))
    assert of_dataset.element_spec == spec
    assert coordinator.done()
    of_iterable = coordinator.create_per_worker_dataset(lambda: [1, 2])
    with pytest.raises(NotImplementedError, match="element_spec needs a Dataset"):
        of_iterable.element_spec  # noqa: B018


def test_build_makes_the_datasets_on_the_workers(coordinator, poll):
    poll(lambda: coordinator.present_workers == [0, 1])
    dataset = coordinator.create_per_worker_dataset(dataset_of_this_worker)
    built = dataset.build()
    coordinator.join()
    assert sorted(_shared["made on"]) == [0, 1]
    assert isinstance(built, PerWorkerValues)

    def total(dataset):
        return sum(int(x) for x in dataset)

    assert coordinator.schedule(total, (built,), worker=0).fetch() == 0 + 1 + 2 + 3
    assert coordinator.schedule(total, (built,), worker=1).fetch() == 10 + 11 + 12 + 13
    iterator = iter(dataset)
    assert coordinator.schedule(next_batch, (iterator,), worker=1).fetch() == 10
    assert sorted(_shared["made on"]) == [0, 1], "made once on each worker"


def test_an_error_of_the_dataset_function(coordinator, poll):
    poll(lambda: coordinator.present_workers == [0, 1])

    def fails():
        raise OSError("no such disk")

    dataset = coordinator.create_per_worker_dataset(fails)
    with pytest.raises(OSError, match="no such disk"):
        dataset.element_spec  # noqa: B018
    with pytest.raises(OSError, match="no such disk"):
        coordinator.join()
    dataset.build()
    with pytest.raises(OSError, match="no such disk"):
        coordinator.join()


def test_iterating_in_the_coordinator(coordinator):
    dataset = coordinator.create_per_worker_dataset(lambda: sg.data.Dataset.range(3))
    iterator = iter(dataset)
    for draw in (lambda: next(iterator), iterator.get_next):
        with pytest.raises(NotImplementedError, match="must be called on a worker"):
            draw()

    @sg.function
    def loop():
        return iter(dataset)

    with pytest.raises(RuntimeError, match="outside of functions"):
        loop()
