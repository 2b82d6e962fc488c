"""What a caller changes after a call has returned never changes the call's result."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from replicas import components

import stratagem as sg

pytestmark = pytest.mark.about("variables")


def buffer(value=1.0, shape=(64,), dtype=np.float32):
    """Returns a writable array that begins where JAX can take it over without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + size].view(dtype).reshape(shape)
    array[:] = value
    return array


def replica_results(strategy, value):
    return [np.asarray(part) for part in components(strategy, value)]


def all_reduced(value):
    return sg.distribute.get_replica_context().all_reduce("MEAN", value)


def made_in(strategy, **options):
    with strategy.scope():
        return sg.Variable(**options)


def variable(strategy, value):
    return made_in(strategy, initial_value=value)


def assigned(strategy, value):
    v = made_in(strategy, initial_value=np.zeros(64, np.float32))
    v.assign(value)
    return v


def assigned_in_replicas(strategy, value):
    aggregation = sg.VariableAggregation.MEAN
    v = made_in(strategy, initial_value=np.zeros(64, np.float32), aggregation=aggregation)
    strategy.run(lambda: v.assign(value))
    return v


def added(strategy, value):
    v = made_in(strategy, initial_value=np.zeros(64, np.float32))
    v.assign_add(value)
    return v


def sync_on_read(strategy, value):
    options = {
        "synchronization": sg.VariableSynchronization.ON_READ,
        "aggregation": sg.VariableAggregation.ONLY_FIRST_REPLICA,
    }
    return made_in(strategy, initial_value=value, **options)


def from_function(strategy, value):
    return strategy.experimental_distribute_values_from_function(lambda _: value)


ENTRANCES = {
    "initial value": variable,
    "initial value on read": sync_on_read,
    "assign": assigned,
    "assign in replicas": assigned_in_replicas,
    "assign_add": added,
    "operator": lambda strategy, x: variable(strategy, np.zeros(64, np.float32)) + x,
    "argument of run": lambda strategy, x: strategy.run(lambda x: x, args=(x,)),
    "computed in run": lambda strategy, x: strategy.run(lambda x: jnp.sort(x) * 1, args=(x,)),
    "result of run": lambda strategy, x: strategy.run(lambda: jnp.asarray(np.array(x))),
    "all_reduce": lambda strategy, x: strategy.run(lambda: all_reduced(x)),
    "reduce": lambda strategy, x: strategy.reduce("MEAN", x, axis=None),
    "argument of a function": lambda strategy, x: sg.function(lambda x: jnp.sort(x) * 1)(x),
    "returned argument": lambda strategy, x: sg.function(lambda x: x)(x),
    "argument of a replica function": lambda strategy, x: sg.function(
        lambda x: strategy.run(lambda x: x * 1, args=(x,))
    )(x),
    "captured": lambda strategy, x: sg.function(lambda: strategy.run(lambda: jnp.asarray(x)))(),
    "values from a function": from_function,
}


@pytest.mark.spread("entrance")
@pytest.mark.parametrize("entrance", ENTRANCES.values(), ids=ENTRANCES)
def test_a_buffer_that_is_filled_again(strategy, entrance):
    given = buffer(1.0)
    result = entrance(strategy, given)
    given[:] = 5.0
    for part in replica_results(strategy, result):
        np.testing.assert_array_equal(part, np.ones(64, np.float32))


def test_a_step_uses_what_its_buffer_held_when_it_was_called(strategy):
    with strategy.scope():
        total = sg.Variable(0.0, aggregation=sg.VariableAggregation.MEAN)

    def replica_step(x):
        for _ in range(5):
            x = jnp.sin(x) * 0 + x  # takes a while
        total.assign_add(jnp.mean(x))

    step = sg.function(lambda x: strategy.run(replica_step, args=(x,)))
    given = buffer(shape=(1 << 18,))
    for i in range(6):
        given[:] = i
        step(given)
    assert float(total) == 15


