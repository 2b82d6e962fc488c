"""Compiled steps, as people write them, exchange as little as they can."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import stratagem as sg
from stratagem._src.execution.program import Program

MEAN = sg.VariableAggregation.MEAN
SUM = sg.VariableAggregation.SUM
FIRST = sg.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.fixture
def exchanges(monkeypatch):
    """Returns a function: the collectives of what has been compiled since it was called last."""
    texts = []
    compile_program = Program._compile

    def noting(program, held, arrays, consts):
        texts.append(
            program.jitted.lower(*program.variables.borrow(held), consts, arrays).as_text()
        )
        compile_program(program, held, arrays, consts)

    monkeypatch.setattr(Program, "_compile", noting)

    def found():
        [text] = dict.fromkeys(texts)
        texts.clear()
        return re.findall(r'"stablehlo\.(all_reduce|all_gather|collective_permute)"', text)

    return found


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)])
def strategy(request):
    return sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


def replica():
    return sg.distribute.get_replica_context()


def rows(strategy, *shape):
    """Returns a value of each replica: other rows for each."""
    data = np.random.default_rng(0).normal(size=(strategy.num_replicas_in_sync, 3, *shape))
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: data[ctx.replica_id_in_sync_group].astype(np.float32)
    )


def make_variables(strategy, aggregation, count=5):
    with strategy.scope():
        return [
            sg.Variable(np.full((4, 4), 0.1 * i, np.float32), aggregation=aggregation)
            for i in range(count)
        ]


def loss_and_gradients(variables, x):
    def loss():
        return jnp.mean(sum(jnp.tanh(x @ v) for v in variables) ** 2)

    return sg.value_and_grad(loss, variables)()


def reduce_then_assign(variables, x):
    loss, gradients = loss_and_gradients(variables, x)
    gradients, loss = replica().all_reduce("MEAN", (gradients, loss))
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


def reduce_one_by_one(variables, x):
    loss, gradients = loss_and_gradients(variables, x)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * replica().all_reduce("MEAN", gradient))
    return replica().all_reduce("MEAN", loss)


def own_means(variables, x):
    loss, gradients = loss_and_gradients(variables, x)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * lax.pmean(gradient, "replica"))
    return lax.pmean(loss, "replica")


def only_assign(variables, x):
    loss, gradients = loss_and_gradients(variables, x)
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


def optax_inside(variables, x):
    loss, gradients = loss_and_gradients(variables, x)
    sgd = optax.sgd(0.1)
    values = [v.value() for v in variables]
    updates, _ = sgd.update(replica().all_reduce("MEAN", gradients), sgd.init(values), values)
    for variable, value in zip(variables, optax.apply_updates(values, updates), strict=True):
        variable.assign(value)
    return loss


WAYS = [
    (reduce_then_assign, MEAN),
    (reduce_then_assign, FIRST),
    (reduce_one_by_one, MEAN),
    (own_means, FIRST),
    (only_assign, MEAN),
    (optax_inside, MEAN),
    (optax_inside, FIRST),
]


@pytest.mark.parametrize(
    ("step", "aggregation"), WAYS, ids=[f"{step.__name__}_{a.name}" for step, a in WAYS]
)
def test_a_step_is_one_exchange(strategy, exchanges, step, aggregation):
    variables = make_variables(strategy, aggregation)
    x = rows(strategy, 4)

    def train(x):
        per_replica = strategy.run(step, args=(variables, x))
        return strategy.reduce("MEAN", per_replica, axis=None)

    compiled_train = sg.function(train)
    losses = [float(compiled_train(x)) for _ in range(2)]
    assert exchanges() == ["all_reduce"]
    compiled = [v.numpy() for v in variables]
    for variable, value in zip(variables, make_variables(strategy, aggregation), strict=True):
        variable.assign(value.value())
    # JAX's own collectives need a compiled step.
    step = reduce_then_assign if step is own_means else step
    assert losses == pytest.approx([float(train(x)) for _ in range(2)], rel=1e-6)
    for variable, value in zip(variables, compiled, strict=True):
        np.testing.assert_allclose(value, variable.numpy(), rtol=1e-5, atol=1e-7)


def test_optimizer_loss_and_metrics_are_one_exchange(strategy, exchanges):
    variables = make_variables(strategy, sg.VariableAggregation.NONE)
    with strategy.scope():
        optimizer = sg.train.Optimizer(optax.adam(0.1))
    x = rows(strategy, 4)

    def step(x):
        loss, gradients = loss_and_gradients(variables, x)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss, {"largest": jnp.abs(x).sum(), "norm": (x**2).sum()}

    @sg.function
    def train(x):
        loss, metrics = strategy.run(step, args=(x,))
        return (
            strategy.reduce("MEAN", loss, axis=None),
            {k: strategy.reduce("SUM", v, axis=None) for k, v in metrics.items()},
        )

    train(x)  # makes the optimizer's variables
    assert exchanges() == ["all_reduce"]


def test_reduce_along_an_axis_travels_with_the_rest(strategy, exchanges):
    x = rows(strategy, 4)

    @sg.function
    def f(x):
        y = strategy.run(lambda x: (x * 2, replica().all_reduce("SUM", x)), args=(x,))
        return strategy.reduce("MEAN", y[0], axis=0), strategy.reduce("SUM", y[0], axis=None)

    mean, total = f(x)
    assert exchanges() == ["all_reduce"]
    parts = np.stack([np.asarray(part) for part in x.values])
    np.testing.assert_allclose(mean, parts.mean((0, 1)) * 2, rtol=1e-5)
    np.testing.assert_allclose(total, parts.sum(0) * 2, rtol=1e-5)


def test_runs_that_do_not_depend_on_one_another(strategy, exchanges):
    x = rows(strategy, 4)

    @sg.function
    def f(x):
        one = strategy.run(lambda x: replica().all_reduce("SUM", x), args=(x,))
        two = strategy.run(lambda x: replica().all_reduce("SUM", x.sum(0)), args=(x,))
        return one, two

    f(x)
    assert exchanges() == ["all_reduce"]


def test_what_is_computed_in_between_keeps_its_place(strategy, exchanges):
    x = rows(strategy)

    @sg.function
    def f(x):
        total = strategy.reduce("SUM", strategy.run(jnp.sin, args=(x,)), axis=None)
        scaled = jnp.tanh(total)  # outside of the replicas
        again = strategy.run(lambda x, t: x * t, args=(x, scaled))
        return total, strategy.reduce("SUM", again, axis=None)

    total, again = f(x)
    assert exchanges() == ["all_reduce", "all_reduce"]
    parts = np.stack([np.asarray(part) for part in x.values])
    np.testing.assert_allclose(total, np.sin(parts).sum(0), rtol=1e-5)
    np.testing.assert_allclose(again, (parts * np.tanh(total)).sum(0), rtol=1e-5, atol=1e-6)


def test_steps_in_a_loop_of_the_function(strategy, exchanges):
    [v, w] = make_variables(strategy, MEAN, 2)
    x = rows(strategy, 4)

    def step(x):
        v.assign_add(x.T @ x)
        w.assign_add(x.T @ x * 2)

    @sg.function
    def train(x):
        for _ in range(3):
            strategy.run(step, args=(x,))

    train(x)
    # No step needs what another one has exchanged, and each is the same as the first.
    assert exchanges() == ["all_reduce"]
    parts = np.stack([np.asarray(part) for part in x.values])
    gram = np.einsum("rij,rik->jk", parts, parts) / strategy.num_replicas_in_sync
    np.testing.assert_allclose(v.numpy(), 3 * gram, rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), 0.1 + 6 * gram, rtol=1e-5)


def test_run_inside_a_scan_of_the_function(strategy, exchanges):
    x = rows(strategy, 4)

    @sg.function
    def f(x):
        def body(total, _):
            y = strategy.run(lambda x: replica().all_reduce("SUM", (x * total, x.sum())), args=(x,))
            return total + strategy.reduce("SUM", y[1], axis=None), None

        return lax.scan(body, jnp.float32(1), None, length=3)[0]

    result = f(x)
    assert exchanges() == ["all_reduce"]
    parts = np.stack([np.asarray(part) for part in x.values])
    expected = 1 + 3 * parts.sum() * strategy.num_replicas_in_sync
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_sum_of_equal_values_counts_every_replica(strategy, exchanges):
    [v] = make_variables(strategy, SUM, 1)

    @sg.function
    def f():
        strategy.run(lambda: v.assign_add(jnp.ones((4, 4)) * 2))

    f()
    assert exchanges() == []
    np.testing.assert_array_equal(v.numpy(), np.full((4, 4), 2.0 * strategy.num_replicas_in_sync))


def test_the_number_of_packs_is_obeyed(exchanges):
    ops = sg.distribute.NcclAllReduce(num_packs=3)
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    variables = make_variables(strategy, MEAN, 6)
    x = rows(strategy, 4)
    sg.function(lambda x: strategy.run(only_assign, args=(variables, x)))(x)
    assert exchanges() == ["all_reduce"] * 3


def test_bytes_per_pack_are_obeyed(strategy, exchanges):
    x = rows(strategy, 4)
    options = sg.distribute.experimental.CommunicationOptions(bytes_per_pack=4 * 24)

    @sg.function
    def f(x):
        return strategy.run(
            lambda x: [replica().all_reduce("SUM", x * i, options) for i in range(6)], args=(x,)
        )

    f(x)
    assert exchanges() == ["all_reduce"] * 3


class _Counting(sg.distribute.CrossDeviceOps):
    """Adds one to every sum, so that it shows whether it was asked."""

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        return jnp.stack(per_replica_value.values).sum(0) + 1


def test_ops_of_the_users_own_are_never_passed_by():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=_Counting())
    [v] = make_variables(strategy, SUM, 1)

    @sg.function
    def f():
        strategy.run(lambda: v.assign(jnp.ones((4, 4))))

    f()
    np.testing.assert_array_equal(v.numpy(), np.full((4, 4), 3.0))


class _Own(sg.distribute.CrossDeviceOps):
    """Returns what differs between replicas, against the rules."""

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        return per_replica_value.values[0] + lax.axis_index("replica")


def test_copies_of_a_variable_are_equal_whatever_an_op_returns():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=_Own())
    [v] = make_variables(strategy, SUM, 1)

    @sg.function
    def f():
        strategy.run(lambda: v.assign(jnp.ones((4, 4))))

    f()
    for copy in v.values:
        np.testing.assert_array_equal(copy, np.ones((4, 4)))


@pytest.mark.parametrize(
    "ops", [sg.distribute.HierarchicalCopyAllReduce(), sg.distribute.ReductionToOneDevice()]
)
def test_other_ops_travel_together_in_their_own_way(exchanges, ops):
    def count(num_variables):
        strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)], ops)
        variables = make_variables(strategy, MEAN, num_variables)
        x = rows(strategy, 4)
        sg.function(lambda x: strategy.run(only_assign, args=(variables, x)))(x)
        return exchanges()

    one = count(1)
    assert set(one) == {"collective_permute"}
    assert count(4) == one


def test_gradients_through_a_reduction_are_those_of_what_was_written(strategy):
    x = rows(strategy, 4)
    n = strategy.num_replicas_in_sync

    @sg.function
    def f(x):
        def step(x):
            # The mean of an equal value is itself, but its gradient is a sum over the replicas.
            def loss(w):
                return (lax.pmean(w, "replica") * x.sum()).sum()

            return jax.grad(loss)(jnp.ones(()))

        return strategy.run(step, args=(x,))

    parts = np.stack([np.asarray(part) for part in x.values])
    for value in f(x).values:
        np.testing.assert_allclose(value, parts.sum() / n, rtol=1e-5)


def test_a_users_own_shard_map_is_joined_too(strategy, exchanges):
    mesh = strategy.extended.replica_group.mesh

    @sg.function
    def f(x):
        y = strategy.run(lambda x: replica().all_reduce("SUM", x), args=(x,))
        own = jax.shard_map(
            lambda w: (lax.psum(w, "replica"), lax.psum(lax.axis_index("replica"), "replica")),
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(jnp.ones(3))
        return y, own

    _, (total, indices) = f(rows(strategy, 4))
    assert exchanges() == ["all_reduce"] * 2  # of numbers, and of whole numbers
    n = strategy.num_replicas_in_sync
    np.testing.assert_array_equal(total, np.full(3, n))
    assert int(indices) == n * (n - 1) // 2
