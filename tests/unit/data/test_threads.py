"""Threads end with the iteration that they work for, whatever happens to it."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from handlers import on_signal
from stratagem.data import Dataset

from .pipelines import INT, streamed


def own_threads():
    return [t for t in threading.enumerate() if t.name.startswith("stratagem")]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _without_cycle_collection():
    """What is deleted must be gone at once, not when Python happens to look for cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fails_at_three(x):
    if int(x) == 3:
        raise ValueError("three")
    return int(x)


PIPELINES = {
    "map": lambda d: d.map(fails_at_three, num_parallel_calls=4),
    "prefetched map": lambda d: d.map(fails_at_three, num_parallel_calls=4).prefetch(2),
    "prefetch": lambda d: d.map(fails_at_three).prefetch(2),
    "interleave": lambda d: d.interleave(
        lambda x: streamed(range(100)).map(lambda y: fails_at_three(y)), 3, num_parallel_calls=3
    ),
    "below a cache": lambda d: d.map(fails_at_three, num_parallel_calls=4).cache(),
}


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_an_iterator_that_raised_and_is_kept_has_no_threads(build):
    kept = []
    for _ in range(5):
        kept.append(iter(build(streamed(range(20)))))
        with pytest.raises(ValueError, match="three"):
            list(kept[-1])
    wait_until(lambda: not own_threads())


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_an_iterator_that_ended_and_is_kept_has_no_threads(build):
    iterator = iter(build(streamed([5] * 10)).take(4))
    assert len(list(iterator)) == 4
    assert next(iterator, "end") == "end"
    wait_until(lambda: not own_threads())


def test_an_iteration_goes_on_after_an_error_of_a_parallel_map():
    iterator = iter(streamed(range(6)).map(fails_at_three, num_parallel_calls=2))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(iterator)
    wait_until(lambda: not own_threads())
    assert [int(x) for x in iterator] == [4, 5]


def test_a_resting_prefetch_goes_on():
    numbers = streamed([0, 3, 1]).map(fails_at_three)
    iterator = iter(Dataset.zip((streamed(range(10)).prefetch(2), numbers)))
    assert next(iterator) == (0, 0)
    with pytest.raises(ValueError, match="three"):
        next(iterator)
    wait_until(lambda: not own_threads())
    assert next(iterator) == (2, 1)


def blocking(release):
    def generate():
        yield 1
        release.wait()
        yield 2

    return generate


@pytest.mark.parametrize("how", ["del", "close"])
def test_a_generator_that_blocks_does_not_hold_up_its_deletion(how, caplog):
    release = threading.Event()
    dataset = Dataset.from_generator(blocking(release), output_signature=INT).prefetch(2)
    iterator = iter(dataset)
    next(iterator)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "stratagem"):
        if how == "close":
            iterator.close()
        del iterator
    assert time.monotonic() - begun < 30
    assert "blocking.<locals>.generate" in caplog.text
    release.set()
    wait_until(lambda: not own_threads())


def test_a_generator_that_was_left_is_closed_when_it_goes_on():
    release, closed = threading.Event(), threading.Event()

    def generate():
        try:
            yield 1
            release.wait()
            yield 2
        finally:
            closed.set()

    iterator = iter(Dataset.from_generator(generate, output_signature=INT).prefetch(2))
    next(iterator)
    del iterator
    assert not closed.is_set()
    release.set()
    assert closed.wait(10)


def test_blocked_threads_do_not_keep_the_process_from_ending():
    program = """
        import threading
        from stratagem.data import Dataset, TensorSpec

        def block(x):
            if int(x):
                threading.Event().wait()
            return int(x)

        def generate():
            yield 0
            threading.Event().wait()

        generated = Dataset.from_generator(generate, output_signature=TensorSpec((), "int32"))
        numbers = Dataset.range(3).filter(lambda x: True)
        iterators = [iter(generated.prefetch(2)), iter(numbers.map(block, num_parallel_calls=2))]
        print(*(next(iterator) for iterator in iterators), flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "0 0\n"
    assert "generate (<string>, line 12)" in done.stderr
    assert "Traceback" not in done.stderr


class Interrupted(Exception):
    pass


def test_a_draw_that_is_interrupted_while_another_thread_draws():
    begun, go_on, drawn = threading.Event(), threading.Event(), []

    def generate():
        begun.set()
        assert go_on.wait(60)
        yield from range(3)

    def interrupt():
        raise Interrupted

    iterator = iter(Dataset.from_generator(generate, output_signature=INT))
    other = threading.Thread(target=lambda: drawn.append(int(next(iterator))))
    other.start()
    with on_signal(interrupt) as send:
        assert begun.wait(60)

        def send_when_waited_for():
            end = time.monotonic() + 60
            while not iterator._waiting and time.monotonic() < end:
                time.sleep(0.001)
            send()

        sender = threading.Thread(target=send_when_waited_for)
        sender.start()
        with pytest.raises(Interrupted):
            next(iterator)
        sender.join()
    go_on.set()
    # Whoever was interrupted holds nothing that the others wait for.
    assert [int(x) for x in iterator] == [1, 2]
    other.join()
    assert drawn == [0]
    assert not iterator._waiting