def test_a_captured_array_is_as_it_was_when_traced(strategy):
    captured = buffer(1.0)
    step = sg.function(lambda: strategy.run(lambda: jnp.asarray(captured) * 1))
    for value in (5.0, 6.0):
        for part in replica_results(strategy, step()):
            np.testing.assert_array_equal(part, np.ones(64, np.float32))
        captured[:] = value


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_what_was_read_does_not_change_with_the_variable(strategy, compiled):
    aggregation = sg.VariableAggregation.MEAN
    v = made_in(strategy, initial_value=np.ones(64, np.float32), aggregation=aggregation)

    def step():
        strategy.run(lambda: v.assign_add(jnp.ones(64)))

    run = sg.function(step) if compiled else step
    run()
    run()  # what a program returned is in the variable now, and given to the next
    read = [np.asarray(v), v.numpy(), np.asarray(v.value()), jax.device_get(v.value())]
    views = [x[1:] for x in read]
    for _ in range(3):
        run()
    for array in [*read, *views]:
        np.testing.assert_array_equal(array, np.full(array.shape, 3, np.float32))
    np.testing.assert_array_equal(np.asarray(v), np.full(64, 6, np.float32))


def test_what_was_read_cannot_be_used_to_change_the_variable(strategy):
    v = made_in(strategy, initial_value=np.ones(64, np.float32))
    copy = v.numpy()
    copy[:] = 7  # one's own
    for view in (np.asarray(v), np.asarray(v.value())):
        if view.flags.writeable:
            view[:] = 7
        else:
            with pytest.raises(ValueError, match="read-only"):
                view[:] = 7
    np.testing.assert_array_equal(np.asarray(v), np.ones(64, np.float32))


def filled_by_each_replica(array):
    """Returns the array, filled with a number of its replica."""
    context = sg.distribute.get_replica_context()
    number = jnp.asarray(context.replica_id_in_sync_group)
    array[:] = int(number) + 1
    return array


def mean_in_merge_call(array):
    context = sg.distribute.get_replica_context()
    return context.merge_call(
        lambda strategy, x: strategy.reduce("MEAN", x, axis=None), args=(array,)
    )


def test_one_buffer_that_each_eager_replica_fills(strategy):
    shared = buffer()
    expected = np.arange(1, strategy.num_replicas_in_sync + 1)
    results = replica_results(
        strategy, strategy.run(lambda: {"x": filled_by_each_replica(shared)})["x"]
    )
    assert sorted(part[0] for part in results) == sorted(expected[: len(results)])
    if strategy.num_replicas_in_sync > 1:
        merged = strategy.run(lambda: mean_in_merge_call(filled_by_each_replica(shared)))
        assert {part[0] for part in replica_results(strategy, merged)} == {expected.mean()}


def test_an_array_that_is_the_same_for_all_stays_itself_in_merge_call(strategy):
    shared, seen = buffer(), []

    def replica_fn():
        context = sg.distribute.get_replica_context()
        context.merge_call(lambda _, x: seen.append(x), args=(shared,))

    strategy.run(replica_fn)
    [given] = seen
    if jax.process_count() == 1:
        assert given is shared
    else:  # other workers have arrays of their own
        np.testing.assert_array_equal(strategy.experimental_local_results(given)[0], shared)


@pytest.mark.parametrize("by_rows", [False, True])
def test_gradients_in_one_buffer(strategy, by_rows):
    v = made_in(strategy, initial_value=np.zeros(64, np.float32))
    with strategy.scope():
        optimizer = sg.train.Optimizer(optax.sgd(1.0))
    gradient = buffer()
    rows = sg.IndexedSlices(gradient, np.arange(64), (64,))
    for number in range(4):
        gradient[:] = number
        optimizer.apply_gradients([(rows if by_rows else gradient, v)])
        gradient[:] = 100
    np.testing.assert_array_equal(np.asarray(v), np.full(64, -6, np.float32))
