import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

pytestmark = pytest.mark.about("collectives", "variables")


def make(strategy, *args, **kwargs):
    with strategy.scope():
        return sg.Variable(*args, **kwargs)


def first(strategy, value):
    return strategy.experimental_local_results(value)[0]


def test_gradients_have_the_structure_of_the_variables(strategy, execute):
    w, b, unused = make(strategy, [1.0, 2.0]), make(strategy, 3.0), make(strategy, [1.0])

    def step():
        return sg.value_and_grad(lambda x: jnp.sum(w * w * x) + b, {"w": w, "rest": [b, unused]})(
            2.0
        )

    value, gradients = execute(lambda: strategy.run(step))
    assert float(first(strategy, value)) == 13
    np.testing.assert_array_equal(first(strategy, gradients["w"]), [4, 8])
    assert float(first(strategy, gradients["rest"][0])) == 1
    np.testing.assert_array_equal(first(strategy, gradients["rest"][1]), [0])


def test_a_loss_that_reads_none_of_the_variables_is_refused(strategy, execute):
    captured = jnp.ones(2)  # as a module is captured that the variables were made from
    variables = {"w": make(strategy, [1.0, 2.0]), "b": make(strategy, 1.0)}

    def step(loss):
        return strategy.run(lambda: sg.value_and_grad(loss, variables)())

    optimizer = sg.train.Optimizer(optax.sgd(0.1), precision="mixed_bfloat16")
    with pytest.raises(ValueError, match=r"reads none of them.*nnx\.merge"):
        execute(lambda: step(lambda: jnp.sum(captured)))
    with pytest.raises(ValueError, match="reads none of them"):
        execute(lambda: strategy.run(optimizer.value_and_grad(lambda: 2.0, variables)))
    _, gradients = execute(lambda: step(lambda: 2 * variables["b"]))
    np.testing.assert_array_equal(first(strategy, gradients["w"]), [0, 0])
    nothing = execute(lambda: strategy.run(lambda: sg.value_and_grad(lambda: 2.0, [])()))
    assert nothing[1] == []


def test_auxiliary_output(strategy, execute):
    w = make(strategy, 2.0)

    def step():
        return sg.value_and_grad(lambda: (w * w, {"double": w * 2, "text": "t"}), w, has_aux=True)()

    (value, aux), gradient = execute(lambda: strategy.run(step))
    assert float(first(strategy, value)) == 4
    assert float(first(strategy, aux["double"])) == 4
    assert aux["text"] == "t"
    assert float(first(strategy, gradient)) == 4


def test_assignments_inside_take_place_when_the_gradient_is_done(strategy, execute):
    """Running statistics, as batch normalisation keeps them."""
    w = make(strategy, 3.0)
    mean = make(strategy, 0.0, aggregation=sg.VariableAggregation.MEAN)
    count = make(
        strategy,
        0.0,
        synchronization=sg.VariableSynchronization.ON_READ,
        aggregation=sg.VariableAggregation.SUM,
    )
    n = strategy.num_replicas_in_sync

    def loss():
        x = w * (sg.distribute.get_replica_context().replica_id_in_sync_group + 1.0)
        mean.assign(x)
        count.assign_add(jnp.float32(1))
        return mean * 0 + w * w

    _, gradient = execute(lambda: strategy.run(lambda: sg.value_and_grad(loss, w)()))
    assert float(first(strategy, gradient)) == 6
    assert float(mean) == pytest.approx(3 * np.mean(range(1, n + 1)))
    assert float(count) == n


