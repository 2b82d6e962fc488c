import functools
import gc
import logging
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")


def make(strategy, *args, **kwargs):
    with strategy.scope():
        return sg.Variable(*args, **kwargs)


def test_python_runs_once_for_each_signature(strategy):
    traces = []

    @sg.function
    def step(x, flag=True, **rest):
        traces.append(flag)
        return strategy.run(lambda x: x * 2, args=(x,))

    for _ in range(3):
        step(jnp.ones(2))
    assert len(traces) == 1
    step(jnp.ones(3))
    step(jnp.ones(3, jnp.int32))
    step(jnp.ones(2), flag=False)
    step(jnp.ones(2), extra={"a": jnp.ones(1)})
    assert len(traces) == 5
    step(np.ones(3, np.float32))
    step(jnp.ones(2))
    step(jnp.ones(3))
    assert len(traces) == 5
    assert step.experimental_get_tracing_count() == 5


def test_alternating_shapes_give_the_right_results(strategy):
    v = make(strategy, 0.0)

    @sg.function
    def step(x):
        v.assign_add(jnp.sum(x))
        return x * 2

    for size in [1, 2, 1, 3, 2, 1]:
        np.testing.assert_array_equal(step(jnp.ones(size)), np.full(size, 2))
    assert float(v) == 10
    assert step.experimental_get_tracing_count() == 3


def test_static_arguments(strategy):
    @sg.function
    def step(x, mode, count, options):
        for _ in range(count):
            x = x + 1
        return (x, mode, options["k"])

    for expected, count in [(4, 3), (2, 1), (4, 3)]:
        x, mode, k = step(jnp.float32(1), "train", count, {"k": None})
        assert (float(x), mode, k) == (expected, "train", None)
    assert step.experimental_get_tracing_count() == 2
    unhashable = bytearray(b"x")
    assert float(step(jnp.float32(1), unhashable, 1, {"k": 1})[0]) == 2


def test_numbers_that_change_are_warned_about(caplog):
    @sg.function
    def step(x):
        return jnp.ones(()) * x

    with caplog.at_level(logging.WARNING, logger="stratagem"):
        for i in range(8):
            step(i)
    assert len(caplog.records) == 1
    assert "Pass numbers that change as arrays" in caplog.text
    assert float(step(-0.0)) == 0
    assert np.signbit(np.asarray(step(-0.0))) != np.signbit(np.asarray(step(0.0)))
    count = step.experimental_get_tracing_count()
    step(float("nan"))
    step(float("nan"))
    assert step.experimental_get_tracing_count() == count + 1


def test_shapes_that_change_are_warned_about(caplog):
    step = sg.function(lambda x: x + 1)
    for i in range(9):
        step(np.ones(i, np.float32))
    assert not caplog.records
    for i in range(9, 14):
        step(np.ones(i, np.float32))
    [record] = caplog.records
    assert "compiled 10 times for different shapes" in record.getMessage()


def test_variables_as_arguments(strategy):
    v, w = make(strategy, 1.0), make(strategy, 10.0)

    @sg.function
    def step(variable, x):
        variable.assign_add(x)

    for variable in (v, w, v):
        step(variable, jnp.float32(1))
    assert (float(v), float(w)) == (3, 11)
    assert step.experimental_get_tracing_count() == 2


def test_methods(strategy):
    class Model:
        def __init__(self, start):
            self.v = make(strategy, start)

        @sg.function
        def step(self, x):
            self.v.assign_add(x)
            return self.v * 1

    a, b = Model(1.0), Model(10.0)
    for _ in range(2):
        a.step(jnp.float32(1))
        b.step(jnp.float32(1))
    assert (float(a.v), float(b.v)) == (3, 12)
    assert Model.step.experimental_get_tracing_count() == 2
    reference = weakref.ref(a)
    del a
    gc.collect()
    assert reference() is None


def test_a_function_does_not_keep_variables_that_it_does_not_use(strategy):
    bystander = make(strategy, np.zeros(3))
    used = make(strategy, 1.0)
    step = sg.function(lambda: used.assign_add(1.0))
    step()
    reference = weakref.ref(bystander)
    del bystander
    gc.collect()
    assert reference() is None
    step()
    assert float(used) == 3


