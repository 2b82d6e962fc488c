"""Compiled functions with variables that another process holds."""

import gc
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from held_variables import HeldVariable, Holder

import stratagem as sg
from stratagem._src.variables.updates import update_on_server

ROWS = np.arange(40, dtype=np.float32).reshape(20, 2)
ON_SERVER = update_on_server("half", b"subtracts half of its operand")


@pytest.fixture
def holder():
    return Holder()


@pytest.fixture
def strategy():
    return sg.distribute.OneDeviceStrategy("CPU:0")


@pytest.fixture
def make(strategy, holder):
    return lambda name, value: HeldVariable(strategy, holder, name, value)


def slices(values, indices):
    return sg.IndexedSlices(jnp.asarray(values), jnp.asarray(indices))


def test_one_fetch_before_and_one_message_after(make, holder):
    v, w = make("v", np.float32(0)), make("w", np.ones(3, np.float32))

    @sg.function
    def step(x):
        v.assign_add(x)
        w.assign_sub(w.value() * x)
        return v.read_value()

    assert float(step(jnp.float32(2.0))) == 2.0
    assert float(step(jnp.float32(3.0))) == 5.0
    call = [
        ("pull", [("v", None), ("w", None)]),
        ("push", [("v", "assign_add"), ("w", "assign_sub")]),
    ]
    assert sorted(holder.messages[0][1]) == call[0][1]
    assert holder.take_messages()[1::2] == [call[1]] * 2
    assert step.experimental_get_tracing_count() == 1
    # Someone else's update in between is not lost.
    holder.values["v"] = holder.values["v"] + 10
    assert float(step(jnp.float32(1.0))) == 16.0


def test_an_update_alone_fetches_nothing(make, holder):
    v = make("v", np.float32(0))

    @sg.function
    def step():
        v.assign_add(1.0)

    step()
    step()
    assert holder.take_messages() == [("push", [("v", "assign_add")])] * 2
    assert holder.values["v"] == 2


def test_operands_that_need_no_computation(make, holder):
    v, table, local = (
        make("v", np.zeros(2, np.float32)),
        make("table", ROWS),
        sg.Variable([1.0, 2.0]),
    )

    @sg.function
    def step(x, ids):
        before = local.value()
        local.assign_add(x)
        v.assign(before)
        v.assign_add(x)
        table.scatter_update(slices(table[ids + 1], ids))

    for expected in ([11, 22], [21, 42]):
        step(jnp.array([10.0, 20.0]), jnp.array([3, 4]))
        np.testing.assert_array_equal(holder.values["v"], expected)
    np.testing.assert_array_equal(holder.values["table"][[3, 4]], ROWS[[5, 5]])


def test_eagerly_each_access_is_a_message(make, holder):
    v = make("v", ROWS)
    v.assign_add(ROWS)
    np.testing.assert_array_equal(v.value(), 2 * ROWS)
    np.testing.assert_array_equal(v.sparse_read([3, 1]), 2 * ROWS[[3, 1]])
    np.testing.assert_array_equal(v[2:6:2, 1], 2 * ROWS[2:6:2, 1])
    np.testing.assert_array_equal(v[-1], 2 * ROWS[-1])
    assert holder.take_messages() == [
        ("push", [("v", "assign_add")]),
        ("pull", [("v", None)]),
        ("pull", [("v", [3, 1])]),
        ("pull", [("v", [2, 4])]),
        ("pull", [("v", [19])]),
    ]


def use_at_random(variable, seed, rows):
    """Updates and reads a variable in a random order, the same for each seed; returns the reads."""
    random = np.random.default_rng(seed)
    names = ["add", "sub", "mul", "div", "min", "max", "update"]
    seen = []
    for name in random.permutation([*names, "assign_add", "assign_sub"])[:4]:
        if name in names:
            indices = random.permutation(20)[:5] if name == "update" else random.integers(0, 20, 5)
            values = random.integers(1, 5, (5, 2)).astype(np.float32)
            getattr(variable, f"scatter_{name}")(slices(values, indices))
        else:
            getattr(variable, name)(random.integers(1, 5, (20, 2)).astype(np.float32))
        seen.append(variable.value()[rows] if seed % 2 else variable.sparse_read(rows))
    variable.assign(ROWS * 3)
    return [*seen, variable.value()[rows], variable[rows]]


