"""Rounding errors of gradients that are fed back into the next step."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.core.errors import InvalidArgumentError

STEPS = 100
TINY = np.float32(2.0**-12)
GRADIENTS = np.float32([1 + TINY, 3 - 5 * TINY, 1e-3, 0.0])
"""Rounded to bfloat16, the first two lose what a hundred steps add up to."""


@pytest.fixture
def make_strategy():
    def make(dtype):
        options = sg.distribute.experimental.CommunicationOptions(dtype=dtype)
        strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        assert strategy.num_replicas_in_sync > 1
        return strategy

    return make


def train(strategy, *, steps=STEPS, compiled=True, gradients=GRADIENTS, **how):
    """Returns the sum of all updates, by the number of replicas, and the optimizer and its variable."""
    with strategy.scope():
        weight = sg.Variable(np.zeros(len(gradients), np.float32))
        optimizer = sg.train.Optimizer(optax.sgd(1.0), **how)

    def replica_fn():
        optimizer.apply_gradients([(jnp.asarray(gradients), weight)])

    step = sg.function(lambda: strategy.run(replica_fn))
    for _ in range(steps):
        step() if compiled else strategy.run(replica_fn)
    return -np.asarray(weight) / strategy.num_replicas_in_sync, optimizer, weight


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_without_feedback_sums_drift_and_with_it_they_do_not(make_strategy, dtype):
    gradients = np.float32([1 + 2.0**-15, 3 - 5 * 2.0**-15]) if dtype == "float16" else GRADIENTS
    drift = {
        feedback: np.abs(
            train(make_strategy(dtype), gradients=gradients, error_feedback=feedback)[0]
            - STEPS * gradients
        ).max()
        for feedback in (False, True)
    }
    # What is still to be fed back is at most one rounding error of one step.
    assert drift[True] <= 3 * 2.0 ** (-9 if dtype == "bfloat16" else -12)
    assert drift[False] > 5 * drift[True]


@pytest.mark.parametrize("how", [{"compiled": False}, {"gradient_accumulation_steps": 3}])
def test_other_ways_to_step(make_strategy, how):
    updates = 12
    steps = updates * how.get("gradient_accumulation_steps", 1)
    fed_back, _, _ = train(make_strategy("bfloat16"), steps=steps, error_feedback=True, **how)
    lost, _, _ = train(make_strategy("bfloat16"), steps=steps, **how)
    errors = [np.abs(total - updates * GRADIENTS).max() for total in (fed_back, lost)]
    assert errors[0] <= 2.0**-6 / 1.5  # one rounding error of 9, by the number of calls
    assert errors[1] > 2 * errors[0]


def test_gradients_that_are_not_rounded_are_as_without_feedback(make_strategy):
    with_feedback, _, _ = train(make_strategy(None), steps=3, error_feedback=True)
    without, _, _ = train(make_strategy(None), steps=3)
    np.testing.assert_array_equal(with_feedback, without)


def test_rounding_errors_are_saved_with_the_optimizer(make_strategy, tmp_path):
    strategy = make_strategy("bfloat16")
    _, optimizer, weight = train(strategy, steps=7, error_feedback=True)
    path = sg.train.Checkpoint(optimizer=optimizer, weight=weight).save(tmp_path / "saved")
    [rest] = [v for v in optimizer.variables if "accumulated" in v.name and v.shape]
    errors = np.asarray(rest.read_value())
    assert np.abs(errors).max() > 0
    _, other, value = train(strategy, steps=1, error_feedback=True)
    sg.train.Checkpoint(optimizer=other, weight=value).restore(path).assert_consumed()
    [restored] = [v for v in other.variables if "accumulated" in v.name and v.shape]
    np.testing.assert_allclose(np.asarray(restored.read_value()), errors, rtol=1e-6)


def test_an_infinite_gradient_leaves_no_error_behind(make_strategy):
    strategy = make_strategy("float16")
    with strategy.scope():
        weight = sg.Variable(np.zeros(2, np.float32))
        optimizer = sg.train.Optimizer(optax.sgd(1.0), error_feedback=True)

    @sg.function
    def step(gradient):
        strategy.run(lambda: optimizer.apply_gradients([(gradient, weight)]))

    step(np.float32([1e6, 1.0]))  # infinite in float16
    weight.assign(np.zeros(2, np.float32))
    step(np.float32([1.0, 1.0]))
    np.testing.assert_array_equal(weight, np.full(2, -strategy.num_replicas_in_sync))


def test_errors_of_sums_are_not_fed_back(make_strategy):
    """Sums of different gradients are rounded too: the drift is smaller, not zero."""
    strategy = make_strategy("bfloat16")
    rng = np.random.default_rng(0)
    given = rng.standard_normal((strategy.num_replicas_in_sync, 500), np.float32)
    drift = []
    for feedback in (False, True):
        with strategy.scope():
            weight = sg.Variable(np.zeros(500, np.float32))
            optimizer = sg.train.Optimizer(optax.sgd(1.0), error_feedback=feedback)

        def replica_fn():
            index = sg.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply_gradients([(jnp.asarray(given)[index], weight)])  # noqa: B023

        step = sg.function(lambda: strategy.run(replica_fn))
        for _ in range(STEPS):
            step()
        drift.append(np.linalg.norm(-np.asarray(weight) - STEPS * given.sum(0)))
    assert 0 < drift[1] < 0.7 * drift[0]


@pytest.mark.parametrize("how", [{"shard_state": True}, {"loss_scale": "dynamic"}])
def test_what_it_does_not_go_with(how):
    with pytest.raises(InvalidArgumentError, match="error_feedback must be used without"):
        sg.train.Optimizer(optax.sgd(1.0), error_feedback=True, **how)
