"""Gradients that are too large by the number of replicas: the warnings, and gradient_reduction="mean"."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.training import summed_means

keras = sg.keras
ROWS = np.arange(16, dtype=np.float32).reshape(8, 2)
MEANS = {
    "mean": jnp.mean,
    "divided_by_local_size": lambda losses: jnp.sum(losses) / losses.shape[0],
    "product": lambda losses: jnp.vdot(losses, losses) / losses.shape[0],
    "negative": lambda losses: -jnp.mean(-losses),
    "with_a_penalty": lambda losses: 0.5 + jnp.mean(losses.astype(jnp.bfloat16)),
    "in_a_jit": jax.jit(lambda losses: jnp.mean(losses)),
    "reduce_mean": sg.reduce_mean,
}
SHARES = {
    "compute_average_loss": sg.nn.compute_average_loss,
    "given_size": lambda losses: sg.nn.compute_average_loss(losses, global_batch_size=8),
    "divided_by_global_size": lambda losses: jnp.sum(losses) / 8,
    "sum": jnp.sum,
    "divided_twice": lambda losses: jnp.mean(losses) / 2,
    "tokens_by_global_size": lambda losses: jnp.sum(jnp.stack([losses, losses], 1)) / 8,
    "all_reduced": lambda losses: (
        sg.distribute.get_replica_context().all_reduce("MEAN", jnp.mean(losses)) / 2
    ),
}


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(summed_means, "_warned", set())


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(strategy, loss, *, tape=False, change=lambda g: g, **options):
    with strategy.scope():
        w = sg.Variable(np.ones(2, np.float32))
    optimizer = sg.train.Optimizer(optax.sgd(0.01), **options)

    def replica_step(x):
        if tape:
            with sg.GradientTape() as recorded:
                value = loss((x @ w.value()) ** 2)
            gradient = recorded.gradient(value, w)
        else:
            _, gradient = sg.value_and_grad(lambda: loss((x @ w.value()) ** 2), w)()
        optimizer.apply(change(gradient), w)

    batches = sg.data.Dataset.from_tensor_slices(ROWS).batch(8)
    step = sg.function(lambda batch: strategy.run(replica_step, args=(batch,)))
    for batch in strategy.experimental_distribute_dataset(batches):
        step(batch)
    return w.numpy()


@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS)
def test_a_mean_per_replica_is_noticed_once(strategy, caplog, loss):
    train(strategy, loss)
    train(strategy, loss)
    [warning] = caplog.messages
    assert "they are 2 times as large" in warning
    assert 'gradient_reduction="mean"' in warning


def test_a_mean_is_noticed_with_a_tape(strategy, caplog):
    train(strategy, jnp.mean, tape=True)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("loss", SHARES.values(), ids=SHARES)
def test_a_share_of_the_global_loss_is_right(strategy, caplog, loss):
    train(strategy, loss)
    assert caplog.messages == []


def test_no_warning_where_nothing_is_too_large(strategy, caplog):
    train(strategy, jnp.mean, gradient_reduction="mean")
    train(strategy, jnp.mean, change=lambda gradient: gradient / 2)
    train(sg.distribute.OneDeviceStrategy("CPU:0"), jnp.mean)
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["compute_average_loss", "given_size", "divided_by_global_size"])
def test_a_share_that_is_averaged_is_noticed_once(strategy, caplog, name):
    for _ in range(2):
        train(strategy, SHARES[name], gradient_reduction="mean")
    [warning] = caplog.messages
    assert "the gradients are 1/2 of those of the global batch" in warning


@pytest.mark.parametrize(
    "loss",
    [
        *MEANS.values(),
        lambda losses: 0.5 * jnp.mean(losses),
        lambda losses: jnp.mean(losses) / 2,
        lambda losses: jnp.mean(jnp.stack([losses, losses], 1)),
    ],
)
def test_means_that_are_averaged_are_right(strategy, caplog, loss):
    train(strategy, loss, gradient_reduction="mean")
    assert caplog.messages == []


def test_other_reductions_are_refused():
    with pytest.raises(ValueError, match=r'"sum" or "mean"'):
        sg.train.Optimizer(optax.sgd(0.1), gradient_reduction="max")


@pytest.mark.parametrize(("loss", "expected"), [(jnp.mean, 1), (sg.nn.compute_average_loss, 0)])
def test_a_mean_is_noticed_with_a_keras_optimizer(strategy, caplog, loss, expected):
    with strategy.scope():
        w = sg.Variable(np.ones(2, np.float32))
        optimizer = keras.optimizers.SGD(0.01)

    @sg.function
    def step(x):
        def replica_step(x):
            with sg.GradientTape() as tape:
                value = loss((x @ w.value()) ** 2)
            optimizer.apply_gradients([(tape.gradient(value, w), w)])

        strategy.run(replica_step, args=(x,))

    step(ROWS)
    warnings = [text for text in caplog.messages if "they are 2 times as large" in text]
    assert len(warnings) == expected
    assert "gradient_reduction" not in "".join(warnings)


def context():
    return sg.distribute.get_replica_context()


def summed(gradient):
    return context().all_reduce("SUM", gradient)


def clipped_by_norm(gradient):
    [clipped], _ = sg.clip_by_global_norm([summed(gradient)], 1.0)
    return clipped


def kept_if_finite(gradient):
    total = summed(gradient)
    return jnp.where(jnp.all(jnp.isfinite(total)), total, 0.0)


SUMMED_BEFORE = {
    "sum": summed,
    "half_as_many_bytes": lambda g: summed(g.astype(jnp.float16)).astype(jnp.float32) / 3,
    "in_a_structure": lambda g: summed({"a": jnp.ones(5), "b": g})["b"],
    "negative": lambda g: -2 * summed(-g),
    "clipped_by_norm": clipped_by_norm,
    "clipped": lambda g: jnp.clip(summed(g), -1, 1),
    "kept_if_finite": kept_if_finite,
}
SUMMED_ONCE = {
    "mean": lambda g: context().all_reduce("MEAN", g),
    "divided": lambda g: summed(g) / context().num_replicas_in_sync,
    "divided_before": lambda g: summed(g / 4),
    "mean_clipped": lambda g: jnp.clip(context().all_reduce("MEAN", g), -1, 1),
    "of_one_replica": lambda g: summed(g) * (context().replica_id_in_sync_group == 0),
    "shared_factor": lambda g: g / (1 + summed(jnp.sum(g**2))),
    "maximum": lambda g: context().all_reduce("MAX", g),
    "equal_without_a_sum": lambda g: jnp.ones_like(g),
    "sum_of_something_else": lambda g: summed(jnp.ones_like(g)) + 0 * g,
    "part": lambda g: jnp.concatenate([summed(g)[:1], g[1:]]),
}


@pytest.mark.parametrize("change", SUMMED_BEFORE.values(), ids=SUMMED_BEFORE)
def test_gradients_that_are_summed_twice_are_noticed_once(strategy, caplog, change):
    train(strategy, jnp.sum, change=change)
    train(strategy, jnp.sum, change=change)
    [warning] = caplog.messages
    assert "all-reduced over 2 replicas already" in warning
    assert "skip_gradients_aggregation=True" in warning


@pytest.mark.parametrize("change", SUMMED_ONCE.values(), ids=SUMMED_ONCE)
def test_gradients_that_are_rightly_equal_are_not(strategy, caplog, change):
    train(strategy, jnp.sum, change=change)
    assert caplog.messages == []


def test_a_mean_of_means_is_as_large_as_a_sum(strategy, caplog):
    train(strategy, jnp.mean, change=SUMMED_ONCE["mean"], tape=True)
    assert "all-reduced over 2 replicas already" in caplog.text


def test_no_warning_where_sums_are_not_summed_again(strategy, caplog):
    train(strategy, jnp.sum, change=summed, gradient_reduction="mean")
    train(sg.distribute.OneDeviceStrategy("CPU:0"), jnp.sum, change=summed)
    assert caplog.messages == []


def penalty_of_weights(w, losses):
    return sg.nn.compute_average_loss(losses) + sg.nn.scale_regularization_loss(w @ w)


def penalty_by_count(w, losses):
    count = summed(jnp.float32(losses.size))
    return jnp.sum(losses) / count + w @ w / count


def statistics_of_all(w, losses):
    return jnp.sum((w - summed(jnp.stack([losses.sum(), losses.max()]))) ** 2) / 8


def sum_of_all(w, losses):
    return summed(jnp.sum(losses)) / 2


@pytest.mark.parametrize(
    "loss", [penalty_of_weights, penalty_by_count, statistics_of_all, sum_of_all]
)
@pytest.mark.parametrize("tape", [True, False])
def test_losses_that_use_values_of_all_replicas_are_right(strategy, caplog, loss, tape):
    with strategy.scope():
        w = sg.Variable(np.ones(2, np.float32))
    optimizer = sg.train.Optimizer(optax.sgd(0.01))

    def replica_step(x):
        def forward():
            return loss(w.value(), (x @ w.value()) ** 2)

        if tape:
            with sg.GradientTape() as recorded:
                value = forward()
            gradient = recorded.gradient(value, w)
        else:
            _, gradient = sg.value_and_grad(forward, w)()
        optimizer.apply(gradient, w)

    sg.function(lambda x: strategy.run(replica_step, args=(x,)))(ROWS)
    assert caplog.messages == []


@pytest.mark.parametrize("skip", [False, True])
def test_sums_given_to_a_keras_optimizer_are_noticed(strategy, caplog, skip):
    with strategy.scope():
        w = sg.Variable(np.ones(2, np.float32))
        optimizer = keras.optimizers.SGD(0.01)

    @sg.function
    def step(x):
        def replica_step(x):
            with sg.GradientTape() as tape:
                value = jnp.sum((x @ w.value()) ** 2)
            [gradient] = summed([tape.gradient(value, w)])
            optimizer.apply_gradients([(gradient, w)], skip_gradients_aggregation=skip)

        strategy.run(replica_step, args=(x,))

    step(ROWS)
    assert ("all-reduced over 2 replicas already" in caplog.text) is not skip


def test_fit_averages_over_the_global_batch(strategy, caplog):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :1], batch_size=8, epochs=1, verbose=0)
    assert "times as large" not in caplog.text