@pytest.mark.parametrize("seed", range(4))
def test_reads_see_the_functions_own_updates(make, holder, seed):
    rows = jnp.array([1, 4, 4, 0, 19, 7, 12])
    held, plain = make("v", ROWS), make("plain", ROWS)
    expected = use_at_random(plain, seed, rows)
    holder.take_messages()
    got = sg.function(lambda rows: use_at_random(held, seed, rows))(rows)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert [kind for kind, _ in holder.messages] == ["pull", "push"]
    assert [name for name, _ in holder.messages[1][1]] == ["v"] * 5


def test_only_rows_move(make, holder):
    table = make("table", ROWS)

    @sg.function
    def read(ids):
        return table[ids], table.sparse_read(ids % 3), table.gather([[1], [2]])

    ids = jnp.array([5, 7])
    by_key, computed, fixed = read(ids)
    np.testing.assert_array_equal(by_key, ROWS[[5, 7]])
    np.testing.assert_array_equal(computed, ROWS[[2, 1]])
    np.testing.assert_array_equal(fixed, ROWS[[[1], [2]]])
    ((kind, requests),) = holder.take_messages()
    assert kind == "pull"
    assert sorted(requests) == [("table", [1, 2]), ("table", [2, 1]), ("table", [5, 7])]


def test_rows_by_number_of_a_drawn_element(make, holder, strategy):
    table = make("table", ROWS)
    dataset = sg.data.Dataset.from_tensor_slices(np.arange(4)).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    read = sg.function(lambda iterator: table[next(iterator)])
    np.testing.assert_array_equal(read(iterator), ROWS[:2])
    np.testing.assert_array_equal(read(iterator), ROWS[2:4])
    assert holder.take_messages() == [("pull", [("table", [0, 1])]), ("pull", [("table", [2, 3])])]


def test_rows_by_numbers_that_were_read(make, holder):
    successor, table = make("successor", (np.arange(20) + 3) % 20), make("table", ROWS)

    @sg.function
    def follow(ids):
        return table[successor[successor[ids]]] + table[ids]

    np.testing.assert_array_equal(follow(jnp.array([1])), ROWS[[7]] + ROWS[[1]])
    first, second, third = holder.take_messages()
    assert sorted(first[1]) == [("successor", [1]), ("table", [1])]
    assert (second, third) == (("pull", [("successor", [4])]), ("pull", [("table", [7])]))


def test_variables_that_arrive_while_a_function_is_traced(strategy, holder):
    arrived = []

    def receive():
        if not arrived:
            arrived.append(HeldVariable(strategy, holder, "late", ROWS))
        return arrived[0]

    @sg.function
    def step(x):
        def replica(x):
            receive().assign_add(x * receive().value())
            return receive()[0]

        return strategy.run(replica, (x,))

    np.testing.assert_array_equal(step(jnp.float32(2)), 3 * ROWS[0])
    np.testing.assert_array_equal(holder.values["late"], 3 * ROWS)
    arrived.clear()
    np.testing.assert_array_equal(sg.function(lambda: receive().value())(), ROWS)


def sum_of_squares(table, weights, ids):
    return jnp.sum((table[ids] @ weights.value()) ** 2)


@pytest.mark.parametrize("execute", [lambda fn: fn, sg.function])
def test_gradients(make, holder, execute):
    table, weights = make("table", ROWS), make("weights", np.array([0.5, -1], np.float32))
    ids = jnp.array([3, 5, 3])

    @execute
    def step(ids):
        loss = sg.value_and_grad(lambda: sum_of_squares(table, weights, ids), [table, weights])
        return loss()

    value, (of_table, of_weights) = step(ids)
    expected, gradients = jax.value_and_grad(
        lambda t, w: jnp.sum((t[ids] @ w) ** 2), argnums=(0, 1)
    )(ROWS, np.array([0.5, -1], np.float32))
    assert isinstance(of_table, sg.IndexedSlices)
    np.testing.assert_array_equal(of_table.indices, ids)
    np.testing.assert_allclose(value, expected)
    np.testing.assert_allclose(of_table.to_dense(), gradients[0])
    np.testing.assert_allclose(of_weights, gradients[1])
    moved = [request for _, requests in holder.take_messages() for request in requests]
    assert sorted(moved) == [("table", [3, 5, 3]), ("weights", None)]


@pytest.mark.parametrize("execute", [lambda fn: fn, sg.function])
def test_gradient_where_rows_and_all_are_read(make, execute):
    table, unused = make("table", ROWS), make("unused", np.float32(1))

    @execute
    def step():
        return sg.value_and_grad(
            lambda: jnp.sum(table.value() ** 2) + jnp.sum(table[jnp.array([2, 2])]), [table, unused]
        )()[1]

    of_table, of_unused = step()
    expected = 2 * ROWS
    expected[2] += 2
    np.testing.assert_array_equal(of_table, expected)
    assert float(of_unused) == 0


