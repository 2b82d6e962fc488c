import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import IN_WORKERS, components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("variables")

Aggregation = sg.VariableAggregation
Synchronization = sg.VariableSynchronization
ON_READ = Synchronization.ON_READ


def replica_value():
    """1 in the first replica, 2 in the second, and so on."""
    return sg.distribute.get_replica_context().replica_id_in_sync_group + jnp.float32(1)


def make(strategy, *args, **kwargs):
    with strategy.scope():
        return sg.Variable(*args, **kwargs)


def copies(strategy, variable):
    return [float(c) for c in components(strategy, variable)]


# --- the table of synchronization and aggregation -------------------------------------------------


@pytest.mark.spread("aggregation", "method")
@pytest.mark.layout
@pytest.mark.about("collectives")
@pytest.mark.parametrize(
    ("aggregation", "combine"),
    [
        (Aggregation.SUM, sum),
        (Aggregation.MEAN, lambda xs: sum(xs) / len(xs)),
        (Aggregation.ONLY_FIRST_REPLICA, lambda xs: xs[0]),
    ],
)
@pytest.mark.parametrize("method", ["assign_add", "assign_sub", "assign"])
def test_updates_in_replica_context_are_aggregated(many, execute, aggregation, combine, method):
    v = make(many, 10.0, aggregation=aggregation)
    result = execute(lambda: many.run(lambda: getattr(v, method)(replica_value())))
    assert result is v
    delta = combine([i + 1 for i in range(many.num_replicas_in_sync)])
    expected = {"assign_add": 10 + delta, "assign_sub": 10 - delta, "assign": delta}[method]
    assert float(v) == pytest.approx(expected)
    assert [float(c) for c in v.values] == [pytest.approx(expected)] * len(v.values)


def test_updates_without_aggregation_raise_and_name_the_fix(many, execute):
    v = make(many, 10.0)
    with pytest.raises(ValueError, match=r"aggregation=VariableAggregation\.SUM"):
        execute(lambda: many.run(lambda: v.assign_add(replica_value())))
    assert float(v) == 10


@pytest.mark.spread("aggregation")
@pytest.mark.layout
@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_sync_on_read_updates_stay_in_their_replica(many, execute, aggregation):
    v = make(many, 10.0, synchronization=ON_READ, aggregation=aggregation)
    execute(lambda: many.run(lambda: v.assign_add(replica_value())))
    expected = [11.0 + i for i in range(many.num_replicas_in_sync)]
    assert copies(many, v) == expected
    inside = execute(lambda: many.run(lambda: v.read_value()))
    assert copies(many, inside) == expected
    if aggregation is Aggregation.NONE:
        with pytest.raises(ValueError, match="aggregation NONE"):
            execute(lambda: v.read_value() + 0)
        return
    combined = {
        Aggregation.SUM: sum(expected),
        Aggregation.MEAN: sum(expected) / len(expected),
        Aggregation.ONLY_FIRST_REPLICA: expected[0],
    }[aggregation]
    assert float(execute(lambda: v.read_value() + 0)) == pytest.approx(combined)
    assert float(v) == pytest.approx(combined)


@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
@pytest.mark.parametrize(
    "aggregation", [Aggregation.SUM, Aggregation.MEAN, Aggregation.ONLY_FIRST_REPLICA]
)
def test_sync_on_read_assigned_from_outside(many, execute, aggregation):
    n = many.num_replicas_in_sync
    v = make(many, 0.0, synchronization=ON_READ, aggregation=aggregation)
    execute(lambda: v.assign(4.0))
    share = float(np.float32(4 / n)) if aggregation is Aggregation.SUM else 4
    assert copies(many, v) == [share] * n
    assert float(v) == pytest.approx(4)
    if aggregation is Aggregation.SUM:
        for method in (v.assign_add, v.assign_sub):
            with pytest.raises(ValueError, match="ambiguous"):
                execute(lambda method=method: method(1.0))
    else:
        execute(lambda: v.assign_add(1.0))
        assert copies(many, v) == [5] * n