def test_functions_inside_functions(strategy, execute):
    v = make(strategy, 0.0, aggregation=sg.VariableAggregation.SUM)

    @sg.function
    def inner(x):
        v.assign_add(x)
        return x + v

    def outer():
        return strategy.run(lambda: inner(jnp.float32(1)))

    result = execute(outer)
    n = strategy.num_replicas_in_sync
    assert float(strategy.experimental_local_results(result)[0]) == 1 + n
    assert float(v) == n


def test_run_eagerly(strategy):
    seen = []

    @sg.function
    def step(x):
        seen.append(type(x).__name__)
        assert not isinstance(x, jax.core.Tracer)
        return x * 2

    assert not sg.config.functions_run_eagerly()
    sg.config.run_functions_eagerly(True)
    try:
        assert sg.config.functions_run_eagerly()
        for _ in range(2):
            assert float(step(jnp.float32(2))) == 4
            strategy.run(step, args=(jnp.float32(2),))
    finally:
        sg.config.run_functions_eagerly(False)
    assert len(seen) == 2 + 2 * strategy.replica_group.local_size
    assert step.experimental_get_tracing_count() == 0


def test_context_is_part_of_the_signature(many):
    @sg.function
    def where():
        return (
            sg.distribute.has_strategy(),
            sg.distribute.in_cross_replica_context(),
            sg.distribute.get_strategy() is many,
        )

    assert where() == (False, False, False)
    with many.scope():
        assert where() == (True, True, True)
    assert where() == (False, False, False)
    assert many.run(where) == (True, False, True)


def test_results_of_every_kind(strategy):
    v = make(strategy, 2.0)
    array = jnp.arange(3)

    @sg.function
    def step(x):
        return {"static": "s", "variable": v, "captured": array, "input": x, "read": v.read_value()}

    for _ in range(2):
        result = step(jnp.ones(2))
        assert result["static"] == "s"
        assert result["variable"] is v
        np.testing.assert_array_equal(result["captured"], array)
        np.testing.assert_array_equal(result["input"], [1, 1])
        assert float(result["read"]) == 2


class Slotted:
    __slots__ = ("inner", "other")

    def __init__(self, inner):
        self.inner = inner


@pytest.mark.parametrize(
    ("make_object", "where"),
    [
        (lambda x: types.SimpleNamespace(a=x), r"SimpleNamespace\.a,"),
        (lambda x: [1, Slotted({"k": (0, x)})], r"Slotted\.inner\['k'\]\[1\],"),
        (lambda x: Slotted(types.SimpleNamespace(a=x)), r"Slotted\.inner\.a,"),
        (lambda x: lambda: x, r"function\.x,"),
    ],
    ids=["attribute", "slot", "attribute of an attribute", "closure"],
)
def test_arrays_in_objects_of_the_users_are_refused(strategy, make_object, where):
    """Returned from the replicas, and from the function itself: also with per-replica values inside."""
    if strategy.num_replicas_in_sync > 1:
        with pytest.raises(TypeError, match=where):
            sg.function(lambda: (strategy.run(lambda: make_object(jnp.ones(2))), 1)[1])()
    with pytest.raises(TypeError, match=where):
        sg.function(lambda: strategy.run(lambda: make_object(jnp.ones(2))))()
    with pytest.raises(TypeError, match=where.replace(",", "")):
        sg.function(lambda: make_object(strategy.run(lambda: jnp.ones(2))))()


def test_objects_of_the_users_without_arrays_are_returned(strategy):
    static = types.SimpleNamespace(a=1, b=np.ones(2))
    around = types.SimpleNamespace()

    @sg.function
    def step(x):
        around.x = x
        assert strategy.run(lambda: around) is around
        del around.x
        return strategy.run(lambda: static), around

    assert step(jnp.ones(2)) == (static, around)