@pytest.mark.parametrize("execute", [lambda fn: fn, sg.function])
def test_updates_inside_value_and_grad(make, holder, execute):
    v, count = make("v", np.float32(3)), make("count", np.float32(0))

    @execute
    def step(x):
        def loss():
            count.assign_add(x * v)
            return v * count

        return sg.value_and_grad(loss, v)()

    value, gradient = step(jnp.float32(2))
    assert (float(value), float(gradient)) == (18, 12)
    assert holder.values["count"] == 6
    assert [m for m in holder.messages if m[0] == "push"] == [("push", [("count", "assign_add")])]


def test_reads_after_what_only_the_server_can_do(make, holder):
    w, other = make("w", np.float32(8)), make("other", np.float32(1))

    @sg.function
    def steps():
        seen = []
        for _ in range(3):
            value, gradient = sg.value_and_grad(lambda: w * other, w)()
            w.apply_update(ON_SERVER, gradient)
            seen.append(value)
        return seen, w.read_value()

    seen, last = steps()
    assert [float(value) for value in seen] == [8, 7.5, 7]
    assert float(last) == holder.values["w"] == 6.5
    assert [kind for kind, _ in holder.messages] == ["pull", "push"] * 3 + ["pull"]
    assert sorted(holder.messages[0][1]) == [("other", None), ("w", None)]
    assert {message[1][0] for message in holder.messages[2::2]} == {("w", None)}


def test_steps_on_rows_never_move_the_table(make, holder):
    table = make("table", ROWS)

    @sg.function
    def steps(ids):
        for _ in range(2):
            _, gradient = sg.value_and_grad(lambda: jnp.sum(table[ids] ** 2), table)()
            table.apply_update(ON_SERVER, gradient.to_dense())
        return table[ids]

    np.testing.assert_array_equal(steps(jnp.array([3])), [[0, 0]])
    moved = [
        request for kind, requests in holder.messages for request in requests if kind == "pull"
    ]
    assert moved == [("table", [3])] * 3


def test_a_read_before_does_not_see_what_only_the_server_can_do(make, holder):
    table = make("table", ROWS)

    @sg.function
    def step(ids):
        before = table[ids]
        table.apply_update(ON_SERVER, jnp.ones_like(ROWS))
        return before, table[ids]

    before, after = step(jnp.array([4]))
    np.testing.assert_array_equal(before, ROWS[[4]])
    np.testing.assert_array_equal(after, ROWS[[4]] - 0.5)


@pytest.fixture
def two_replicas(holder):
    strategy = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"])
    total = sg.VariableAggregation.SUM
    return strategy, lambda name, value: HeldVariable(strategy, holder, name, value, total)


def test_several_replicas_compiled_as_eagerly(two_replicas, holder):
    strategy, make = two_replicas
    v, w, table = make("v", np.float32(0)), make("w", np.ones((3, 2), np.float32)), make("t", ROWS)
    start = dict(holder.values)

    def replica(ids, x):
        v.assign_add(x)
        fixed = table.sparse_read(7), table.sparse_read([1])
        loss = sg.value_and_grad(lambda: jnp.sum(table[ids % 20] @ w.value().T) * x, [table, w])
        value, (of_table, of_w) = loss()
        table.scatter_sub(slices(of_table.values * 0.1, of_table.indices))
        w.assign_sub(of_w * 0.1)
        return value, v.read_value(), table[ids % 20], *fixed

    ids = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.array([1, 23]) + ctx.replica_id_in_sync_group
    )
    x = strategy.experimental_distribute_values_from_function(
        lambda ctx: 1.0 + ctx.replica_id_in_sync_group
    )
    outcomes = []
    for run in (strategy.run, sg.function(strategy.run)):
        holder.values = dict(start)
        holder.take_messages()
        result = [strategy.experimental_local_results(value) for value in run(replica, (ids, x))]
        outcomes.append((result, holder.values))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *outcomes)
    assert holder.values["v"] == 3
    assert [kind for kind, _ in holder.messages] == ["pull", "push"]


