"""Calls that differ in one thing only from one that ran before, by the fast path."""

import concurrent.futures
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.mesh.logical_devices import PartitionedGroup

STRATEGIES = {
    "default": sg.distribute.get_strategy,
    "one": lambda: sg.distribute.MirroredStrategy(["CPU:0"]),
    "two": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture
def total(strategy):
    with strategy.scope():
        return sg.Variable(0.0)


def called_often(step, *args, **kwargs):
    for _ in range(4):
        result = step(*args, **kwargs)
    assert step._programs.recent
    return result


def test_arguments_of_another_kind(total):
    @sg.function
    def step(x):
        total.assign_add(jnp.sum(jnp.asarray(x, jnp.float32)))
        return x, type(x).__name__, getattr(x, "weak_type", None)

    called_often(step, jnp.ones(2))
    for x in [jnp.ones(3), jnp.ones(2, jnp.int32), jnp.ones(()), jnp.asarray(1.0)]:
        before = float(total)
        result, _, weak = called_often(step, x)
        assert (result.shape, result.dtype, weak) == (x.shape, x.dtype, x.weak_type)
        assert float(total) == before + 4 * x.size
    assert step(1.0)[1] == "float"
    assert step(np.ones(2, np.float32))[0].shape == (2,)
    assert step(sg.Variable([1.0, 1.0]))[1] == "Variable"
    count = step.experimental_get_tracing_count()
    called_often(step, jnp.ones(2))
    assert step.experimental_get_tracing_count() == count == 7


def test_arguments_of_another_structure(total):
    @sg.function
    def step(batch, scale=None):
        total.assign_add(jnp.sum(batch["x"]))
        return sorted(batch), batch["x"] if scale is None else batch["x"] * scale

    x, two = jnp.ones(2), jnp.float32(2)
    for _ in range(3):
        assert called_often(step, {"x": x})[0] == ["x"]
        assert float(called_often(step, {"x": x}, scale=two)[1][0]) == 2
        assert float(called_often(step, {"x": x}, two)[1][0]) == 2
        assert called_often(step, {"x": x, "y": x})[0] == ["x", "y"]
    assert step.experimental_get_tracing_count() == 4
    assert float(total) == 3 * 4 * 4 * 2


def test_a_keyword_more():
    step = sg.function(lambda x, scale=1: x * scale)
    x, two = jnp.ones(()), jnp.float32(2)
    for _ in range(2):
        assert float(called_often(step, x)) == 1
        assert float(called_often(step, x, scale=two)) == 2


def test_another_context():
    strategies = [STRATEGIES["one"](), STRATEGIES["two"]()]

    @sg.function
    def where(x):
        return sg.distribute.get_strategy(), sg.distribute.in_cross_replica_context()

    x = jnp.ones(())
    for _ in range(2):
        assert called_often(where, x) == (sg.distribute.get_strategy(), False)
        for strategy in strategies:
            with strategy.scope():
                assert called_often(where, x) == (strategy, True)
        assert strategies[0].run(lambda: called_often(where, x)) == (strategies[0], False)
    assert where.experimental_get_tracing_count() == 4


def test_per_replica_arguments():
    strategy = STRATEGIES["two"]()
    rows = sg.function(lambda: strategy.run(lambda: jnp.ones(1)))()
    scalars = sg.function(lambda: strategy.run(lambda: jnp.float32(1)))()
    parts = sg.distribute.PerReplica(rows.values)
    step = sg.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))
    for _ in range(2):
        for value, shape in [(rows, (1,)), (scalars, ()), (parts, (1,))]:
            result = called_often(step, value)
            assert [part.shape for part in result.values] == [shape] * 2
            assert [float(part.sum()) for part in result.values] == [2, 2]
    assert step.experimental_get_tracing_count() == 2


@pytest.mark.parametrize("strategy", ["one", "two"], indirect=True)
def test_arrays_from_another_device(total):
    step = sg.function(lambda x: total.assign_add(x).read_value() * 1)
    called_often(step, jnp.float32(1))
    for device in jax.devices()[2:4]:
        before = float(total)
        called_often(step, jax.device_put(jnp.float32(1), device))
        assert float(total) == before + 4


