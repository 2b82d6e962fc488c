"""Optimizer steps on the servers, dense and by row."""

import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

TRANSFORMATIONS = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam on a schedule": optax.adam(optax.linear_schedule(0.1, 0.01, 5)),
    "averaged": optax.chain(optax.ema(0.9), optax.scale(-0.1)),
}


@pytest.fixture(params=TRANSFORMATIONS)
def transformation(request):
    return TRANSFORMATIONS[request.param]


def take_steps(transformation, value, gradients):
    """Returns the value and the state after steps of optax alone."""
    state = transformation.init(value)
    step = jax.jit(transformation.update)
    for gradient in gradients:
        updates, state = step(gradient, state, value)
        value = value + updates
    return np.asarray(value), state


def test_dense_steps_as_optax_takes_them(servers, transformation):
    start = np.arange(10, dtype=np.float32).reshape(5, 2)
    single, sharded = servers.variable(start), servers.sharded(start)
    optimizer = sg.train.Optimizer(transformation)
    gradients = [np.full((5, 2), k, np.float32) * start for k in (1, 2, -1)]
    for gradient in gradients:
        optimizer.apply_gradients([(gradient, single), (jnp.asarray(gradient), sharded)])
    expected, _ = take_steps(transformation, jnp.asarray(start), gradients)
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(sharded.numpy(), expected, rtol=1e-5)


def test_steps_on_rows_touch_these_rows_alone(servers, transformation):
    start = np.arange(40, dtype=np.float32).reshape(20, 2)
    table = servers.sharded(start, num_shards=2)
    optimizer = sg.train.Optimizer(transformation)
    rows = np.array([3, 19, 3, 0])
    gradients = [np.arange(8, dtype=np.float32).reshape(4, 2) + k for k in range(3)]
    for gradient in gradients:
        optimizer.apply_gradients([(sg.IndexedSlices(gradient, rows), table)])
    touched = np.array([0, 3, 19])
    combined = [np.stack([g[3], g[0] + g[2], g[1]]) for g in gradients]
    expected, _ = take_steps(transformation, jnp.asarray(start[touched]), combined)
    after = table.numpy()
    np.testing.assert_allclose(after[touched], expected, rtol=1e-5)
    untouched = np.setdiff1d(np.arange(20), touched)
    np.testing.assert_array_equal(after[untouched], start[untouched])


def test_dense_steps_and_steps_on_rows_share_their_state(servers):
    start = np.ones((6, 1), np.float32)
    variable = servers.variable(start)
    optimizer = sg.train.Optimizer(optax.sgd(0.1, momentum=0.5))
    every = np.arange(6)
    gradient = np.ones((6, 1), np.float32)
    optimizer.apply_gradients([(gradient, variable)])
    optimizer.apply_gradients([(sg.IndexedSlices(gradient, every), variable)])
    optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(variable.numpy(), 1 - 0.1 * (1 + 1.5 + 1.75), rtol=1e-6)


def test_state_that_begins_as_the_value(servers, monkeypatch):
    monkeypatch.setattr("stratagem._src.parameter_server.client.initial_value._BLOCK_BYTES", 8)
    start = np.arange(12, dtype=np.float32).reshape(6, 2)
    table = servers.variable(start)

    def init(value):
        return {"start": jnp.asarray(value), "ones": jnp.ones_like(value), "count": jnp.zeros(())}

    def update(gradient, state, value):
        return state["start"] + state["ones"] - value, {**state, "count": state["count"] + 1}

    optimizer = sg.train.Optimizer(optax.GradientTransformation(init, update))
    table.assign(np.zeros((6, 2)))
    table.assign(start)
    rows = sg.IndexedSlices(np.zeros((2, 2), np.float32), [1, 4])
    optimizer.apply_gradients([(rows, table)])
    np.testing.assert_array_equal(table.numpy()[[1, 4]], start[[1, 4]] + 1)
    np.testing.assert_array_equal(table.numpy()[[0, 5]], start[[0, 5]])


def test_two_optimizers_have_each_their_state(servers):
    variable = servers.variable([0.0])
    for optimizer in (sg.train.Optimizer(optax.sgd(1.0, momentum=1.0)) for _ in range(2)):
        optimizer.apply_gradients([(np.ones(1), variable)])
    assert variable.numpy() == [-2]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_element_types_are_kept(servers, dtype):
    with jax.enable_x64(dtype == "float64"):
        variable = servers.variable(np.ones((4, 2)), dtype=dtype)
    optimizer = sg.train.Optimizer(optax.adam(0.5))
    optimizer.apply_gradients([(np.ones((4, 2), dtype), variable)])
    optimizer.apply_gradients([(sg.IndexedSlices(np.ones((1, 2), dtype), [2]), variable)])
    value = variable.numpy()
    assert value.dtype == dtype
    np.testing.assert_allclose(value[:, 0].astype(float), [0.5, 0.5, 0, 0.5], atol=0.01)


def test_wrong_gradients_are_refused_and_change_nothing(servers):
    variable = servers.variable(np.zeros((4, 2)), name="w")
    optimizer = sg.train.Optimizer(optax.adam(0.5))
    with pytest.raises(
        sg.errors.ShapeMismatchError, match=r"got \(2,\) for 'w:0' of shape \(4, 2\)"
    ):
        optimizer.apply_gradients([(np.ones(2), variable)])
    with pytest.raises(sg.errors.ShapeMismatchError, match=r"\(3,\) and values of shape \(1, 2\)"):
        optimizer.apply_gradients([(sg.IndexedSlices(np.ones((1, 2)), [0, 1, 2]), variable)])
    assert not variable.numpy().any()


def test_an_optimizer_travels_as_one_object():
    optimizer = sg.train.Optimizer(optax.adam(0.1), name="adam")
    assert pickle.loads(cloudpickle.dumps(optimizer)) is optimizer
    pickled = cloudpickle.dumps(optimizer)
    identity = optimizer._on_servers.identity
    del optimizer
    there = pickle.loads(pickled)
    assert there._on_servers.identity == identity
    assert there.name == "adam"
    assert pickle.loads(pickled) is there
