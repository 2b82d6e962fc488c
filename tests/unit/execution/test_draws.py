"""What a function draws from an iterator is an input of its program."""

from __future__ import annotations

import copy
import gc
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.execution import draws

Dataset = sg.data.Dataset


def batches(stop=8, size=2):
    return Dataset.from_tensor_slices(np.arange(stop, dtype=np.float32)).batch(size)


def test_a_plain_iterator_gives_a_new_element_in_each_call():
    iterator = iter(batches())
    step = sg.function(lambda it: jnp.sum(next(it)))
    assert [float(step(iterator)) for _ in range(4)] == [1, 5, 9, 13]
    for _ in range(2):
        with pytest.raises(sg.errors.OutOfRangeError, match="End of the dataset"):
            step(iterator)
    assert step.experimental_get_tracing_count() == 1


def test_iterators_share_a_program():
    step = sg.function(lambda it: jnp.sum(next(it)))
    for _ in range(3):
        iterator = iter(batches(4))
        assert [float(step(iterator)) for _ in range(2)] == [1, 5]
    as_numpy = batches(4).as_numpy_iterator()
    assert [float(step(as_numpy)) for _ in range(2)] == [1, 5]
    assert step.experimental_get_tracing_count() == 2  # one for each type of iterator


def test_several_draws_of_nested_elements():
    table = {"x": np.arange(12, dtype=np.float32), "y": np.arange(12)}
    iterator = iter(Dataset.from_tensor_slices(table).batch(2))

    @sg.function
    def step(it):
        first, second = next(it), next(it)
        return first["x"] - second["x"], first["y"] * 1, second["y"].sum()

    for k in range(3):
        difference, y, total = step(iterator)
        assert difference.tolist() == [-2, -2]
        assert y.tolist() == [4 * k, 4 * k + 1]
        assert int(total) == 8 * k + 5


def test_the_functions_of_a_pipeline_compute_and_are_not_traced():
    seen = []

    def note(x):
        seen.append(float(jnp.sum(jnp.asarray(x)) + 1))
        return x

    iterator = iter(Dataset.from_tensor_slices(np.arange(6.0)).batch(2).map(note))
    del seen[:]  # what the spec of the elements needed
    step = sg.function(lambda it: jnp.sum(next(it)))
    assert [float(step(iterator)) for _ in range(3)] == [1, 5, 9]
    assert seen == [2, 6, 10]


def test_an_element_of_a_failed_call_is_given_again():
    iterator = iter(batches())

    @sg.function
    def step(it, fail):
        x = next(it)
        if fail:
            raise RuntimeError("on purpose")
        return x * 1

    assert step(iterator, False).tolist() == [0, 1]
    state = iterator.get_state()
    for eagerly in (False, True):
        sg.config.run_functions_eagerly(eagerly)
        try:
            with pytest.raises(RuntimeError, match="on purpose"):
                step(iterator, True)
        finally:
            sg.config.run_functions_eagerly(False)
        assert iterator.get_state() == state
    assert next(copy.copy(iterator)).tolist() == [2, 3]
    assert step(iterator, False).tolist() == [2, 3]
    assert [x.tolist() for x in iterator] == [[4, 5], [6, 7]]


def test_the_end_is_the_same_compiled_and_not():
    step = sg.function(lambda it: jnp.sum(next(it)))
    for eagerly in (False, True):
        iterator = iter(batches(2))
        sg.config.run_functions_eagerly(eagerly)
        try:
            step(iterator)
            with pytest.raises(sg.errors.OutOfRangeError):
                step(iterator)
        finally:
            sg.config.run_functions_eagerly(False)


def test_an_iterator_that_a_function_makes_is_made_in_each_call():
    dataset = Dataset.from_tensor_slices(np.arange(100)).shuffle(100).batch(100)
    for make in (iter, Dataset.as_numpy_iterator):
        first = sg.function(lambda make=make: jnp.asarray(next(make(dataset))))
        assert first().tolist() != first().tolist()


def test_a_loop_over_a_plain_dataset_compiles_the_functions_that_it_calls():
    total = sg.Variable(0.0)
    traces = []

    @sg.function
    def add(x):
        traces.append(1)
        total.assign_add(jnp.sum(x))

    source = [1.0, 2.0, 3.0]

    @sg.function
    def epoch(dataset):
        for x in dataset:
            add(x)

    dataset = Dataset.from_generator(
        lambda: iter(source), output_signature=sg.TensorSpec((), np.float32)
    )
    epoch(dataset)
    source[0] = 10.0
    epoch(dataset)
    assert float(total) == 21
    assert len(traces) == 1


@pytest.mark.parametrize(
    "inside",
    [
        lambda draw: jax.lax.scan(lambda c, _: (c + draw(), None), 0.0, None, length=3)[0],
        lambda draw: jax.lax.cond(jnp.zeros(()) > 1, draw, lambda: jnp.float32(0)),
        lambda draw: jax.jit(draw)() + jax.jit(draw)(),
        lambda draw: jax.checkpoint(draw)(),
    ],
    ids=["scan", "cond", "jit", "checkpoint"],
)
def test_drawing_inside_of_what_jax_calls_once_is_refused(inside):
    iterator = iter(batches())
    step = sg.function(lambda it: inside(lambda: jnp.sum(next(it))))
    with pytest.raises(sg.errors.ContextError, match="Call it outside and pass the element"):
        step(iterator)
    assert next(iterator).tolist() == [0, 1]


