"""Collectives, assignments and optimizers inside conditionals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from replicas import components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")


def make(strategy, *args, **kwargs):
    with strategy.scope():
        return sg.Variable(*args, **kwargs)


@pytest.fixture
def updates(request, strategy, execute):
    """Skips where branches cannot update variables, after a look at how that is refused."""
    compiled = request.node.callspec.params["execute"] == "compiled"
    if compiled and isinstance(strategy, sg.distribute.ParameterServerStrategy):
        v = make(strategy, 1.0)
        with pytest.raises(sg.errors.UnsupportedError, match="lives on a parameter server"):
            execute(lambda x: sg.cond(x, lambda: v.assign(2.0).value(), v.value), jnp.asarray(True))
        pytest.skip("updates of variables on parameter servers are sent when a program has run")


def replica():
    return sg.distribute.get_replica_context()


def number():
    return replica().replica_id_in_sync_group + 1.0


@pytest.mark.parametrize("conditional", [jax.lax.cond, sg.cond], ids=["lax", "sg"])
def test_all_reduce_in_a_branch(strategy, conditional):
    """The predicate comes from an argument, from a variable, and from another reduction."""
    threshold = make(strategy, 2.0)
    n = strategy.num_replicas_in_sync

    @sg.function
    def step(x):
        def replica_fn(x):
            def both(predicate):
                return conditional(
                    predicate, lambda y: replica().all_reduce("SUM", y), lambda y: -y, number()
                )

            reduced = replica().all_reduce("MAX", number())
            return both(x > 0), both(threshold > x), both(reduced < 0)

        return strategy.run(replica_fn, (x,))

    for x in (1.0, 3.0, -1.0):
        results = step(jnp.float32(x))
        of_replicas = zip(*map(strategy.experimental_local_results, results), strict=True)
        for index, local in enumerate(of_replicas):
            taken, other = sum(range(1, n + 1)), -(index + strategy.replica_group.first_local + 1.0)
            expected = [taken if holds else other for holds in (x > 0, x < 2, False)]
            np.testing.assert_allclose(local, expected)


@pytest.mark.parametrize("conditional", [jax.lax.cond, sg.cond], ids=["lax", "sg"])
def test_predicates_that_may_differ_are_refused(many, conditional):
    def replica_fn():
        return conditional(
            number() > 1, lambda y: replica().all_reduce("SUM", y), lambda y: -y, jnp.float32(1)
        )

    def looping():
        return jax.lax.while_loop(
            lambda x: x < 3, lambda x: x + replica().all_reduce("MAX", x), number()
        )

    for fn in (replica_fn, looping):
        with pytest.raises(sg.errors.ReplicaMismatchError, match="may differ between replicas"):
            sg.function(lambda fn=fn: many.run(fn))()
    # Without a collective inside, each replica takes its own branch.
    own = sg.function(
        lambda: many.run(lambda: conditional(number() > 1, lambda: 2.0, lambda: 1.0))
    )()
    assert [float(x) for x in components(many, own)] == [1] + [2] * (many.num_replicas_in_sync - 1)


@pytest.mark.usefixtures("updates")
def test_assignments_in_branches(strategy, prepare):
    total = make(strategy, 0.0, aggregation=sg.VariableAggregation.SUM)
    steps = make(strategy, 0, aggregation=sg.VariableAggregation.ONLY_FIRST_REPLICA)
    with strategy.scope():
        metric = sg.metrics.Mean()
    n = strategy.num_replicas_in_sync

    def replica_fn():
        steps.assign_add(1)

        def add():
            total.assign_add(number())
            metric.update_state(number())
            return total.value()

        return sg.cond(steps.value() % 2 == 0, add, lambda: jnp.float32(-1))

    step = prepare(lambda: strategy.run(replica_fn))
    for count in (1, 2, 3, 4):
        results = step()
        expected = count // 2 * sum(range(1, n + 1))
        assert float(total) == expected
        for result in strategy.experimental_local_results(results):
            assert float(result) == (expected if count % 2 == 0 else -1)
    assert float(metric.count) == 2 * n


@pytest.mark.usefixtures("updates")
def test_optimizer_in_a_branch(strategy, prepare):
    w = make(strategy, 1.0)
    optimizer = sg.train.Optimizer(optax.sgd(1.0, momentum=0.5))
    scale = 1.0 / strategy.num_replicas_in_sync

    def replica_fn(due):
        def loss():
            return w * scale

        _, gradient = sg.value_and_grad(loss, w)()
        sg.cond(due, lambda: optimizer.apply(gradient, w), lambda: None)

    step = prepare(lambda due: strategy.run(replica_fn, (due,)))
    for due, expected in ((False, 1.0), (True, 0.0), (False, 0.0), (True, -1.5)):
        step(jnp.asarray(due))
        assert float(w) == pytest.approx(expected)


@pytest.mark.not_on("parameter_server2", reason="there are no copies")
def test_equal_copies_stay_equal(many):
    v = make(many, 1.0)

    def replica_fn():
        def reset():
            replica().merge_call(lambda strategy: v.assign(0.0))

        sg.cond(number() > 1, reset, lambda: None)

    with pytest.raises(sg.errors.ReplicaMismatchError, match="mirrored in all replicas"):
        sg.function(lambda: many.run(replica_fn))()
    assert float(v) == 1


@one_process("plain variables belong to one process")
def test_outside_of_replicas_and_inside_gradients(execute):
    w, calls = sg.Variable(3.0), sg.Variable(0)

    def loss(x):
        def square():
            calls.assign_add(1)
            return w * w

        return sg.cond(x > 0, square, lambda: w * 5.0)

    def gradient(x):
        return sg.value_and_grad(loss, w)(x)

    assert [float(y) for y in execute(gradient, jnp.float32(1))] == [9, 6]
    assert [float(y) for y in execute(gradient, jnp.float32(-1))] == [15, 5]
    assert int(calls) == 1
    assert float(jax.jit(lambda x: sg.cond(x, lambda: 1.0, lambda: 2.0))(0.5)) == 1


@pytest.mark.parametrize("flag", [True, False])
def test_branches_that_assign_in_a_tape(strategy, execute, updates, flag):
    w = make(strategy, 3.0, aggregation=sg.VariableAggregation.MEAN)
    count = make(strategy, 0.0, trainable=False, aggregation=sg.VariableAggregation.SUM)

    def step(flag):
        def squared():
            count.assign_add(jnp.float32(1))
            return w * w

        def doubled():
            count.assign_add(jnp.float32(10))
            return w * 2.0

        with sg.GradientTape() as tape:
            y = sg.cond(flag, squared, doubled) * w
        return tape.gradient(y, w)

    gradients = execute(lambda flag: strategy.run(step, (flag,)), jnp.asarray(flag))
    for gradient in components(strategy, gradients):
        assert float(gradient) == (27.0 if flag else 12.0)
    assert float(count) == strategy.num_replicas_in_sync * (1 if flag else 10)
