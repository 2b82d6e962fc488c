"""The same optimizer under several strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from replicas import IN_WORKERS

import stratagem as sg

pytestmark = pytest.mark.about("variables")


def by_hand(transformation, steps, start, num_replicas):
    """Returns what optax alone makes of the same gradients, summed over the replicas."""
    scale = sum(range(1, num_replicas + 1))

    @jax.jit
    def step(values, state):
        gradients = [2 * scale * values[0], jnp.zeros_like(values[1]).at[1].set(3.0 * scale)]
        updates, state = transformation.update(gradients, state, values)
        return optax.apply_updates(values, updates), state

    values, state = start, transformation.init(start)
    for _ in range(steps):
        values, state = step(values, state)
    return values


def take_steps(strategy, execute, transformation):
    start = [jnp.array([1.0, 2.0]), jnp.ones((3, 2))]
    with strategy.scope():
        variables = [sg.Variable(value) for value in start]
    optimizer = sg.train.Optimizer(transformation)

    def step():
        context = sg.distribute.get_replica_context()
        scale = context.replica_id_in_sync_group + 1.0
        _, gradient = sg.value_and_grad(lambda: scale * jnp.sum(variables[0] ** 2), variables[0])()
        rows = sg.IndexedSlices(jnp.full((1, 2), 3.0) * scale, jnp.array([1]))
        optimizer.apply_gradients(zip([gradient, rows], variables, strict=True))

    for _ in range(3):
        execute(lambda: strategy.run(step))
    expected = by_hand(transformation, 3, start, strategy.num_replicas_in_sync)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=2e-5)
    return optimizer


@pytest.mark.parametrize(
    "strategy",
    ["workers"] if IN_WORKERS else ["default", "mirrored2", "central2"],
    indirect=True,
)
def test_steps_as_optax_takes_them(strategy, execute):
    transformation = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1))
    optimizer = take_steps(strategy, execute, transformation)
    # The state of Adam: a count, and two moments of each variable.
    assert len(optimizer.variables) == 5
    assert int(optimizer.variables[0]) == 3


@pytest.mark.skipif(IN_WORKERS, reason="workers have no parameter servers")
@pytest.mark.parametrize("strategy", ["parameter_server2"], indirect=True)
def test_state_stays_on_the_servers(strategy, execute):
    optimizer = take_steps(strategy, execute, optax.adam(0.1))
    assert optimizer.variables == []


def test_other_variables_are_refused():
    v, w = sg.Variable(1.0), sg.Variable(2.0)
    optimizer = sg.train.Optimizer(optax.sgd(0.1))
    optimizer.apply_gradients([(1.0, v), (None, w)])
    assert float(v) == pytest.approx(0.9)
    with pytest.raises(sg.errors.VariableError, match="always given the same variables"):
        optimizer.apply_gradients([(1.0, w)])
    with pytest.raises(ValueError, match="got 'adam'"):
        sg.train.Optimizer("adam")


def test_two_gradients_of_one_variable_are_refused(strategy, execute):
    with strategy.scope():
        v, w = sg.Variable(jnp.zeros(2), name="v"), sg.Variable(jnp.zeros(2), name="w")
    optimizer = sg.train.Optimizer(optax.sgd(1.0))

    def step():
        one = jnp.ones(2)
        optimizer.apply_gradients([(one, v), (one, w), (10 * one, w), (None, v)])

    for fn in (step, lambda: strategy.run(step)):
        with pytest.raises(sg.errors.VariableError, match="got 2 for 'w:0'"):
            execute(fn)
    assert v.numpy().tolist() == w.numpy().tolist() == [0, 0]
    assert optimizer.variables == []


def noisy():
    return optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1))


def test_transformations_with_random_keys(strategy, tmp_path):
    with strategy.scope():
        v = sg.Variable(np.ones(3, np.float32))
        optimizer = sg.train.Optimizer(noisy())
    scale = 1.0 / strategy.num_replicas_in_sync

    @sg.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(jnp.full(3, scale), v)]))

    def steps(count):
        for _ in range(count):
            step()
        return v.numpy()

    transformation, params = noisy(), [jnp.ones(3)]
    state = transformation.init(params)
    for _ in range(3):
        updates, state = transformation.update([jnp.ones(3)], state, params)
        params = optax.apply_updates(params, updates)
    checkpoint = sg.train.Checkpoint(v=v, optimizer=optimizer)
    first = steps(2)
    path = checkpoint.save(str(tmp_path / "noisy"))
    last = steps(1)
    if not isinstance(strategy, sg.distribute.ParameterServerStrategy):  # each shard draws there
        np.testing.assert_allclose(last, params[0], rtol=1e-5)
    checkpoint.restore(path)
    np.testing.assert_array_equal(v.numpy(), first)
    np.testing.assert_allclose(steps(1), last, rtol=1e-6)
