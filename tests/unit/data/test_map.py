from __future__ import annotations

import collections
import cProfile
import functools
import gc
import pstats
import random
import sys
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.data import AUTOTUNE, Dataset, InvalidArgumentError, TensorSpec

from .pipelines import contents, streamed

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 6)).astype(np.uint8)


def counted(fn):
    """Returns a function and the list that grows with each call of it."""
    calls = []

    def call(*args):
        calls.append(None)
        return fn(*args)

    return call, calls


FUNCTIONS = {
    "scale": lambda x: x.astype(np.float32) / 255,
    "normalise": lambda x: (x.astype(np.float32) - 0.1307) / 0.3081,
    "multiply and add": lambda x: x.astype(np.float32) * 0.3081 + 0.1307,
    "to float64": lambda x: x / 255,
    "integers": lambda x: x // 3 + 1,
    "jax": lambda x: jnp.exp(jnp.asarray(x, jnp.float32) / 255) * 3 + 1,
    "nest": lambda x: {"sum": x.sum(), "pair": (x, x.astype(np.float32).mean())},
    "constant": lambda x: (x, 7),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_have_the_bits_of_separate_calls(name):
    fn = FUNCTIONS[name]
    one_by_one = [fn(row) for row in PIXELS]
    leaves = [jax.tree.leaves(element) for element in one_by_one]
    seen = 0
    for batch in Dataset.from_tensor_slices(PIXELS).map(fn).batch(8):
        for column, expected in zip(
            jax.tree.leaves(batch), zip(*leaves[seen : seen + 8], strict=True), strict=True
        ):
            stacked = np.stack([np.asarray(leaf) for leaf in expected])
            if name == "constant" and stacked.dtype == np.int64:
                stacked = stacked.astype(np.int32)
            assert column.dtype == stacked.dtype
            if name == "jax":
                np.testing.assert_allclose(column, stacked, rtol=1e-6)
            else:
                np.testing.assert_array_equal(column, stacked)
        seen += len(jax.tree.leaves(batch)[0])
    assert seen == 50


@pytest.mark.parametrize("make", [Dataset.from_tensor_slices, lambda x: from_rows(x)])
def test_a_traceable_function_is_not_called_for_every_element(make):
    fn, calls = counted(lambda x: x.astype(np.float32) / 255)
    dataset = make(PIXELS).map(fn).batch(5)
    for _ in range(3):
        assert sum(len(batch) for batch in dataset) == 50
    assert len(calls) < 25


@pytest.mark.parametrize("calls", [None, 2, AUTOTUNE])
def test_a_function_of_shuffled_elements_is_not_called_for_each(calls):
    fn, seen = counted(lambda x: x.astype(np.float32) * 0.3 + 1)
    dataset = Dataset.from_tensor_slices(PIXELS).shuffle(50).repeat(4)
    batches = list(dataset.map(fn, num_parallel_calls=calls).batch(5))
    assert len(seen) < 25
    expected = sorted((PIXELS.astype(np.float32) * np.float32(0.3) + 1).tolist() * 4)
    assert sorted(np.concatenate(batches).tolist()) == expected


def test_a_clock_that_a_finalizer_asks_is_not_the_functions_own():
    class Timed:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            time.monotonic()

    def make_garbage(x):
        calls.append(None)
        Timed()
        assert len([[] for _ in range(100)]) == 100
        return x + 1

    calls = []
    thresholds = gc.get_threshold()
    gc.set_threshold(10)
    try:
        list(Dataset.from_tensor_slices(PIXELS).map(make_garbage).batch(5))
    finally:
        gc.set_threshold(*thresholds)
    assert len(calls) < 25


@pytest.mark.parametrize(
    ("fn", "vectorised"),
    [
        (lambda x: x.astype(np.float32).mean(), False),
        (lambda x: x.astype(np.int64).sum(), True),
        (lambda x: jnp.exp(x.astype(np.float32)), False),
        (lambda x: jnp.where(x > 3, x, 0)[::-1].reshape(2, 3), True),
        (lambda x: x.astype(np.float32) ** 2 + x.max(), True),
        (lambda x: x.astype(np.float32) ** 3, False),
        (lambda x: jnp.sqrt(x.astype(np.float32)), True),
        (lambda x: x // 3 + x % 5, True),
        (lambda x: x[1:4] // (x[2:5] // 2 + 1), False),
        (lambda x: (x.astype(np.float32) / 2).astype(np.uint8), False),
        (lambda x: jnp.asarray(x)[x[0] % 6], False),
        (lambda x: x[2] ^ x[-1], True),
    ],
)
def test_only_operations_that_are_exact_run_vectorised(fn, vectorised):
    counting, calls = counted(fn)
    batches = list(Dataset.from_tensor_slices(PIXELS).map(counting).batch(5))
    assert (len(calls) < 25) == vectorised
    np.testing.assert_array_equal(np.concatenate(batches), [np.asarray(fn(row)) for row in PIXELS])


@pytest.mark.parametrize("fn", [FUNCTIONS["scale"], FUNCTIONS["multiply and add"]])
def test_a_first_batch_that_proves_nothing(fn):
    numbers = np.concatenate([np.zeros(4), np.arange(1, 256), np.zeros(1)]).astype(np.uint8)
    rows = numbers.reshape(-1, 1, 4).repeat(8, 1)
    batches = list(Dataset.from_tensor_slices(rows).map(fn).batch(1))
    np.testing.assert_array_equal(np.concatenate(batches), fn(rows))


def test_a_function_of_batches_is_not_one_of_rows():
    batches = Dataset.range(8).batch(4, drop_remainder=True)
    assert contents(batches.map(lambda batch: batch[::-1] + batch[0]).batch(2)) == [
        [[3, 2, 1, 0], [11, 10, 9, 8]]
    ]


def test_tiny_numbers_are_kept():
    tiny = np.full((8, 16), 1e-40, np.float32)
    (batch,) = Dataset.from_tensor_slices(tiny).map(lambda x: x / 3).batch(8)
    np.testing.assert_array_equal(batch, tiny / 3)


def from_rows(rows):
    spec = TensorSpec(rows.shape[1:], rows.dtype)
    return Dataset.from_generator(lambda: iter(rows), output_signature=spec)


def test_a_function_that_jax_cannot_trace_is_called_for_every_element():
    fn, calls = counted(lambda x: np.sort(x) if x[0] > 9 else x)
    result = np.concatenate(list(Dataset.from_tensor_slices(PIXELS).map(fn).batch(7)))
    expected = np.stack([np.sort(x) if x[0] > 9 else x for x in PIXELS])
    np.testing.assert_array_equal(result, expected)
    assert len(calls) >= 50


def test_a_function_that_counts_gives_every_element_a_number_of_its_own_in_order():
    count = 0

    def number(x):
        nonlocal count
        count += 1
        return x * 0 + count

    numbers = contents(Dataset.range(6).map(number))
    assert numbers == sorted(set(numbers))
    batched = np.concatenate(contents(Dataset.range(6).map(number).batch(4))).tolist()
    assert batched == sorted(set(batched))
    assert len(batched) == 6


@pytest.mark.parametrize("ask", [time.time, time.perf_counter_ns, random.SystemRandom().random])
def test_a_function_that_asks_a_clock_is_asked_for_every_element(ask):
    seen = set()
    for batch in Dataset.range(12).map(lambda x: x * 0.0 + ask()).batch(4):
        seen.update(batch.tolist())
    assert len(seen) > 1


def test_a_profiler_of_the_user_stays_in_place():
    def profile(frame, event, arg):
        return None

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        list(Dataset.range(4).map(lambda x: x + 1).batch(2))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(before)


def test_a_function_that_keeps_its_arguments_is_called_with_each():
    kept = []

    def keep(x):
        kept.append(x)
        return x

    assert contents(Dataset.range(6).map(keep).batch(3)) == [[0, 1, 2], [3, 4, 5]]
    assert [int(x) for x in kept if not isinstance(x, jax.core.Tracer)][-6:] == list(range(6))


GENERATOR = np.random.default_rng(0)


def with_global_generator(x):
    return x + GENERATOR.random()


def make_adder(generator):
    def add(x):
        return x + sum(generator.random() for _ in range(1))

    return add


class WithState:
    def __init__(self):
        self.generator = np.random.default_rng(0)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x + self.generator.random()


@pytest.mark.parametrize(
    "fn",
    [
        with_global_generator,
        lambda x: with_global_generator(x),
        lambda x: x + np.random.random(),
        lambda x: x + random.random(),
        functools.partial(lambda generator, x: x + generator.random(), GENERATOR),
        make_adder(np.random.default_rng(1)),
        WithState(),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 10])
def test_random_numbers_differ_between_elements(fn, batch_size):
    batches = np.concatenate(list(Dataset.range(20).map(fn).batch(batch_size)))
    assert len(set((batches % 1).tolist())) == 20


def flip(x):
    return -x if GENERATOR.random() < 0.5 else x


@pytest.mark.parametrize("flip", [flip, lambda x: flip(x), functools.partial(flip)])
def test_a_random_choice_is_not_made_once_and_for_all(flip):
    for _ in range(10):
        signs = {np.sign(batch[0]) for batch in Dataset.range(1, 40).map(flip).batch(1)}
        assert len(signs) == 2


def test_functions_that_call_compiled_ones_still_run_vectorised():
    compiled = jax.jit(lambda x: jnp.sqrt(x) * 2)
    fn, calls = counted(lambda x: compiled(x) + jax.random.uniform(jax.random.key(0)))
    dataset = Dataset.from_tensor_slices(np.ones(64, np.float32)).map(fn).batch(8)
    assert sum(len(batch) for batch in dataset) == 64
    assert len(calls) < 32


def test_the_function_of_a_shuffled_batch_is_that_of_its_elements():
    dataset = Dataset.range(40).map(lambda x: x * x).shuffle(40, seed=3).repeat(2).batch(7)
    values = np.concatenate(list(dataset)).tolist()
    assert sorted(values) == sorted([x * x for x in range(40)] * 2)


def test_int64_stays_int64_through_jax_functions():
    batch = next(iter(Dataset.range(2**40, 2**40 + 3).map(jnp.square).batch(3)))
    assert batch.dtype == np.int64
    element = next(iter(Dataset.range(2**40, 2**40 + 3).map(lambda x: jnp.add(x, 1))))
    assert element == 2**40 + 1


def test_components_of_a_tuple_are_arguments_and_others_are_not():
    pair = collections.namedtuple("Pair", ["a", "b"])
    arrays = np.arange(3), np.arange(3) * 10
    assert contents(Dataset.from_tensor_slices(arrays).map(lambda a, b: a + b)) == [0, 11, 22]
    named = Dataset.from_tensor_slices(pair(*arrays)).map(lambda p: p.a - p.b)
    assert contents(named) == [0, -9, -18]
    keyed = Dataset.from_tensor_slices({"a": arrays[0]}).map(lambda d: d["a"])
    assert contents(keyed.batch(3)) == [[0, 1, 2]]


def test_a_function_cannot_change_the_source():
    array = np.ones((4, 2))

    def change(x):
        x[0] = -1
        return x

    assert contents(Dataset.from_tensor_slices(array).map(change))[0] == [-1, 1]
    assert (array == 1).all()


def test_strings_and_lists_are_converted():
    dataset = Dataset.range(2).map(lambda x: (str(int(x)), [1.5, int(x)]))
    assert contents(dataset) == [(b"0", [1.5, 0.0]), (b"1", [1.5, 1.0])]
    assert dataset.element_spec[1].dtype == np.float32


@pytest.mark.parametrize("result", [(1, {2}), {1, 2}, object()])
def test_results_that_are_not_arrays(result):
    with pytest.raises(InvalidArgumentError, match="must be made of arrays"):
        contents(Dataset.range(2).map(lambda x: result))


def test_element_spec_of_an_untraceable_function_leaves_sizes_open():
    dataset = Dataset.range(1, 5).map(lambda n: np.zeros(int(n)))
    assert dataset.element_spec == TensorSpec([None], np.float64)
    with pytest.raises(InvalidArgumentError, match="there is none"):
        _ = Dataset.range(0).map(lambda n: np.zeros(int(n))).element_spec


@pytest.mark.parametrize("calls", [1, 3, AUTOTUNE])
@pytest.mark.parametrize("make", [Dataset.range, lambda n: streamed(range(n))])
def test_parallel_calls_keep_the_order(calls, make):
    dataset = make(50).map(lambda x: int(x) * 2, num_parallel_calls=calls)
    assert contents(dataset) == list(range(0, 100, 2))
    traceable = make(50).map(lambda x: x * 2, num_parallel_calls=calls).batch(7)
    assert np.concatenate(list(traceable)).tolist() == list(range(0, 100, 2))


def test_parallel_calls_run_at_the_same_time():
    together = threading.Barrier(3, timeout=30)

    def meet(x):
        together.wait()
        return int(x)

    assert contents(streamed(range(9)).map(meet, num_parallel_calls=3)) == list(range(9))


def test_parallel_calls_run_while_the_consumer_works():
    started = [threading.Event() for _ in range(4)]

    def start(x):
        started[int(x)].set()
        return int(x)

    iterator = iter(streamed(range(4)).map(start, num_parallel_calls=2))
    next(iterator)
    assert started[1].wait(30)
    assert started[2].wait(30)
    iterator.close()


def fail_at_three(x):
    if int(x) == 3:
        raise ZeroDivisionError("at three")
    return int(x)


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.map(fail_at_three),
        lambda d: d.map(fail_at_three, num_parallel_calls=2),
        lambda d: d.map(fail_at_three).prefetch(2),
        lambda d: d.map(fail_at_three).map(lambda x: int(x), num_parallel_calls=4),
    ],
)
def test_an_error_comes_in_its_place_with_its_own_traceback(build):
    iterator = iter(build(streamed(range(6))))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="at three") as caught:
        next(iterator)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert "fail_at_three" in [frame.name for frame in frames]
    iterator.close()


def test_parallel_calls_need_a_sensible_number():
    with pytest.raises(InvalidArgumentError, match="num_parallel_calls"):
        Dataset.range(3).map(lambda x: x, num_parallel_calls=0)


def test_a_profiler_goes_on_after_a_function_was_traced():
    def afterwards():
        return sum(range(10))

    def program():
        list(Dataset.range(4).map(lambda x: x + 1))
        return afterwards()

    profile = cProfile.Profile()
    assert profile.runcall(program) == 45
    names = {name for _, _, name in pstats.Stats(profile).stats}
    assert "afterwards" in names