def test_integer_sum_assigned_from_outside_is_exact(many, execute):
    v = make(many, 0, synchronization=ON_READ, aggregation=Aggregation.SUM)
    execute(lambda: v.assign(7))
    assert int(v) == 7
    execute(lambda: v.assign(-7))
    assert int(v) == -7


@one_process("makes a strategy on devices of its own")
def test_sync_on_read_of_one_replica(execute):
    strategy = sg.distribute.OneDeviceStrategy("CPU:1")
    v = make(strategy, [1.0, 2.0], synchronization=ON_READ, aggregation=Aggregation.SUM)
    s = make(strategy, 1.0, synchronization=ON_READ, aggregation=Aggregation.SUM)
    execute(lambda: strategy.run(lambda: (v.assign_add(v * 2), s.assign_add(1.0))))
    np.testing.assert_array_equal(v.numpy(), [3, 6])
    assert float(s) == 2


def test_rules_at_creation(many):
    with pytest.raises(ValueError, match="MEAN needs a floating"):
        make(many, 1, aggregation=Aggregation.MEAN)
    with pytest.raises(ValueError, match="NONE is not supported"):
        make(many, 1.0, synchronization=Synchronization.NONE)
    assert not make(many, 1.0, synchronization=ON_READ).trainable
    assert make(many, 1.0, synchronization=ON_READ, trainable=True).trainable
    assert make(many, 1.0).trainable
    assert not make(many, 1.0, trainable=False).trainable


def test_python_numbers_in_replica_context(many, execute):
    total = make(many, 10.0, aggregation=Aggregation.SUM)
    with pytest.raises(ValueError, match="Python number"):
        execute(lambda: many.run(lambda: total.assign_add(1.0)))
    mean = make(many, 10.0, aggregation=Aggregation.MEAN)
    first = make(many, 10.0, aggregation=Aggregation.ONLY_FIRST_REPLICA)
    execute(lambda: many.run(lambda: (mean.assign_add(1.0), first.assign_sub(1.0))))
    assert float(mean) == 11
    assert float(first) == 9


@pytest.mark.layout
def test_a_captured_array_counts_once_for_each_replica(many, execute):
    captured = jnp.float32(2)
    v = make(many, 0.0, aggregation=Aggregation.SUM)
    execute(lambda: many.run(lambda: v.assign_add(captured)))
    assert float(v) == 2 * many.num_replicas_in_sync


@one_process("a plain variable belongs to its worker, whose replicas update it")
def test_plain_variables_are_updated_in_turn(many, execute):
    n = many.num_replicas_in_sync
    added, assigned, mixed = sg.Variable(10.0), sg.Variable(0.0), sg.Variable(1.0)

    def step():
        added.assign_add(replica_value())
        assigned.assign(replica_value())
        mixed.assign(replica_value())
        mixed.assign_add(replica_value() * 10)

    execute(lambda: many.run(step))
    assert float(added) == 10 + sum(range(1, n + 1))
    assert float(assigned) == n
    assert float(mixed) == 11 * n


@one_process("a plain variable belongs to its worker, whose replicas update it")
def test_plain_variable_read_where_turns_would_matter(many):
    v = sg.Variable(1.0)

    def step():
        v.assign_add(replica_value())
        return v + 0

    eager = many.run(step)
    assert [float(x) for x in eager.values] == list(
        np.cumsum([1.0, *range(1, many.num_replicas_in_sync + 1)])[1:]
    )
    with pytest.raises(ValueError, match="in turn"):
        sg.function(lambda: many.run(step))()


@one_process("a plain variable belongs to its worker, whose replicas update it")
def test_plain_variable_is_readable_after_the_replicas_met(many, execute):
    v = sg.Variable(0.0)

    def step():
        v.assign_add(replica_value())
        sg.distribute.get_replica_context().all_reduce("SUM", 1.0)
        return v + 0

    total = sum(range(1, many.num_replicas_in_sync + 1))
    result = execute(lambda: many.run(step))
    assert [float(x) for x in result.values] == [total] * many.num_replicas_in_sync