@pytest.mark.parametrize("strategy", ["one", "two"], indirect=True)
def test_arrays_that_lie_elsewhere_by_chance(total):
    step = sg.function(lambda x: total.assign_add(x).read_value() * 1)
    called_often(step, jnp.float32(1))
    for device in [*jax.devices()[2:4], jax.devices()[0]]:
        before = float(total)
        with jax.default_device(device):
            elsewhere = jnp.float32(1)
        assert not elsewhere.committed
        result = called_often(step, elsewhere)
        assert float(result) == float(total) == before + 4
    assert step.experimental_get_tracing_count() == 1


def test_variables_that_are_only_read(strategy):
    with strategy.scope():
        rate, total = sg.Variable(2.0), sg.Variable(0.0)
    unsharded_constant = sg.Variable(1.0)
    step = sg.function(lambda x: total.assign_add(x * rate + unsharded_constant))
    assert float(called_often(step, jnp.float32(1))) == 12
    rate.assign(3.0)
    unsharded_constant.assign(0.0)
    assert float(called_often(step, jnp.float32(1))) == 24
    assert float(rate) == 3
    assert step.experimental_get_tracing_count() == 1


def test_values_read_between_calls_stay(total):
    step = sg.function(lambda x: total.assign_add(x))
    called_often(step, jnp.float32(1))
    read = []
    for _ in range(3):
        read.append(total.read_value())
        step(jnp.float32(1))
        step(jnp.float32(1))
    assert [float(value) for value in read] == [4, 6, 8]
    assert float(total) == 10


