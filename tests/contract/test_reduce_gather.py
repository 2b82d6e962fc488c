import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replicas import IN_WORKERS, one_process

import stratagem as sg

pytestmark = pytest.mark.about("collectives")

NUMPY = {"SUM": np.sum, "MEAN": np.mean, "MIN": np.min, "MAX": np.max}


def distribute(strategy, arrays):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: arrays[ctx.replica_id_in_sync_group]
    )


def numbers(strategy, shape=(), dtype=np.float32):
    return [
        (np.arange(np.prod(shape, dtype=int)).reshape(shape) + 10 * i).astype(dtype)
        for i in range(strategy.num_replicas_in_sync)
    ]


def test_local_results_can_be_combined(strategy, execute):
    """``tf.concat(per_replica.values, 0)``, an idiom of programs, though each is on its own device."""
    value = execute(strategy.run, lambda: jnp.ones((2, 3)))
    parts = strategy.experimental_local_results(value)
    joined = [sg.concat(parts, axis=0), jnp.concatenate(parts), sg.stack(parts), sum(parts)]
    count = len(parts)
    assert [x.shape for x in joined] == [(2 * count, 3), (2 * count, 3), (count, 2, 3), (2, 3)]
    assert [part.devices() for part in parts] == [
        {device} for device in strategy.replica_group.local_devices[:count]
    ]


@pytest.mark.spread("op", "axis")
@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1)])
def test_reduce(strategy, execute, op, axis):
    arrays = numbers(strategy, (2, 3))
    result = execute(lambda x: strategy.reduce(op, x, axis=axis), distribute(strategy, arrays))
    if axis is None:
        expected = NUMPY[op](np.stack(arrays), axis=0)
    else:
        axes = (axis,) if isinstance(axis, int) else axis
        stacked = np.stack(arrays)
        expected = NUMPY[op](stacked, axis=(0, *(a % 2 + 1 for a in axes)))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_reduce_of_a_structure(strategy, execute):
    arrays = numbers(strategy, (4,))
    value = distribute(strategy, arrays)
    result = execute(lambda x: strategy.reduce("SUM", {"a": x, "b": [x]}, axis=0), value)
    assert float(result["a"]) == float(result["b"][0]) == np.sum(arrays)


def test_mean_of_integers_is_floating_point(strategy, execute):
    arrays = numbers(strategy, (2,), np.int32)
    result = execute(lambda x: strategy.reduce("MEAN", x, axis=None), distribute(strategy, arrays))
    assert jnp.issubdtype(result.dtype, jnp.floating)
    np.testing.assert_allclose(result, np.mean(arrays, axis=0))


def test_mean_along_an_axis_uses_the_true_count(many, execute_ragged):
    arrays = [np.full(i + 1, i, np.float32) for i in range(many.num_replicas_in_sync)]
    result = execute_ragged(lambda x: many.reduce("MEAN", x, axis=0), distribute(many, arrays))
    assert float(result) == pytest.approx(np.concatenate(arrays).mean())


@pytest.mark.layout
def test_reduce_of_a_value_that_is_the_same_for_all(many, execute):
    assert float(execute(lambda x: many.reduce("MEAN", x, axis=None), jnp.float32(3))) == 3
    assert float(execute(lambda x: many.reduce("MEAN", x, axis=0), jnp.array([1.0, 3.0]))) == 2
    assert float(execute(lambda x: many.reduce("MAX", x, axis=None), jnp.float32(3))) == 3
    if IN_WORKERS:
        workers = many.num_replicas_in_sync // many.replica_group.local_size
        assert (
            float(execute(lambda x: many.reduce("SUM", x, axis=None), jnp.float32(3)))
            == 3 * workers
        )
        total = execute(lambda x: many.reduce("SUM", x, axis=None), jnp.ones((2, 3)))
        np.testing.assert_array_equal(total, np.full((2, 3), workers))
        return
    with pytest.raises(ValueError, match="SUM needs a value for each replica"):
        execute(lambda x: many.reduce("SUM", x, axis=None), jnp.float32(3))


