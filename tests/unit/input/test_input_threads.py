"""The threads of a distributed iterator end when it ends, raises or is deleted."""

import gc
import logging
import threading
import time

import numpy as np
import pytest

import stratagem as sg

INT = sg.data.TensorSpec((), "int32")
NAMES = ("input-prefetch", "stratagem")


def own_threads():
    return [t for t in threading.enumerate() if t.name.startswith(NAMES)]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _without_cycle_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def fails_at_three(x):
    if int(x) == 3:
        raise ValueError("three")
    return int(x)


def test_kept_iterators_that_ended_or_raised(strategy):
    kept = []
    for numbers in ([1, 2, 4, 5], [1, 2, 3, 4]):
        dataset = sg.data.Dataset.from_tensor_slices(np.array(numbers))
        dataset = dataset.map(fails_at_three, num_parallel_calls=4).batch(2)
        kept.append(iter(strategy.experimental_distribute_dataset(dataset)))
        next(kept[-1])
        if 3 in numbers:
            with pytest.raises(ValueError, match="three"):
                next(kept[-1])
        else:
            assert len(list(kept[-1])) == 1
        assert next(kept[-1], "end") == "end"
    wait_until(lambda: not own_threads())


def test_a_failed_iterator_is_freed_at_once(strategy):
    freed = threading.Event()

    class Generator:
        def __iter__(self):
            yield np.ones(2)
            raise ValueError("no more")

        def __del__(self):
            freed.set()

    iterator = iter(strategy.experimental_distribute_dataset(Generator()))
    next(iterator)
    with pytest.raises(ValueError, match="no more"):
        next(iterator)
    del iterator
    wait_until(freed.is_set)


def test_a_generator_that_blocks_does_not_hold_up_deletion(strategy, caplog):
    release = threading.Event()

    def blocks():
        yield 1
        yield 2
        release.wait()

    dataset = sg.data.Dataset.from_generator(blocks, output_signature=INT).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    next(iterator)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "stratagem"):
        del iterator
    assert time.monotonic() - begun < 30
    assert "blocks (" in caplog.text
    release.set()
    wait_until(lambda: not own_threads())


def test_a_thread_that_an_interrupt_kept_from_starting(strategy, monkeypatch):
    dataset = strategy.experimental_distribute_dataset(sg.data.Dataset.range(4).batch(2))
    iterator = iter(dataset)

    def interrupted(thread):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert len(list(iterator)) == 2