def test_a_plain_variable_works_with_every_strategy(strategy, execute):
    v = sg.Variable([1.0, 2.0])
    result = execute(lambda: strategy.run(lambda: v * 2))
    np.testing.assert_array_equal(strategy.experimental_local_results(result)[0], [2, 4])
    execute(lambda: v.assign_add([1.0, 1.0]))
    np.testing.assert_array_equal(v.numpy(), [2, 3])
    assert len(v.read_value().devices()) == 1


# --- updates from outside ---------------------------------------------------------------------------


def test_updates_in_cross_replica_context(strategy, execute):
    v = make(strategy, [1.0, 2.0])

    def update():
        v.assign_add([1.0, 1.0]).assign_sub([0.5, 0.5])
        return v.read_value()

    np.testing.assert_array_equal(execute(update), [1.5, 2.5])
    np.testing.assert_array_equal(v.numpy(), [1.5, 2.5])
    for copy in strategy.experimental_local_results(v):
        np.testing.assert_array_equal(np.asarray(copy), [1.5, 2.5])


@pytest.mark.about("collectives")
def test_a_per_replica_value_assigned_from_outside_is_aggregated(many, execute):
    values = many.run(replica_value)
    v = make(many, 0.0, aggregation=Aggregation.SUM)
    execute(lambda x: v.assign(x), values)
    assert float(v) == sum(range(1, many.num_replicas_in_sync + 1))
    without = make(many, 0.0)
    with pytest.raises(ValueError, match="needs an aggregation"):
        execute(lambda x: without.assign(x), values)


def test_reads_and_writes_in_one_step_see_each_other(strategy, execute):
    v = make(strategy, 1.0, aggregation=Aggregation.MEAN)

    def step():
        before = v + 0
        v.assign_add(jnp.float32(2))
        middle = v * 1
        v.assign(middle * 10)
        return before, middle, v.read_value()

    before, middle, after = execute(lambda: strategy.run(step))
    first = [float(strategy.experimental_local_results(x)[0]) for x in (before, middle, after)]
    assert first == [1, 3, 30]
    assert float(v) == 30


# --- scatter ----------------------------------------------------------------------------------------

SCATTERS = {
    "scatter_add": [11.0, 20.0, 30.0 + 2],
    "scatter_sub": [9.0, 20.0, 30.0 - 2],
    "scatter_mul": [10.0, 20.0, 60.0],
    "scatter_div": [10.0, 20.0, 15.0],
    "scatter_min": [1.0, 20.0, 2.0],
    "scatter_max": [10.0, 20.0, 30.0],
    "scatter_update": [1.0, 20.0, 2.0],
}


@pytest.mark.spread("method")
@pytest.mark.parametrize("method", SCATTERS)
def test_scatter_from_outside(strategy, execute, method):
    v = make(strategy, [10.0, 20.0, 30.0])
    slices = sg.IndexedSlices(jnp.array([1.0, 2.0]), jnp.array([0, 2]))
    execute(lambda: getattr(v, method)(slices))
    np.testing.assert_allclose(v.numpy(), SCATTERS[method])


@pytest.mark.spread("method")
@pytest.mark.parametrize("method", SCATTERS)
def test_scatter_in_replica_context_of_the_first(many, execute, method):
    v = make(many, [10.0, 20.0, 30.0], aggregation=Aggregation.ONLY_FIRST_REPLICA)

    def step():
        slices = sg.IndexedSlices(jnp.array([1.0, 2.0]) * replica_value(), jnp.array([0, 2]))
        getattr(v, method)(slices)

    execute(lambda: many.run(step))
    np.testing.assert_allclose(v.numpy(), SCATTERS[method], rtol=1e-6)


