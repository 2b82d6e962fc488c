"""Steps in a loop over ``tf.range`` are traced twice, and in every iteration where that would be wrong."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf

NUM = 6
rate = 0.0


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)])
def strategy(request):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


@pytest.fixture(params=["traced size", pytest.param("known size", marks=pytest.mark.slow)])
def size(request):
    """Makes the argument of a function that loops."""
    return tf.constant if request.param == "traced size" else int


@pytest.fixture
def holder():
    return types.SimpleNamespace(traces=0, value=None, rate=0.0)


@pytest.fixture
def batches():
    made = []

    def make(strategy, num_batches=NUM):
        rows = np.repeat(np.arange(num_batches, dtype=np.float32), 2)
        dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2)
        made.append(iter(strategy.experimental_distribute_dataset(dataset)))
        return made[-1]

    yield make
    for iterator in made:
        iterator.close()


def mean(strategy, result):
    return strategy.reduce("MEAN", result, axis=None)


def test_a_step_is_traced_twice_in_a_loop_of_any_length(strategy, size, holder, batches):
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    weights = jnp.ones(3)

    def step(x):
        holder.traces += 1
        total.assign_add(jnp.mean(x) + jnp.sum(weights * jnp.array([1.0, 2.0, 3.0])) - 6.0)

    @tf.function
    def steps(iterator, count):
        for _ in tf.range(count):
            with tf.name_scope("step"):
                strategy.run(step, args=(next(iterator),))

    steps(batches(strategy), size(4))
    holder.traces = 0
    steps(batches(strategy, 60), size(60))
    # A number of Python as an argument is a signature of its own, which is traced first.
    assert holder.traces == (2 if size is tf.constant else 3)
    assert float(total) == 6 + 59 * 30
    assert steps.experimental_get_tracing_count() == 1


def test_a_step_that_a_method_makes_in_each_iteration(strategy, size, holder, batches):
    """The loop of Orbit: the function knows neither the step nor the data."""

    class Trainer:
        def train_step(self, iterator):
            def step(x):
                holder.traces += 1
                return 2 * jnp.mean(x)

            return mean(strategy, strategy.run(step, args=(next(iterator),)))

    def create_loop(step):
        @tf.function
        def steps(iterator, count):
            out = []
            for _ in tf.range(count):
                out.append(step(iterator))
            return out

        return steps

    steps = create_loop(Trainer().train_step)
    steps(batches(strategy), size(NUM))
    holder.traces = 0
    assert [float(x) for x in steps(batches(strategy), size(NUM))] == [0, 2, 4, 6, 8, 10]
    assert holder.traces == 2


def keep_batch(holder, strategy, iterator):
    holder.value = next(iterator)
    return strategy.run(lambda: jnp.mean(local(strategy, holder.value)))


def capture_batch(holder, strategy, iterator):
    x = next(iterator)
    return strategy.run(lambda: jnp.mean(local(strategy, x)))


def local(strategy, value):
    context = tf.distribute.get_replica_context()
    return strategy.experimental_local_results(value)[context.replica_id_in_sync_group]


def change_number(holder, strategy, iterator):
    holder.rate += 1
    holder.value = next(iterator)
    return strategy.run(lambda: jnp.ones(()) * holder.rate)


def pass_number(holder, strategy, iterator):
    holder.rate += 1
    holder.value = next(iterator)
    return strategy.run(lambda n: jnp.ones(()) * n, args=(holder.rate,))


def call_back(holder, strategy, iterator):
    def step():
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(lambda: np.float32(holder.rate), shape)

    holder.rate += 1
    holder.value = next(iterator)
    return strategy.run(step)


@pytest.mark.parametrize(
    "make_step",
    [keep_batch, capture_batch, change_number, pass_number, call_back],
)
def test_a_step_computes_with_what_it_sees_in_each_iteration(holder, size, make_step, batches):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    @tf.function
    def steps(iterator, count):
        out = []
        for _ in tf.range(count):
            out.append(mean(strategy, make_step(holder, strategy, iterator)))
        return out

    for _ in range(2):
        results = [float(x) for x in steps(batches(strategy), size(NUM))]
        assert [x - results[0] for x in results] == list(range(NUM))


def test_a_step_that_looks_at_what_the_body_computed(strategy, holder):
    def look(i):
        holder.value = i > 3

    def step():
        return jnp.ones(()) * (2.0 if holder.value else 1.0)

    @tf.function
    def steps(count):
        out = []
        for i in tf.range(count):
            look(i)
            out.append(mean(strategy, strategy.run(step)))
        return out

    assert [float(x) for x in steps(tf.constant(NUM))] == [1, 1, 1, 1, 2, 2]


def in_attribute(strategy, holder):
    def steps(count):
        out = []
        for i in tf.range(count):
            if i == 3:
                holder.rate = 1.0
            out.append(mean(strategy, strategy.run(lambda: jnp.ones(()) * holder.rate)))
        return out

    return steps


def in_item(strategy, holder):
    rates = [0.0]

    def steps(count):
        out = []
        for i in tf.range(count):
            try:
                out.append(mean(strategy, strategy.run(lambda: jnp.ones(()) * rates[0])))
                if i == 2:
                    raise KeyError
            except KeyError:
                rates[0] = 1.0
        return out

    return steps


def get_rate():
    return rate


def in_global(strategy, holder):
    def steps(count):
        global rate
        rate, out = 0.0, []
        for i in tf.range(count):
            rate = rate if i != 3 else 1.0
            out.append(mean(strategy, strategy.run(lambda: jnp.ones(()) * get_rate())))
        return out

    return steps


def in_variable(strategy, holder):
    def steps(count):
        number, out = 0, []

        def step():
            return jnp.ones(()) * (number > 3)

        for _ in tf.range(count):
            number += 1
            out.append(mean(strategy, strategy.run(step)))
        return out

    return steps


def in_a_generator(strategy, holder):
    def numbers(count):
        for i in tf.range(count):
            yield i + 0

    def steps(count):
        out = []
        for i in numbers(count):
            holder.rate = float(i >= 3)
            out.append(mean(strategy, strategy.run(lambda: jnp.ones(()) * holder.rate)))
        return out

    return steps


@pytest.mark.parametrize("make", [in_attribute, in_item, in_global, in_variable, in_a_generator])
def test_what_the_body_assigns_late_is_seen(strategy, holder, make):
    steps = tf.function(make(strategy, holder))
    assert [float(x) for x in steps(tf.constant(NUM))] == [0, 0, 0, 1, 1, 1]


def test_what_a_function_changes_after_the_trace_is_not_seen(strategy, holder):
    """As in TensorFlow, where the body is traced once."""

    def count_calls():
        holder.traces += 1
        holder.rate = float(holder.traces > 4)

    @tf.function
    def steps(count):
        out = []
        for _ in tf.range(count):
            count_calls()
            out.append(mean(strategy, strategy.run(lambda: jnp.ones(()) * holder.rate)))
        return out

    assert [float(x) for x in steps(tf.constant(NUM))] == [0] * NUM


def test_loops_in_loops_and_steps_in_turn(strategy, holder):
    def set_rate(number):
        holder.rate = number

    @tf.function
    def steps(count):
        out = []
        for _ in tf.range(count):
            for number in range(2):
                set_rate(float(number))
                for _ in tf.range(3):
                    out.append(strategy.run(lambda: jnp.ones(()) * holder.rate))
            out.append(strategy.run(lambda: jnp.ones(()) * 3.0))
        return [mean(strategy, x) for x in out]

    assert [float(x) for x in steps(tf.constant(4))] == [0, 0, 0, 1, 1, 1, 3] * 4


def test_a_loop_that_ends_early_leaves_no_loop_behind(strategy, holder):
    @tf.function
    def steps(count):
        for _ in tf.range(count):
            strategy.run(lambda: jnp.ones(()))
            break
        out = []
        for k in range(4):
            holder.rate = float(k >= 2)
            out.append(strategy.run(lambda: jnp.ones(()) * holder.rate))
        return [mean(strategy, x) for x in out]

    assert [float(x) for x in steps(tf.constant(NUM))] == [0, 0, 1, 1]


def test_variables_that_the_first_step_creates_and_random_numbers(strategy, size):
    made = []

    def step():
        if not made:
            made.append(tf.Variable(jnp.zeros(()) + 1, aggregation=tf.VariableAggregation.MEAN))
        made[0].assign_add(1.0)
        return tf.random.uniform([])

    @tf.function
    def steps(count):
        out = []
        for _ in tf.range(count):
            out.append(strategy.run(step))
        return [mean(strategy, x) for x in out]

    with strategy.scope():
        assert len({float(x) for x in steps(size(8))}) == 8
    assert float(made[0]) == 9.0


def test_an_empty_loop_at_the_end_of_the_data(strategy, batches):
    @tf.function
    def steps(iterator, count):
        for _ in tf.range(count):
            strategy.run(jnp.mean, args=(next(iterator),))

    iterator = batches(strategy, 1)
    next(iterator)
    steps(iterator, tf.constant(0))
    with pytest.raises(tf.errors.OutOfRangeError):
        steps(iterator, tf.constant(1))