@one_process("needs a device that no replica has")
def test_arrays_committed_to_another_device(strategy):
    elsewhere = jax.device_put(jnp.ones(2), jax.devices()[7])
    v = make(strategy, [1.0, 1.0])

    @sg.function
    def step(x):
        return strategy.run(lambda x: x * v, args=(x,))

    for _ in range(2):
        np.testing.assert_array_equal(
            strategy.experimental_local_results(step(elsewhere))[0], [1, 1]
        )
        np.testing.assert_array_equal(
            strategy.experimental_local_results(strategy.run(lambda x: x * v, args=(elsewhere,)))[
                0
            ],
            [1, 1],
        )


def test_typed_random_keys(strategy, execute):
    def call(key):
        return strategy.run(lambda key: jax.random.normal(key, (2,)), args=(key,))

    result = execute(call, jax.random.key(0))
    expected = jax.random.normal(jax.random.key(0), (2,))
    for part in strategy.experimental_local_results(result):
        np.testing.assert_allclose(part, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="numbers or booleans"):
        make(strategy, jax.random.key(0))


def test_a_captured_per_replica_value(many):
    captured = many.experimental_distribute_values_from_function(
        lambda ctx: np.full(2, ctx.replica_id_in_sync_group, np.float32)
    )
    result = sg.function(lambda: many.run(lambda x: x + 1, args=(captured,)))()
    assert [float(v[0]) for v in components(many, result)] == [
        i + 1 for i in range(many.num_replicas_in_sync)
    ]
    total = sg.function(lambda: many.reduce("SUM", captured, axis=None))()
    assert float(total[0]) == sum(range(many.num_replicas_in_sync))


def test_threads_share_functions_and_variables(strategy):
    v = make(strategy, 0.0)
    step = sg.function(lambda: v.assign_add(1.0).read_value())
    step()
    errors = []

    def work():
        try:
            for _ in range(50):
                float(step())
                float(v)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert float(v) == 201


def test_decorator_keeps_the_functions_identity():
    @sg.function
    def step(x):
        """Doubles."""
        return x * 2

    assert step.__name__ == "step"
    assert step.__doc__ == "Doubles."
    assert "step" in repr(step)
    assert step.python_function(3) == 6
    assert float(sg.function(functools.partial(lambda a, b: a + b, 1))(jnp.float32(2))) == 3
    assert isinstance(sg.function()(lambda: 1), type(step))


def test_a_variable_in_place_of_an_array(strategy):
    @sg.function
    def step(x):
        if isinstance(x, sg.Variable):
            x.assign_add(1.0)
        return x * 2

    v = make(strategy, 1.0)
    for _ in range(3):
        step(jnp.float32(1))
    step(v)
    assert float(v) == 2


def test_methods_of_equal_instances(strategy):
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class Model:
        name: str

        def variable(self):
            return holder[id(self)]

        @sg.function
        def step(self):
            self.variable().assign_add(1.0)

    a, b = Model("m"), Model("m")
    holder = {id(a): make(strategy, 0.0), id(b): make(strategy, 0.0)}
    for _ in range(2):
        a.step()
        b.step()
    assert [float(v) for v in holder.values()] == [2, 2]


def test_tree_map_of_a_per_replica_value_is_by_component(many):
    eager = many.run(lambda: jnp.ones(3))
    compiled = sg.function(lambda: many.run(lambda: jnp.ones(3)))()
    for value in (eager, compiled):
        sums = jax.tree.map(lambda z: z.sum(), value)
        assert [float(s) for s in components(many, sums)] == [3] * many.num_replicas_in_sync
        sg.function(lambda x: many.run(lambda x: x, args=(x,)))(value)
        again = jax.tree.map(lambda z: z.sum(), value)
        assert [float(s) for s in components(many, again)] == [3] * many.num_replicas_in_sync
        jax.block_until_ready(value)


@one_process("the components of one worker do not tell the replicas of the others")
def test_a_per_replica_value_without_a_group_is_compiled(many):
    if many.replica_group.mesh.size > many.num_replicas_in_sync:
        pytest.skip("the components do not tell the replicas' other logical devices")
    parts = many.run(lambda: jnp.ones(2)).values
    step = sg.function(lambda x: many.run(lambda x: x + 1, args=(x,)))
    step(sg.distribute.PerReplica(parts))
    assert step.experimental_get_tracing_count() == 1