@pytest.mark.spread("method", "aggregation")
@pytest.mark.about("collectives")
@pytest.mark.parametrize("method", ["scatter_add", "scatter_sub", "scatter_mul", "scatter_div"])
@pytest.mark.parametrize("aggregation", [Aggregation.SUM, Aggregation.MEAN])
def test_scatter_in_replica_context_applies_all_rows(many, execute, method, aggregation):
    """Each replica's rows are applied, for MEAN divided by the number of replicas."""
    n = many.num_replicas_in_sync
    v = make(many, np.full(n + 1, 12.0, np.float32), aggregation=aggregation)

    def step():
        i = sg.distribute.get_replica_context().replica_id_in_sync_group
        rows = jnp.stack([replica_value() + 1, replica_value() + 1])
        getattr(v, method)(sg.IndexedSlices(rows, jnp.stack([0, i + 1])))

    execute(lambda: many.run(step))
    change = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[method[-3:]]
    expected = np.full(n + 1, 12.0)
    for i in range(n):
        operand = (i + 2) / (n if aggregation is Aggregation.MEAN else 1)
        for row in (0, i + 1):
            expected[row] = change(expected[row], operand)
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-5)


@pytest.mark.spread("method", "aggregation")
@pytest.mark.parametrize("method", ["scatter_min", "scatter_max", "scatter_update"])
@pytest.mark.parametrize("aggregation", [Aggregation.SUM, Aggregation.MEAN])
def test_scatters_that_cannot_be_aggregated(many, execute, method, aggregation):
    v = make(many, [1.0, 2.0], aggregation=aggregation)
    slices = sg.IndexedSlices(jnp.ones(1), jnp.array([1]))
    with pytest.raises(NotImplementedError, match="ONLY_FIRST_REPLICA") as raised:
        execute(lambda: many.run(lambda: getattr(v, method)(slices)))
    assert isinstance(raised.value, ValueError)
    if isinstance(v, sg.distribute.DistributedValues) and len(v.values) > 1:
        with pytest.raises(NotImplementedError, match="mirrored"):
            execute(lambda: getattr(v, method)(slices))
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])


def test_scatter_without_aggregation_raises(many, execute):
    v = make(many, [1.0, 2.0])
    slices = sg.IndexedSlices(jnp.ones(1), jnp.array([0]))
    with pytest.raises(ValueError, match="needs an aggregation"):
        execute(lambda: many.run(lambda: v.scatter_add(slices)))


def test_scatter_of_sync_on_read_stays_in_its_replica(many, execute):
    v = make(many, [0.0, 0.0], synchronization=ON_READ, aggregation=Aggregation.SUM)

    def step():
        v.scatter_add(sg.IndexedSlices(replica_value()[None], jnp.array([1])))

    execute(lambda: many.run(step))
    np.testing.assert_array_equal(v.numpy(), [0, sum(range(1, many.num_replicas_in_sync + 1))])


# --- what it is -------------------------------------------------------------------------------------


def test_attributes(placed_strategy):
    v = make(placed_strategy, np.arange(6).reshape(2, 3), name="weights", dtype=jnp.float32)
    assert v.name == "weights:0"
    assert v.shape == (2, 3)
    assert isinstance(v.shape, sg.TensorShape)
    assert v.dtype == sg.float32
    assert (v.ndim, v.size, len(v)) == (2, 6, 2)
    assert set(v.device.split(", ")) <= set(placed_strategy.extended.parameter_devices)
    assert isinstance(v, sg.Variable)
    assert placed_strategy.extended.variable_created_in_scope(v)
    assert not placed_strategy.extended.variable_created_in_scope(sg.Variable(1.0))
    assert {v.ref(): 1}[v.ref()] == 1
    assert v.ref().deref() is v
    with pytest.raises(TypeError):
        hash(v)


def test_arguments_at_creation(strategy):
    def constraint(x):
        return jnp.clip(x, 0, 1)

    v = make(strategy, [5.0, 6.0], aggregation=None, constraint=constraint, shape=[2])
    assert v.aggregation is Aggregation.NONE
    assert v.constraint is constraint
    v.assign([7.0, 8.0])
    np.testing.assert_array_equal(v.numpy(), [7.0, 8.0])  # that is for optimizers to apply
    assert v.get_shape() == v.shape == sg.TensorShape([2])
    assert make(strategy, 1.0).constraint is None
    assert make(strategy, lambda: np.ones((3, 2)), shape=sg.TensorShape([3, 2])).shape == (3, 2)
    with pytest.raises(ValueError, match="constraint must be a function"):
        make(strategy, 1.0, constraint=3)
    with pytest.raises(ValueError, match="must have the declared shape"):
        make(strategy, [1.0, 2.0], shape=[3])
    for shape in ([None], sg.TensorShape(None)):
        with pytest.raises(NotImplementedError, match="must be fully defined"):
            make(strategy, [1.0, 2.0], shape=shape)
    with pytest.raises(ValueError, match="bogus"):
        make(strategy, 1.0, aggregation="bogus")
    with pytest.raises(TypeError):
        make(strategy, 1.0, True, "a name where TensorFlow has validate_shape")