def test_other_settings(total):
    @sg.function
    def step(x):
        total.assign_add(1.0)
        return jnp.log(x), jax.random.normal(jax.random.key(0))

    x = jnp.float32(1)
    _, drawn = called_often(step, x)
    with jax.default_prng_impl("rbg"):
        other = jax.random.normal(jax.random.key(0))
        assert float(step(x)[1]) == pytest.approx(float(other)) != pytest.approx(float(drawn))
    with jax.default_matmul_precision("highest"):
        step(x)
    assert step.experimental_get_tracing_count() == 3
    before = float(total)
    step(x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        step(jnp.float32(-1))
    assert float(total) == before + 1
    sg.config.run_functions_eagerly(True)
    try:
        step(x)
    finally:
        sg.config.run_functions_eagerly(False)
    count = step.experimental_get_tracing_count()
    called_often(step, x)
    assert step.experimental_get_tracing_count() == count
    assert float(total) == before + 6


@pytest.mark.parametrize("make", ["key", "old key"])
def test_another_kind_of_keys(make):
    if make == "key":
        step = sg.function(lambda x: jax.random.normal(jax.random.key(0)) * x)
        x = jnp.float32(1)
        expected = lambda: jax.random.normal(jax.random.key(0))  # noqa: E731
    else:
        step = sg.function(lambda x: jax.lax.cond(x[0] > 0, jax.random.normal, lambda _: 0.0, x))
        x = jnp.asarray([1, 2, 3, 4], jnp.uint32)
        expected = lambda: jax.random.normal(x)  # noqa: E731
    with jax.default_prng_impl("rbg"):
        rbg = float(called_often(step, x))
        assert rbg == pytest.approx(float(expected()))
    with jax.default_prng_impl("unsafe_rbg"):
        assert float(step(x)) == pytest.approx(float(expected()))
    assert step.experimental_get_tracing_count() == 2


def no_slow_calls(step, *args):
    """Calls the function often and checks that each call was made the quick way."""
    called_often(step, *args)
    slow = [calls_of(step, "_find_and_run"), calls_of(step, "_after_miss")]
    results = [step(*args) for _ in range(3)]
    assert slow == [[], []]
    return results


def launches_directly(step):
    """Returns whether the latest fast path launches the program itself."""
    return "use_slow_path" in step._programs.recent[0].run.__code__.co_varnames


def test_variables_of_no_strategy():
    total, factor = sg.Variable(0.0), sg.Variable(2.0)
    step = sg.function(lambda x: total.assign_add(factor * x).read_value() * 1)
    assert [float(r) for r in no_slow_calls(step, jnp.float32(1))] == [10, 12, 14]
    assert launches_directly(step)
    kept = total.value()
    factor.assign(3.0)
    assert float(step(jnp.float32(1))) == 17
    assert float(kept) == 14
    assert float(total) == 17


def test_variables_of_no_strategy_with_arrays_on_several_devices():
    total = sg.Variable(jnp.zeros(4))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    split = jax.device_put(
        jnp.ones(4), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    )
    step = sg.function(lambda x: total.assign_add(x).read_value() * 1)
    for x in [split, jnp.ones(4), split]:
        for _ in range(3):
            step(x)
    assert total.numpy().tolist() == [9.0] * 4
    strategy = STRATEGIES["two"]()
    doubled = sg.function(lambda: strategy.run(lambda: total * 2))()
    assert [part.tolist() for part in strategy.experimental_local_results(doubled)] == [
        [18] * 4
    ] * 2
    with STRATEGIES["one"]().scope():
        assert called_often(step, jnp.ones(4)).tolist() == [13] * 4


def test_plain_variables_in_programs_of_a_strategy_and_outside_by_turns():
    strategy = STRATEGIES["two"]()
    total = sg.Variable(0.0)
    alone = sg.function(lambda x: total.assign_add(x).read_value() * 1)

    @sg.function
    def together(x):
        return strategy.reduce("SUM", strategy.run(lambda: x * total), axis=None)

    x = jnp.float32(1)
    for i in range(6):
        assert float(alone(x)) == i + 1
        assert float(together(x)) == 2 * (i + 1)
    total.assign(0.0)
    assert float(together(x)) == 0
    assert float(alone(x)) == 1


def test_plain_variables_in_a_replica_of_several_devices():
    group = PartitionedGroup((tuple(jax.devices()[:2]),))
    total = sg.Variable(jnp.zeros(4))
    total.accept_from_program(group, group.replicate(np.ones(4, np.float32)), shared=False)
    assert len(total.value().devices()) == 1
    assert total.numpy().tolist() == [1.0] * 4


def test_a_plain_variable_that_a_step_of_a_strategy_reads():
    strategy = STRATEGIES["two"]()
    rate = sg.Variable(2.0)
    with strategy.scope():
        total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
    step = sg.function(lambda x: strategy.run(lambda: total.assign_add(rate * x)))
    no_slow_calls(step, jnp.float32(1))
    assert launches_directly(step)
    assert float(total) == 28
    rate.assign(3.0)
    step(jnp.float32(1))
    assert float(total) == 34


def test_variables_summed_on_read(strategy):
    with strategy.scope():
        count = sg.Variable(
            0.0,
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    step = sg.function(lambda x: strategy.run(lambda: count.assign_add(x).read_value() * 1))
    replicas = strategy.num_replicas_in_sync
    no_slow_calls(step, jnp.float32(1))
    assert launches_directly(step)
    assert float(count.read_value()) == 7 * replicas
    # Eager updates keep the replicas' values apart until a program wants them.
    strategy.run(lambda: count.assign_add(1.0))
    parts = [jnp.asarray(part) for part in strategy.experimental_local_results(count)]
    step(jnp.float32(1))
    assert float(count.read_value()) == 9 * replicas
    assert [float(part) for part in parts] == [8.0] * len(parts)


def test_a_scope_of_another_thread(total):
    step = sg.function(lambda x: sg.distribute.has_strategy())
    x = jnp.ones(())
    assert called_often(step, x) is False
    entered, leave = threading.Event(), threading.Event()

    def inside():
        with STRATEGIES["two"]().scope():
            entered.set()
            assert leave.wait(60)
            return called_often(step, x)

    with concurrent.futures.ThreadPoolExecutor() as another_thread:
        other = another_thread.submit(inside)
        assert entered.wait(60)
        try:
            assert no_slow_calls(step, x) == [False] * 3
        finally:
            leave.set()
        assert other.result(timeout=60) is True
    assert step(x) is False


def test_more_kinds_than_are_remembered():
    total = sg.Variable(0.0)
    step = sg.function(lambda x: total.assign_add(jnp.sum(x)).read_value() * 1)
    arrays = [jnp.ones(n) for n in range(1, 8)]
    for _ in range(5):
        for x in arrays:
            step(x)
    assert float(total) == 5 * sum(range(1, 8))
    assert step.experimental_get_tracing_count() == 7


def test_no_arguments_and_wrong_ones():
    total = sg.Variable(0.0)
    step = sg.function(lambda: total.assign_add(1.0).read_value() * 1)
    called_often(step)
    for args, kwargs in [((1,), {}), ((), {"x": 1}), ((jnp.ones(2),), {})]:
        with pytest.raises(TypeError, match="argument"):
            step(*args, **kwargs)
    assert float(step()) == 5


def test_call_outlives_its_function_only_to_say_so():
    step = sg.function(lambda x: x + 1)
    call = step.__call__
    assert float(call(jnp.float32(1))) == 2
    del step
    with pytest.raises(ReferenceError, match="Keep the function itself"):
        call(jnp.float32(1))


def test_inside_a_transformation(total):
    step = sg.function(lambda x: x * 2)
    add = sg.function(lambda x: total.assign_add(jnp.sum(x)).read_value() * 1)
    x = jnp.ones(2)
    called_often(add, x)
    with pytest.raises(RuntimeError, match="inside a JAX transformation"):
        jax.jit(lambda y: add(x) + y)(x)
    assert float(total) == 8
    called_often(step, x)
    assert jax.jit(lambda y: step(y) + step(x))(x).tolist() == [4, 4]
    assert jax.grad(lambda y: step(y).sum())(x).tolist() == [2, 2]
    assert step(x).tolist() == [2, 2]


def test_a_failed_run_takes_back_what_a_fast_path_did():
    strategy = STRATEGIES["one"]()
    with strategy.scope():
        total = sg.Variable(0.0)
    step = sg.function(lambda x: total.assign_add(x))
    x = jnp.float32(1)
    for _ in range(4):
        strategy.run(lambda: step(x))
    assert step._programs.recent

    def fail():
        step(x)
        raise KeyError

    with pytest.raises(KeyError):
        strategy.run(fail)
    assert float(total) == 4


def test_a_dropped_function_frees_its_variables_at_once(strategy):
    with strategy.scope():
        total = sg.Variable(0.0)
    step = sg.function(lambda x, total=total: total.assign_add(x).read_value() * 1)
    called_often(step, jnp.float32(1))
    gc.collect()
    gc.disable()
    try:
        held = weakref.ref(step._programs.recent[0].run)
        del step
        assert held() is None
    finally:
        gc.enable()


def test_values_from_a_function_hit(strategy, total):
    @sg.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(lambda x: x + total, args=(x,)), axis=None)

    def value(i):
        return strategy.experimental_distribute_values_from_function(
            lambda context: np.float32(i + context.replica_id_in_sync_group)
        )

    if not isinstance(value(0), sg.distribute.DistributedValues):
        pytest.skip("one replica's value is a plain array")
    for i in range(4):
        step(value(i))
    missed = calls_of(step, "_find_and_run")
    count = strategy.num_replicas_in_sync
    for i in range(4):
        assert float(step(value(i))) == count * i + count * (count - 1) // 2
    assert not missed


@pytest.mark.parametrize("as_argument", [True, False])
def test_draws_hit(strategy, total, as_argument):
    rows = np.arange(17, dtype=np.float32)
    dataset = sg.data.Dataset.from_tensor_slices(rows).batch(2)
    held = iter(strategy.experimental_distribute_dataset(dataset))

    @sg.function
    def step(*iterators):
        x = next(iterators[0] if iterators else held)
        total.assign_add(1.0)
        return strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)

    arguments = (held,) if as_argument else ()
    assert [float(step(*arguments)) for _ in range(3)] == [1, 5, 9]
    missed = calls_of(step, "_find_and_run")
    assert [float(step(*arguments)) for _ in range(5)] == [13, 17, 21, 25, 29]
    assert not missed
    assert float(step(*arguments)) == 16  # a smaller batch
    assert missed
    for _ in range(2):
        with pytest.raises(sg.errors.OutOfRangeError):
            step(*arguments)
    assert float(total) == 9


def test_a_draw_is_put_back_when_the_call_fails(strategy):
    rows = np.arange(12, dtype=np.float32)
    dataset = sg.data.Dataset.from_tensor_slices(rows).batch(2)
    held = iter(strategy.experimental_distribute_dataset(dataset))

    def check(x):
        if fails:
            raise ValueError("told to")
        return x

    @sg.function
    def step(iterator):
        total = strategy.reduce("SUM", strategy.run(jnp.sum, args=(next(iterator),)), axis=None)
        return jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), total)

    fails = False
    assert [float(step(held)) for _ in range(3)] == [1, 5, 9]
    fails = True
    with pytest.raises(Exception, match="told to"):
        step(held)
    fails = False
    assert float(step(held)) == 13


def calls_of(step, name):
    """Returns a list that grows whenever the method is called."""
    calls = []
    method = getattr(step, name)

    def noted(*args, **kwargs):
        calls.append(args)
        return method(*args, **kwargs)

    setattr(step, name, noted)
    return calls