@pytest.mark.not_on(
    "parameter_server2", reason="what is fetched by an eager gradient is not differentiated twice"
)
def test_second_derivatives_with_auxiliary_arrays(strategy, execute):
    w = make(strategy, 3.0)
    calls = make(strategy, 0.0, aggregation=sg.VariableAggregation.MEAN)

    def slope():
        calls.assign_add(1.0)
        value, gradient = sg.value_and_grad(lambda: w * w * w, w)()
        return gradient, {"value": value, "more": [jnp.arange(2.0)]}

    def step():
        return sg.value_and_grad(slope, {"w": [w]}, has_aux=True)()

    (value, aux), gradients = execute(lambda: strategy.run(step))
    assert float(first(strategy, value)) == float(first(strategy, aux["value"])) == 27
    np.testing.assert_array_equal(first(strategy, aux["more"][0]), [0, 1])
    assert float(first(strategy, gradients["w"][0])) == 18
    assert float(calls) == 1


def test_gradients_of_arguments(strategy, execute):
    w = make(strategy, 3.0)
    calls = make(strategy, 0.0, aggregation=sg.VariableAggregation.MEAN)

    def fn(x, y):
        calls.assign_add(1.0)
        return w * x["a"] * y

    def step():
        x, y = {"a": jnp.float32(2)}, jnp.float32(5)
        (_, only) = sg.value_and_grad(fn)(x, y)
        (_, several) = sg.value_and_grad(fn, argnums=(1, 0))(x, y)
        (_, both) = sg.value_and_grad(fn, w, argnums=1)(x, y)
        return only, several, both

    only, several, both = execute(lambda: strategy.run(step))
    numbers = [only["a"], several[0], several[1]["a"], *both]
    assert [float(first(strategy, number)) for number in numbers] == [15, 6, 15, 10, 6]
    assert float(calls) == 3
    with pytest.raises(ValueError, match="positional argument 1, but got 1"):
        sg.value_and_grad(lambda x: x, argnums=1)(1.0)


def test_gradients_in_cross_replica_context(strategy, execute):
    w = make(strategy, 3.0)
    value, gradient = execute(lambda: sg.value_and_grad(lambda: w * w, w)())
    assert (float(value), float(gradient)) == (9, 6)


def test_differentiating_through_run_in_a_function(strategy):
    w = make(strategy, 3.0)

    def loss():
        per_replica = strategy.run(lambda: w * w)
        return strategy.reduce("MEAN", per_replica, axis=None)

    value, gradient = sg.function(lambda: sg.value_and_grad(loss, w)())()
    assert (float(value), float(gradient)) == (9, 6)


def test_differentiating_through_an_eager_run_of_many_replicas(many):
    w = make(many, 3.0)
    with pytest.raises(RuntimeError, match="inside the replica function"):
        sg.value_and_grad(lambda: many.reduce("MEAN", many.run(lambda: w * w), axis=None), w)()
    with pytest.raises(RuntimeError, match="inside the replica function"):
        jax.grad(lambda x: many.reduce("MEAN", many.run(lambda x: x, (x,)), axis=None))(1.0)


def test_jax_grad_of_a_function_that_reads_variables(strategy, execute):
    w = make(strategy, 3.0)
    gradient = execute(lambda: strategy.run(lambda: jax.grad(lambda x: x * x * w)(2.0)))
    assert float(first(strategy, gradient)) == 12


def test_only_variables_can_be_differentiated():
    with pytest.raises(ValueError, match=r"jax\.value_and_grad"):
        sg.value_and_grad(lambda: 1.0, [jnp.ones(2)])


def test_variables_inside_scan_remat_and_vmap_of_a_step(strategy):
    w = make(strategy, 2.0)

    def step():
        scanned, _ = jax.lax.scan(lambda c, _: (c * w, None), 1.0, None, length=3)
        mapped = jax.vmap(lambda x: x * w)(jnp.arange(3.0))
        return scanned, mapped, jax.checkpoint(lambda x: x * w)(5.0), jax.jit(lambda x: x + w)(1.0)

    scanned, mapped, remat, jitted = sg.function(lambda: strategy.run(step))()
    assert float(first(strategy, scanned)) == 8
    np.testing.assert_array_equal(first(strategy, mapped), [0, 2, 4])
    assert float(first(strategy, remat)) == 10
    assert float(first(strategy, jitted)) == 3