def test_drawing_inside_of_a_gradient():
    w = sg.Variable(1.0)
    ours = sg.function(lambda it: sg.value_and_grad(lambda: jnp.sum(w * next(it)), [w])()[1][0])
    theirs = sg.function(lambda it: jax.grad(lambda w: jnp.sum(w * next(it)))(1.0))
    iterator = iter(batches())
    assert [float(step(iterator)) for step in (ours, theirs, ours, theirs)] == [1, 5, 9, 13]


def test_a_plain_iterator_in_compiled_replicas_is_refused():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(batches())
    step = sg.function(lambda: strategy.run(lambda: jnp.sum(next(iterator))))
    with pytest.raises(sg.errors.ContextError, match="pass the element"):
        step()


def test_a_call_without_a_use_of_the_element_draws_it_too():
    iterator = iter(batches())

    @sg.function
    def skip(it):
        next(it)
        return jnp.zeros(())

    skip(iterator)
    skip(iterator)
    assert next(iterator).tolist() == [4, 5]


def test_a_program_does_not_keep_what_was_drawn_while_tracing():
    before = {id(x) for x in jax.live_arrays()}
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    size = 1 << 16
    dataset = Dataset.from_tensor_slices(np.zeros((3, size), np.float32)).batch(1)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    step = sg.function(lambda it: strategy.run(lambda x: jnp.sum(x), args=(next(it),)))
    for _ in range(3):
        step(iterator)
    with pytest.raises(sg.errors.OutOfRangeError):
        step(iterator)
    gc.collect()
    kept = [x for x in jax.live_arrays() if id(x) not in before and x.size == size]
    assert not kept


def plain_iterator(dataset):
    return iter(dataset)


def distributed_iterator(dataset):
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    options = sg.distribute.InputOptions(experimental_fetch_to_device=False)
    return iter(strategy.experimental_distribute_dataset(dataset, options))


@pytest.mark.parametrize("make", [plain_iterator, distributed_iterator])
def test_threads_draw_each_element_once(make):
    count, event = 60, threading.Event()

    def numbers():
        for number in range(3 * count):
            event.wait(0.0001)  # another thread's turn
            yield [number]

    spec = sg.TensorSpec((1,), np.float32)
    iterator = make(Dataset.from_generator(numbers, output_signature=spec))
    step = sg.function(lambda it: jnp.sum(next(it)))
    results = [[], [], []]
    errors = []

    def work(mine):
        try:
            for _ in range(count):
                mine.append(float(step(iterator)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(itertools.chain(*results)) == list(range(3 * count))


def with_default(it):
    x = next(it, None)
    return jnp.float32(-1) if x is None else jnp.sum(x)


def catching(it):
    try:
        return jnp.sum(next(it))
    except StopIteration:
        return jnp.float32(-1)


@pytest.mark.parametrize("make", [plain_iterator, distributed_iterator])
@pytest.mark.parametrize("function", [with_default, catching])
def test_a_function_can_catch_the_end_of_the_data(make, function):
    traces = []

    @sg.function
    def step(it):
        traces.append(1)
        return function(it)

    # The end is an input like an element: neither program is used for calls of the other kind.
    assert float(step(make(batches(0)))) == -1
    for _ in range(2):
        iterator = make(batches(4))
        assert [float(step(iterator)) for _ in range(4)] == [1, 5, -1, -1]
    assert len(traces) == 2


def test_a_function_draws_until_the_end():
    @sg.function
    def total(it):
        result = jnp.float32(0)
        while (x := next(it, None)) is not None:
            result += jnp.sum(x)
        return result

    assert [float(total(iter(batches(n)))) for n in (4, 8, 4)] == [6, 28, 6]


def test_a_function_that_does_not_catch_the_end_is_traced_for_it_once():
    traces = []

    @sg.function
    def step(it):
        traces.append(1)
        return jax.grad(lambda w: jnp.sum(w * next(it)))(1.0)

    for _ in range(3):
        iterator = iter(batches(2))
        step(iterator)
        with pytest.raises(sg.errors.OutOfRangeError, match=r"End of the dataset"):
            step(iterator)
    assert len(traces) == 2


@pytest.mark.parametrize("distributed", [False, True])
def test_what_is_done_before_a_loop_over_an_argument_is_done_once(distributed):
    done = []

    @sg.function
    def epoch(dataset):
        done.append("before")
        for x in dataset:
            done.append(float(jnp.sum(x)))
        done.append("after")

    dataset = batches(4)
    if distributed:
        strategy = sg.distribute.OneDeviceStrategy("CPU:0")
        dataset = strategy.experimental_distribute_dataset(dataset)
    epoch(dataset)
    assert done == ["before", 1, 5, "after"]


@pytest.mark.parametrize("make", [plain_iterator, distributed_iterator])
def test_an_iterator_that_is_not_drawn_from(make):
    step = sg.function(lambda it, x: x * 2)
    iterator = make(batches(4))
    assert [float(step(iterator, jnp.float32(k))) for k in range(3)] == [0, 2, 4]
    assert float(jnp.sum(next(iterator))) == 1


def test_elements_of_unequal_shapes_are_not_lost_where_errors_are_caught():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @sg.function
    def step(it):
        try:
            x = next(it)
        except Exception:
            return -1.0
        return strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(batches(7, 4)))
    assert [float(step(iterator)) for _ in range(2)] == [6, 15]


def test_an_array_of_a_draw_that_stays_in_a_program_raises():
    """It would be a constant otherwise: the first batch for ever."""
    drawn = draws._primitive()
    aval = jax.core.ShapedArray((2,), np.float32)
    marked = lambda: drawn.bind(drawn=draws._DrawnArray(0, 0, aval))  # noqa: E731
    with pytest.raises(NotImplementedError):
        jax.jit(marked)()
    with pytest.raises(NotImplementedError):
        marked()