def test_the_strategy_of_a_variable(placed_strategy):
    for synchronization in (Synchronization.AUTO, ON_READ):
        v = make(placed_strategy, 1.0, synchronization=synchronization)
        assert v.distribute_strategy is placed_strategy
        default = sg.distribute.get_strategy()
        assert not default.extended.variable_created_in_scope(v)
    plain = sg.Variable(1.0)
    assert not hasattr(plain, "distribute_strategy")
    assert default.extended.variable_created_in_scope(plain)


def test_a_plain_variable_has_nothing_to_aggregate():
    v = sg.Variable(1, aggregation=Aggregation.MEAN, synchronization=Synchronization.NONE)
    assert (v.aggregation, v.synchronization) == (Aggregation.MEAN, Synchronization.NONE)


def test_arguments_of_updates(strategy, execute):
    v = make(strategy, [1.0, 2.0])
    value = np.ones(2, np.float32)
    rows = sg.IndexedSlices(value[:1], np.array([1]))

    def step():
        assert v.assign(value, use_locking=True, name="set", read_value=True) is v
        assert v.assign(value, False, "set", False) is None
        assert v.assign_add(delta=value, use_locking=False, name="add") is v
        assert v.assign_add(value, True, None, False) is None
        assert (
            v.assign_sub(delta=value, use_locking=False, name="subtract", read_value=False) is None
        )
        for method in ("scatter_add", "scatter_sub", "scatter_mul", "scatter_div", "scatter_max"):
            assert getattr(v, method)(rows, use_locking=True, name=method) is v
        v.scatter_min(sparse_delta=rows, name="least")
        v.scatter_update(rows, False, "update")
        v.assign(value=value + 1)

    execute(step)
    np.testing.assert_array_equal(v.numpy(), [2.0, 2.0])


def test_rows_are_read(strategy, execute):
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    v = make(strategy, rows)
    indices = np.array([[3], [0]])
    np.testing.assert_array_equal(execute(v.sparse_read, indices), rows[indices])
    np.testing.assert_array_equal(execute(lambda i: v[i], indices), rows[indices])
    for read in strategy.experimental_local_results(strategy.run(v.sparse_read, args=(indices,))):
        np.testing.assert_array_equal(read, rows[indices])


def test_operators_and_conversions(strategy):
    v = make(strategy, [1.0, 2.0, 4.0])
    a = np.array([1.0, 2.0, 4.0], np.float32)
    pairs = [
        (v + 1, a + 1), (1 - v, 1 - a), (v * v, a * a), (2 / v, 2 / a), (v**2, a**2), (v // 2, a // 2),
        (v % 2, a % 2), (-v, -a), (abs(v), a), (v > 1, a > 1), (v == 2, a == 2), (v != 2, a != 2),
        (v @ v, a @ a), (v[1:], a[1:]), (np.ones(3, np.float32) + v, a + 1), (jnp.ones(3) + v, a + 1),
        (jnp.sum(v), a.sum()), (jnp.dot(v, v), a @ a), (jnp.where(v > 1, v, 0), np.where(a > 1, a, 0)),
        (jax.nn.relu(v), a), (jnp.stack([v, v]), np.stack([a, a])), (jnp.asarray(v), a),
        (np.asarray(v), a), (v.numpy(), a), (jax.tree.map(lambda x: x * 2, [v])[0], a * 2),
        (list(v)[2], a[2]), (v.value(), a), (jax.vmap(lambda x: x + 1)(v), a + 1),
    ]  # fmt: skip
    for index, (ours, theirs) in enumerate(pairs):
        np.testing.assert_allclose(np.asarray(ours), theirs, err_msg=str(index))
    s = make(strategy, 3.0)
    assert (float(s), int(s), bool(s), f"{s:.1f}") == (3.0, 3, True, "3.0")
    assert [10, 20][make(strategy, 1)] == 20
    with pytest.raises(RuntimeError, match="assign_add"):
        s += 1


def test_gradient_with_respect_to_a_variable_passed_as_an_argument(strategy):
    v = make(strategy, [1.0, 2.0])
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(x**2))(v), [2, 4])