def test_several_replicas_read_after_what_only_the_server_can_do(two_replicas, holder):
    strategy, make = two_replicas
    w = make("w", np.ones(2, np.float32))

    def replica(x):
        context = sg.distribute.get_replica_context()
        before = w.value() * x
        context.merge_call(lambda s, x: w.apply_update(ON_SERVER, s.reduce("SUM", x)), (before,))
        return before, w.value(), w[0]

    x = strategy.experimental_distribute_values_from_function(
        lambda ctx: 1.0 + ctx.replica_id_in_sync_group
    )
    before, whole, row = sg.function(lambda x: strategy.run(replica, (x,)))(x)
    np.testing.assert_array_equal(np.stack(before.values), [[1, 1], [2, 2]])
    np.testing.assert_array_equal(np.stack(whole.values), np.full((2, 2), -0.5))
    np.testing.assert_array_equal(np.stack(row.values), [-0.5, -0.5])
    assert [kind for kind, _ in holder.messages] == ["pull", "push", "pull"]


def test_row_numbers_from_arrays_on_other_devices(two_replicas, holder):
    strategy, make = two_replicas
    table, start = make("table", ROWS), sg.Variable(2)
    ids = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.arange(2) + ctx.replica_id_in_sync_group
    )

    @sg.function
    def read(ids, offset):
        start.assign_add(1)
        return strategy.run(lambda ids: table[ids + offset + start.value()], (ids,))

    for expected in (3, 4):
        result = read(ids, jax.device_put(jnp.int32(5), jax.devices()[3]))
        first = ROWS[[expected + 5, expected + 6]]
        np.testing.assert_array_equal(np.stack(result.values), [first, first + 2])
    assert int(start) == 4


def test_rows_that_do_not_exist(make):
    table = make("table", ROWS)
    with pytest.raises(ValueError, match=r"\[0, 20\), got 3 to 20"):
        sg.function(lambda ids: table[ids])(jnp.array([3, 20]))
    with pytest.raises(ValueError, match="integer row indices"):
        table.sparse_read([1.5])
    with pytest.raises(ValueError, match="is a scalar"):
        make("v", np.float32(0)).sparse_read([0])


def test_rows_read_where_they_cannot_be_fetched(make):
    table = make("table", ROWS)

    @sg.function
    def loops(ids):
        return jax.lax.map(lambda i: table[i], ids)

    with pytest.raises(RuntimeError, match="before the transformation and pass the values in"):
        loops(jnp.array([1, 2]))
    with pytest.raises(RuntimeError, match=r"outside of a stratagem.function"):
        jax.jit(lambda ids: table.sparse_read(ids))(jnp.array([1]))
    # All of it can be read: it is an input of the program.
    whole = sg.function(lambda ids: jax.lax.map(lambda i: table.value()[i], ids))
    np.testing.assert_array_equal(whole(jnp.array([1, 2])), ROWS[[1, 2]])


def test_a_gradient_cannot_see_what_only_the_server_can_do(make):
    v = make("v", np.float32(1))

    @sg.function
    def step():
        def loss():
            v.apply_update(ON_SERVER, jnp.float32(1))
            return v * 2.0

        return sg.value_and_grad(loss, v)()

    with pytest.raises(ValueError, match="Update it after value_and_grad"):
        step()


def test_a_lost_holder_raises_and_the_element_is_drawn_again(make, holder, strategy):
    v = make("v", np.float32(0))
    dataset = sg.data.Dataset.from_tensor_slices(np.arange(1, 3, dtype=np.float32))
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: dataset))
    step = sg.function(lambda iterator: v.assign_add(next(iterator)).read_value())
    holder.broken = True
    with pytest.raises(ConnectionError, match="the holder is gone"):
        step(iterator)
    holder.broken = False
    assert float(step(iterator)) == 1
    assert float(step(iterator)) == 3


class Model:
    def __init__(self):
        self.factor = 3.0

    @sg.function
    def step(self, x):
        return x * self.factor


def test_functions_can_be_sent():
    @sg.function
    def step(x):
        return x + 1

    model = Model()
    arrived, method = cloudpickle.loads(cloudpickle.dumps((step, model.step)))
    assert float(arrived(jnp.float32(1))) == 2
    assert arrived.experimental_get_tracing_count() == 1
    assert float(method(jnp.float32(2))) == 6


def test_remote_variables_that_a_function_used_can_go(make, holder):
    kept = {"v": make("v", np.ones(3, np.float32)), "w": make("w", ROWS)}

    @sg.function
    def step(x):
        kept["v"].assign_add(kept["v"].value() * x)
        return jnp.sum(kept["w"].sparse_read(jnp.asarray([1, 2])))

    for _ in range(3):
        assert float(step(jnp.float32(1))) == 2 + 3 + 4 + 5
    gone = [weakref.ref(variable) for variable in kept.values()]
    kept = {"v": make("v", np.zeros(3, np.float32)), "w": make("w", 2 * ROWS)}
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert float(step(jnp.float32(1))) == 28
