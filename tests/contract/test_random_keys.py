"""Typed keys of ``jax.random`` are values like any other."""

import jax
import numpy as np
import pytest
from flax import nnx

import stratagem as sg

pytestmark = pytest.mark.about("calls")


def make_keys(strategy):
    root = jax.random.key(7)
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jax.random.fold_in(root, ctx.replica_id_in_sync_group)
    )


def draws_of(strategy, key_of):
    ids = range(strategy.num_replicas_in_sync)
    return [np.asarray(jax.random.uniform(key_of(jax.random.key(7), i), (3,))) for i in ids]


def draw(key):
    return jax.random.uniform(key, (3,))


def test_every_replica_draws_with_its_own_key(strategy, execute, local):
    expected = draws_of(strategy, jax.random.fold_in)
    result = execute(lambda keys: strategy.run(draw, args=(keys,)), make_keys(strategy))
    np.testing.assert_array_equal([np.asarray(part) for part in local(result)], expected)


def test_keys_that_are_captured(strategy, execute, local):
    keys = make_keys(strategy)
    expected = draws_of(strategy, jax.random.fold_in)
    result = execute(lambda: strategy.run(draw, args=(keys,)))
    np.testing.assert_array_equal([np.asarray(part) for part in local(result)], expected)


def test_keys_go_round_from_step_to_step(strategy, execute, local):
    def step(key):
        mine, following = jax.random.split(key)
        return draw(mine), following

    keys, seen = make_keys(strategy), []
    for _ in range(2):
        drawn, keys = execute(lambda keys: strategy.run(step, args=(keys,)), keys)
        seen.append(np.asarray(local(drawn)[0]))
    key = jax.random.fold_in(jax.random.key(7), 0)
    for drawn in seen:
        mine, key = jax.random.split(key)
        np.testing.assert_array_equal(drawn, draw(mine))


def test_keys_are_gathered(strategy, execute):
    split = execute(
        lambda keys: strategy.gather(
            strategy.run(lambda key: jax.random.split(key, 2), args=(keys,)), axis=0
        ),
        make_keys(strategy),
    )
    assert split.shape == (2 * strategy.num_replicas_in_sync,)
    assert jax.numpy.issubdtype(split.dtype, jax.dtypes.prng_key)


def test_keys_cannot_be_added_up(strategy, execute):
    if strategy.num_replicas_in_sync == 1:
        pytest.skip("one key needs no combining")
    with pytest.raises(TypeError, match=r"Keys of jax\.random cannot be reduced"):
        execute(lambda keys: strategy.reduce("SUM", keys, axis=None), make_keys(strategy))


def test_a_model_with_dropout_keeps_its_own_streams(strategy, execute, local):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(4, 4, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.linear(x))

    definition, initial = nnx.split(Model(nnx.Rngs(0)))

    def step(state, x):
        model = nnx.merge(definition, state)
        return model(x), nnx.state(model)

    x = np.ones((2, 4), np.float32)
    state, seen = initial, []
    for _ in range(2):
        y, state = execute(lambda s: strategy.run(step, args=(s, x)), state)
        seen.append(np.asarray(local(y)[0]))
    expected, following = step(initial, x)
    np.testing.assert_allclose(seen[0], expected, rtol=1e-5)
    np.testing.assert_allclose(seen[1], step(following, x)[0], rtol=1e-5)
    assert not np.array_equal(seen[0], seen[1])


def test_a_variable_of_keys_says_what_to_keep_instead():
    with pytest.raises(ValueError, match=r"jax\.random\.key_data"):
        sg.Variable(jax.random.key(0))