def test_wrong_operands(strategy, execute):
    v = make(strategy, [1.0, 2.0], aggregation=Aggregation.MEAN)
    i = make(strategy, 1)
    slices = sg.IndexedSlices(jnp.ones(1), jnp.array([0]))
    cases = [
        (lambda: v.assign([1.0]), "needs shape"),
        (lambda: i.assign(1.5), "lose information"),
        (lambda: v.assign(slices), "takes an array"),
        (lambda: v.scatter_add(jnp.ones(1)), "takes an IndexedSlices"),
        (lambda: v.scatter_add(sg.IndexedSlices(jnp.ones(2), jnp.array([0]))), "vector of n"),
    ]
    for case, message in cases:
        with pytest.raises(ValueError, match=message) as raised:
            execute(case)
        assert isinstance(raised.value, TypeError) is (
            message not in ("needs shape", "vector of n")
        )
    with pytest.raises(ValueError, match=r"indices in \[0, 2\)"):
        v.scatter_add(sg.IndexedSlices(jnp.ones(1), jnp.array([2])))
    np.testing.assert_array_equal(v.numpy(), [1, 2])


def test_initial_values(strategy):
    base = make(strategy, 2.0)
    assert float(make(strategy, base)) == 2
    assert float(make(strategy, lambda: jnp.float32(5))) == 5
    assert make(strategy, [1, 2], dtype=jnp.float32).dtype == jnp.float32
    assert make(strategy, np.float64(1)).dtype == jnp.float32
    with pytest.raises(ValueError, match="initial_value"):
        make(strategy, None)
    with pytest.raises(ValueError, match="numbers or booleans"):
        make(strategy, np.array(["a"]))


def test_a_variable_does_not_share_its_array_with_anyone(strategy):
    """Compiled steps give the array away; nobody else may lose theirs."""
    given = jnp.ones(4)
    v = make(strategy, given, aggregation=Aggregation.MEAN)
    other = make(strategy, v)

    @sg.function
    def step(x):
        strategy.run(lambda: v.assign_add(jnp.ones(4)))
        return v.read_value(), v * 1

    held = [v.read_value()]
    for _ in range(3):
        held.extend(step(given))
        held.append(v.read_value())
        held.append(np.asarray(v))
        other.assign(v)
    step(given)
    np.testing.assert_array_equal(given, np.ones(4))
    assert [float(np.asarray(h)[0]) for h in held] == [1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]
    assert float(other.numpy()[0]) == 4
    assert float(v.numpy()[0]) == 5


def test_assigning_one_variable_to_another_inside_a_function(strategy):
    a, b = make(strategy, 1.0), make(strategy, 2.0)

    @sg.function
    def swap():
        first, second = a.read_value(), b.read_value()
        a.assign(second)
        b.assign(first)

    @sg.function
    def share():
        a.assign(b)

    @sg.function
    def grow():
        a.assign_add(1.0)
        b.assign_add(10.0)

    swap()
    assert (float(a), float(b)) == (2, 1)
    share()
    grow()
    grow()
    assert (float(a), float(b)) == (3, 21)


def test_eager_and_compiled_code_share_a_variable(strategy):
    v = make(strategy, 0.0, aggregation=Aggregation.MEAN)
    compiled = sg.function(lambda: strategy.run(lambda: v.assign_add(jnp.float32(1))))
    for _ in range(3):
        compiled()
        v.assign_add(10.0)
        strategy.run(lambda: v.assign_add(jnp.float32(100)))
    assert float(v) == 333


