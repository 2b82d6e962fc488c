"""A loss averaged per replica and a summed gradient: the warning, and gradient_reduction="mean"."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.training import summed_means

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
    monkeypatch.setattr(summed_means, "_warned", [])


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


def test_other_reductions_are_refused():
    with pytest.raises(ValueError, match=r'"sum" or "mean"'):
        sg.train.Optimizer(optax.sgd(0.1), gradient_reduction="max")


@pytest.mark.parametrize(("loss", "expected"), [(jnp.mean, 1), (sg.nn.compute_average_loss, 0)])
def test_a_mean_is_noticed_with_a_keras_optimizer(strategy, caplog, loss, expected):
    with strategy.scope():
        w = sg.Variable(np.ones(2, np.float32))
        optimizer = sg.keras.optimizers.SGD(0.01)

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


def test_fit_averages_over_the_global_batch(strategy, caplog):
    with strategy.scope():
        model = sg.keras.Sequential([sg.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(ROWS, ROWS[:, :1], batch_size=8, epochs=1, verbose=0)
    assert "times as large" not in caplog.text