@pytest.mark.layout
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("op", ["SUM", "MEAN", "MIN", "MAX"])
def test_reduce_combines_what_each_worker_has(many, execute, op, axis):
    """A value of a worker's own is no value of all: to leave it would give each worker another result."""
    position = many.extended.worker_position()
    if op == "SUM" and position.num_workers == 1:
        pytest.skip("a value that is the same for all replicas is not summed")
    every = [np.arange(3, dtype=np.float32) + 10 * i for i in range(position.num_workers)]
    result = execute(lambda x: many.reduce(op, x, axis=axis), jnp.asarray(every[position.index]))
    np.testing.assert_array_equal(result, NUMPY[op](np.stack(every), None if axis == 0 else 0))


@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
def test_reduce_of_variables(many, execute):
    n = many.num_replicas_in_sync
    with many.scope():
        counter = sg.Variable(
            1.0,
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    assert float(execute(lambda: many.reduce("SUM", counter, axis=None))) == n
    assert float(execute(lambda: many.reduce("MEAN", counter, axis=None))) == 1


@one_process("workers do not know the shapes of each other")
def test_reduce_needs_equal_shapes_without_an_axis(many):
    ragged = distribute(many, [np.zeros(i) for i in range(many.num_replicas_in_sync)])
    with pytest.raises(ValueError, match=r"same shape in every replica, got \[\(0,\), \(1,\)"):
        many.reduce("SUM", ragged, axis=None)


def test_reduce_along_an_axis_that_is_not_there(strategy, execute):
    value = distribute(strategy, numbers(strategy, (2,)))
    with pytest.raises(ValueError, match="axis"):
        execute(lambda x: strategy.reduce("SUM", x, axis=1), value)


def test_unknown_reduce_op(strategy):
    with pytest.raises(ValueError, match="SUM, MEAN, MIN, MAX"):
        strategy.reduce("median", jnp.ones(1), axis=None)


@pytest.mark.spread("axis")
@pytest.mark.layout
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(strategy, execute, axis):
    arrays = numbers(strategy, (2, 3))
    result = execute(lambda x: strategy.gather(x, axis=axis), distribute(strategy, arrays))
    np.testing.assert_array_equal(result, np.concatenate(arrays, axis=axis))


@one_process("makes a strategy on devices of its own")
def test_gather_of_a_mirrored_variable(execute):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = sg.Variable([[1], [2]])
    gathered = execute(lambda: strategy.gather(v, axis=0))
    np.testing.assert_array_equal(gathered, [[1], [2], [1], [2]])
    assert int(execute(lambda: strategy.reduce("SUM", v, axis=None))[1, 0]) == 4


def test_reduce_of_infinities_and_halves(strategy, execute):
    infinite = distribute(
        strategy, [np.full(3, np.inf, np.float32)] * strategy.num_replicas_in_sync
    )
    assert np.isposinf(execute(lambda x: strategy.reduce("MIN", x, axis=0), infinite))
    assert np.isneginf(
        execute(
            lambda x: strategy.reduce("MAX", x, axis=0),
            distribute(strategy, [np.full(3, -np.inf, np.float32)] * strategy.num_replicas_in_sync),
        )
    )
    halves = distribute(strategy, [np.full(1000, 100, np.float16)] * strategy.num_replicas_in_sync)
    mean = execute(lambda x: strategy.reduce("MEAN", x, axis=0), halves)
    assert mean.dtype == jnp.float16
    assert float(mean) == 100


@one_process("makes a strategy on devices of its own")
def test_a_value_of_other_replicas(strategy):
    count = strategy.num_replicas_in_sync + 1
    other = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    foreign = other.run(lambda: jnp.ones(1))
    for call in (
        lambda: strategy.reduce("SUM", foreign, axis=None),
        lambda: strategy.gather(foreign, axis=0),
        lambda: strategy.run(lambda x: x, args=(foreign,)),
    ):
        with pytest.raises(ValueError, match="strategy that created it"):
            call()


def test_reduce_of_python_numbers(many):
    numbers = many.run(lambda: int(sg.distribute.get_replica_context().replica_id_in_sync_group))
    assert int(many.reduce("SUM", numbers, axis=None)) == sum(range(many.num_replicas_in_sync))


@pytest.mark.spread("axis")
@pytest.mark.layout
@pytest.mark.parametrize("axis", [None, 0.0, (0,), 2])
def test_gather_along_what_is_no_axis(many, execute, axis):
    value = distribute(many, numbers(many, (2, 3)))
    with pytest.raises(ValueError, match="axis"):
        execute(lambda x: many.gather(x, axis=axis), value)


@pytest.mark.layout
def test_gather_shows_shapes_that_do_not_fit(many):
    arrays = [np.zeros((2, i + 1)) for i in range(many.num_replicas_in_sync)]
    with pytest.raises(ValueError, match=r"\(2, 1\), \(2, 2\)"):
        many.gather(distribute(many, arrays), axis=0)


@st.composite
def ragged_arrays(draw, count):
    rest = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype = draw(st.sampled_from([np.float32, np.int32]))
    sizes = [draw(st.integers(0, 4)) for _ in range(count)]
    values = st.integers(-50, 50)
    return [
        np.array(
            draw(st.lists(values, min_size=(n := size * int(np.prod(rest))), max_size=n)), dtype
        ).reshape((size, *rest))
        for size in sizes
    ]


SETTINGS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TWO = [f"CPU:{i}" for i in range(2)]
THREE = [f"CPU:{i}" for i in range(3)]


@one_process("makes a strategy on devices of its own")
@SETTINGS
@given(data=st.data(), count=st.sampled_from([2, 3]))
def test_gather_is_concatenation(data, count):
    strategy = sg.distribute.MirroredStrategy(THREE[:count])
    arrays = data.draw(ragged_arrays(count))
    result = strategy.gather(distribute(strategy, arrays), axis=0)
    np.testing.assert_array_equal(result, np.concatenate(arrays, axis=0))
    assert result.dtype == arrays[0].dtype


@one_process("makes a strategy on devices of its own")
@SETTINGS
@given(data=st.data(), count=st.sampled_from([2, 3]), op=st.sampled_from(list(NUMPY)))
def test_reduce_along_axis_0_is_the_reduction_of_everything(data, count, op):
    strategy = sg.distribute.MirroredStrategy(THREE[:count])
    arrays = data.draw(ragged_arrays(count))
    whole = np.concatenate(arrays, axis=0)
    value = distribute(strategy, arrays)
    if whole.shape[0] == 0 and op in ("MIN", "MAX"):
        with pytest.raises(ValueError, match="zero elements"):
            strategy.reduce(op, value, axis=0)
        return
    if whole.shape[0] == 0 and op == "MEAN":
        assert np.isnan(np.asarray(strategy.reduce(op, value, axis=0))).all()
        return
    np.testing.assert_allclose(
        strategy.reduce(op, value, axis=0), NUMPY[op](whole, axis=0), rtol=1e-5, atol=1e-5
    )


@one_process("makes a strategy on devices of its own")
@SETTINGS
@given(data=st.data(), op=st.sampled_from(list(NUMPY)), compiled=st.booleans())
def test_reduce_over_replicas_is_the_reduction_of_the_stack(data, op, compiled):
    strategy = sg.distribute.MirroredStrategy(TWO)
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    size = int(np.prod(shape))
    arrays = [
        np.array(
            data.draw(st.lists(st.integers(-50, 50), min_size=size, max_size=size)), np.float32
        ).reshape(shape)
        for _ in range(2)
    ]

    def fn(x):
        return strategy.reduce(op, x, axis=None)

    result = (sg.function(fn) if compiled else fn)(distribute(strategy, arrays))
    np.testing.assert_allclose(result, NUMPY[op](np.stack(arrays), axis=0), rtol=1e-5)