# --- creation inside a function -----------------------------------------------------------------------


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
def test_variables_created_on_a_functions_first_call(strategy):
    made = []

    @sg.function
    def step(x):
        if not made:
            made.append(sg.Variable(jnp.zeros(2) + 1, aggregation=Aggregation.MEAN))
        made[0].assign_add(x)
        return made[0] * 1

    with strategy.scope():
        np.testing.assert_array_equal(step(jnp.ones(2)), [2, 2])
        np.testing.assert_array_equal(step(jnp.ones(2)), [3, 3])
    assert step.experimental_get_tracing_count() == 1
    assert strategy.num_replicas_in_sync == 1 or strategy.extended.variable_created_in_scope(
        made[0]
    )


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
def test_variables_created_inside_replicas(strategy, execute):
    made = {}

    def replica():
        if "v" not in made:
            v = sg.Variable(
                jnp.ones(2) * replica_value(), aggregation=Aggregation.MEAN, name="inner"
            )
            made.setdefault("v", v)
            assert made["v"] is v
        made["v"].assign_add(jnp.ones(2))

    execute(lambda: strategy.run(replica))
    np.testing.assert_array_equal(made["v"].numpy(), [2, 2])
    execute(lambda: strategy.run(replica))
    np.testing.assert_array_equal(made["v"].numpy(), [3, 3])


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
@one_process("workers must agree on a variable's name")
def test_variables_created_inside_replicas_with_names_of_their_own(strategy):
    made = []

    def replica():
        index = int(sg.distribute.get_replica_context().replica_id_in_sync_group)
        made.append(sg.Variable(1.0 + index, name=f"inner_{index}"))

    strategy.run(replica)
    first = made[0]
    assert all(v is first for v in made)
    assert (first.name, float(first)) == ("inner_0:0", 1.0)


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
def test_variables_created_on_every_call_raise(strategy):
    @sg.function
    def step():
        return sg.Variable(1.0) + 1

    with strategy.scope(), pytest.raises(ValueError, match="first call only"):
        step()


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
def test_lazily_created_variables_are_used_by_run_in_the_same_call(strategy):
    made = {}

    @sg.function
    def step():
        if not made:
            made["w"] = sg.Variable(jnp.ones(2) * 3, aggregation=Aggregation.MEAN)
            made["n"] = sg.Variable(0.0, synchronization=ON_READ, aggregation=Aggregation.SUM)

        def replica():
            made["n"].assign_add(jnp.float32(1))
            made["w"].assign_add(jnp.ones(2))
            return made["w"] * 1

        return strategy.run(replica), made["n"].read_value()

    with strategy.scope():
        for expected in (4, 5):
            result, count = step()
            first = strategy.experimental_local_results(result)[0]
            np.testing.assert_array_equal(first, [expected] * 2)
            assert float(count) == (expected - 3) * strategy.num_replicas_in_sync


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
def test_a_lazily_created_variable_survives_a_failed_first_call(strategy):
    made = []

    @sg.function
    def step(fail):
        if not made:
            made.append(sg.Variable(1.0))
        if fail:
            raise RuntimeError("first call")
        return made[0] + 1

    with strategy.scope():
        with pytest.raises(RuntimeError, match="first call"):
            step(True)
        assert float(step(False)) == 2


@pytest.mark.not_on(
    "parameter_server2", reason="variables are not created inside of compiled functions"
)
def test_effects_of_a_creating_call_happen_once(strategy):
    calls, made = [], []

    @sg.function
    def step(x):
        jax.debug.callback(lambda x: calls.append(1), x)
        if not made:
            made.append(sg.Variable(x * 2))
        return made[0] + x

    with strategy.scope():
        assert float(step(jnp.float32(1))) == 3
    # Outside of replicas the first device makes the calls, which is the leader's.
    assert len(calls) == (1 if strategy.replica_group.first_local == 0 else 0)


