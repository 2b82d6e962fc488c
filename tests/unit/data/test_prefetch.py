from __future__ import annotations

import gc
import threading
import time

import pytest

from stratagem._src.data.plan.run import Run
from stratagem.data import AUTOTUNE, Dataset, InvalidArgumentError, TensorSpec

from .pipelines import INT, contents, streamed


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name.startswith("stratagem")]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("buffer_size", [0, 1, 5, 100, AUTOTUNE, None])
def test_the_elements_are_the_same(buffer_size):
    assert contents(Dataset.range(20).prefetch(buffer_size)) == list(range(20))


def test_the_next_elements_are_made_while_the_consumer_works():
    made = []

    def generate():
        for number in range(10):
            made.append(number)
            yield number

    iterator = iter(Dataset.from_generator(generate, output_signature=INT).prefetch(3))
    assert not made
    next(iterator)
    wait_until(lambda: len(made) == 4)
    assert next(iterator) == 1
    iterator.close()
    assert len(made) <= 5


def fail_in_loop(iterator):
    for _ in iterator:
        raise KeyError


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.prefetch(2),
        lambda d: d.map(lambda x: int(x), num_parallel_calls=2),
        lambda d: d.interleave(lambda x: streamed(range(99)), 3, 2, num_parallel_calls=3),
        lambda d: d.batch(2, num_parallel_calls=2).prefetch(1),
    ],
)
@pytest.mark.parametrize("how", ["break", "error", "close", "exhaust"])
def test_threads_end_with_their_iterator(build, how):
    dataset = build(streamed(range(20)))
    iterator = iter(dataset)
    if how == "exhaust":
        assert len(list(iterator)) > 1
    else:
        next(iterator)
        assert prefetch_threads()
    if how == "close":
        iterator.close()
    elif how == "error":
        with pytest.raises(KeyError):
            fail_in_loop(iterator)
    del iterator
    gc.collect()
    wait_until(lambda: not prefetch_threads())


def test_a_loop_that_breaks_leaves_no_thread():
    for element in streamed(range(20)).prefetch(4):
        if element == 2:
            break
    wait_until(lambda: not prefetch_threads())


def test_a_generator_is_closed_with_its_iterator():
    closed = threading.Event()

    def generate():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    dataset = Dataset.from_generator(generate, output_signature=TensorSpec((), "int32"))
    iterator = iter(dataset.prefetch(2))
    next(iterator)
    iterator.close()
    assert closed.is_set()


def test_an_error_is_raised_again_instead_of_ending_quietly():
    def generate():
        yield 1
        raise OSError("disk on fire")

    iterator = iter(Dataset.from_generator(generate, output_signature=INT).prefetch(2))
    assert next(iterator) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="disk on fire"):
            next(iterator)


@pytest.mark.parametrize(
    "build",
    [lambda d: d.prefetch(2), lambda d: d.map(lambda x: int(x), num_parallel_calls=2)],
    ids=["prefetch", "parallel map"],
)
def test_what_is_needed_to_resume_does_not_grow(build):
    plan = build(streamed(range(600))).plan
    stream = plan.open(Run(plan), ())
    points = getattr(stream, "_buffer", stream)._resume_points
    for _ in range(500):
        next(stream)
    assert len(points._states) <= 4
    stream.close()


def test_bad_buffer_sizes():
    with pytest.raises(InvalidArgumentError, match="buffer_size must be AUTOTUNE or at least 0"):
        Dataset.range(3).prefetch(-2)