def test_assigned_arrays_stay_with_their_owner(strategy):
    v, other = make(strategy, jnp.ones(3)), make(strategy, jnp.zeros(3))
    step = sg.function(lambda: (v.assign_add(jnp.ones(3)), other.assign_add(jnp.ones(3))))
    saved = v.read_value()
    step()
    v.assign(saved)
    other.assign(v)
    step()
    np.testing.assert_array_equal(saved, np.ones(3))
    np.testing.assert_array_equal(v.numpy(), 2 * np.ones(3))
    np.testing.assert_array_equal(other.numpy(), 2 * np.ones(3))


def test_numpy_memory_is_copied(strategy):
    memory = np.zeros(4096, np.float32)
    aligned = memory[(-memory.ctypes.data // 4) % 16 :][:1024]
    created = make(strategy, aligned)
    assigned = make(strategy, np.ones(1024, np.float32))
    assigned.assign(aligned)
    aligned[:] = 7
    assert float(created.numpy()[0]) == 0
    assert float(assigned.numpy()[0]) == 0


@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
def test_copies_inside_a_function_are_the_current_ones(many, execute):
    v = make(many, 1.0)
    n = make(many, 1.0, synchronization=ON_READ, aggregation=Aggregation.SUM)
    step = sg.function(lambda: [x + 0 for w in (v, n) for x in many.experimental_local_results(w)])
    if IN_WORKERS:
        with pytest.raises(RuntimeError, match="cannot be accessed"):
            step()
        return
    step()
    v.assign(5.0)
    many.run(lambda: n.assign(3.0))
    assert {float(x) for x in step()} == {5.0, 3.0}


def test_narrow_whole_numbers_do_not_wrap(strategy):
    v = make(strategy, np.int8(0))
    v.assign(100)
    with pytest.raises(ValueError, match="may not fit"):
        v.assign(300)
    with pytest.raises(ValueError, match="may not fit"):
        v.assign(jnp.int32(3))
    assert int(v) == 100


def test_weak_types_do_not_stick_to_a_variable(strategy, execute):
    v = make(strategy, 1.0)
    v.assign(jnp.asarray(2.0))
    assert execute(lambda: v * jnp.ones((), jnp.bfloat16)).dtype == jnp.float32


def test_tied_variables_get_the_whole_gradient(strategy, execute):
    v = make(strategy, 2.0)
    _, gradients = execute(lambda: strategy.run(lambda: sg.value_and_grad(lambda: v * v, [v, v])()))
    first = [float(strategy.experimental_local_results(g)[0]) for g in gradients]
    assert first == [4, 4]


@pytest.mark.parametrize("indices", [np.array([0, 9]), [9, 0], np.array([-1, 2])], ids=str)
def test_rows_out_of_range_that_are_known_are_refused(strategy, execute, indices):
    with strategy.scope():
        v = sg.Variable(np.zeros((3, 2)), aggregation=sg.VariableAggregation.SUM)

    def add():
        v.scatter_add(sg.IndexedSlices(jnp.ones((2, 2)), indices))

    for fn in (add, lambda: strategy.run(add)):
        with pytest.raises(sg.errors.VariableError, match=r"needs indices in \[0, 3\)"):
            execute(fn)
    assert not v.numpy().any()


def test_variables_have_the_methods_of_arrays(strategy, execute, local):
    with strategy.scope():
        v = sg.Variable([[1.0, 2.0, 6.0]])

    def step():
        assert v.T.shape == v.reshape(3, 1).shape == v.transpose().shape == (3, 1)
        assert v.astype(jnp.int32).dtype == jnp.int32
        return [v.sum(), v.mean(axis=1)[0], v.max(), v.argmax(), v.flatten().dot(v.ravel())]

    found = execute(lambda: strategy.run(step))
    assert [float(local(x)[0]) for x in found] == [9, 3, 6, 2, 41]
    assert (v.tolist(), v.sum().item()) == ([[1, 2, 6]], 9)


def test_elements_are_not_assigned_in_place(strategy):
    with strategy.scope():
        v = sg.Variable([1.0, 2.0])
    with pytest.raises(sg.errors.VariableError, match=r"v\.value\(\)\.at\[key\]\.set"):
        v[0] = 5.0
    v.assign(v.value().at[0].set(5.0))
    assert v.tolist() == [5, 2]
