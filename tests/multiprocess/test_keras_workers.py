"""Keras in a loop of one's own, in two real workers: they keep one model between them."""

import json

import numpy as np
import pytest
from task_functions import task

import stratagem as sg
from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]

GLOBAL_BATCH = 8


def batches():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, GLOBAL_BATCH, 3)).astype("float32")
    return list(zip(x, x.sum(2, keepdims=True), strict=True))


def train(mode):
    """Returns what this worker has of a model after two steps, and its first weights."""
    keras = sg.keras
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        # Not seeded: each worker draws its own, and all must take the leader's.
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        dropout = keras.layers.Dropout(0.5)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        mean = keras.metrics.Mean()
    first = [variable.numpy().tolist() for variable in model.weights]

    def replica_step(x, y):
        def loss_fn():
            return keras.ops.sum((model(x) - y) ** 2) / GLOBAL_BATCH

        loss, gradients = sg.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        mean.update_state(x)
        return loss, dropout(keras.ops.ones((32,)), training=True)

    def step(x, y):
        loss, dropped = strategy.run(replica_step, args=(x, y))
        return strategy.reduce("SUM", loss, axis=None), dropped

    step = sg.function(step) if mode == "compiled" else step
    size = GLOBAL_BATCH // 2
    losses, masks = [], []
    for batch in batches():
        args = strategy.experimental_distribute_values_from_function(
            lambda c, batch=batch: tuple(
                a[c.replica_id_in_sync_group * size :][:size] for a in batch
            )
        )
        loss, dropped = step(*args)
        losses.append(float(loss))
        masks.extend(np.asarray(m).tolist() for m in strategy.experimental_local_results(dropped))
    return {
        "worker": task()[1],
        "first": first,
        "last": [variable.numpy().tolist() for variable in model.weights],
        "slots": [variable.numpy().tolist() for variable in optimizer.variables],
        "seed": dropout.seed_generator.state.numpy().tolist(),
        "mean": float(mean.result()),
        "losses": losses,
        "masks": masks,
    }


def alone(first):
    """Returns weights and losses of the same training by hand, on the whole batch."""
    w1, b1, w2, b2 = map(np.array, first)
    slots = [np.zeros_like(w) for w in (w1, b1, w2, b2)]
    losses = []
    for x, y in batches():
        hidden = x @ w1 + b1
        error = hidden @ w2 + b2 - y
        losses.append((error**2).sum() / GLOBAL_BATCH)
        d_out = 2 * error / GLOBAL_BATCH
        d_hidden = d_out @ w2.T
        gradients = [x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_out, d_out.sum(0)]
        slots = [0.9 * m - 0.1 * g for m, g in zip(slots, gradients, strict=True)]
        w1, b1, w2, b2 = (w + m for w, m in zip((w1, b1, w2, b2), slots, strict=True))
    return [w1, b1, w2, b2], losses


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compiled", pytest.param("eager", marks=pytest.mark.slow)])
def test_workers_train_one_model(mode):
    one, other = run_cluster(train, 2, (mode,), devices_per_worker=1)
    masks = one.pop("masks"), other.pop("masks")
    assert len({json.dumps(mask) for worker in masks for mask in worker}) == 4
    assert (one.pop("worker"), other.pop("worker")) == (0, 1)
    assert one == other
    weights, losses = alone(one["first"])
    np.testing.assert_allclose(one["losses"], losses, rtol=1e-4)
    for trained, expected in zip(one["last"], weights, strict=True):
        np.testing.assert_allclose(trained, expected, rtol=1e-3, atol=1e-5)
    assert one["seed"][1] == 2
    assert one["mean"] == pytest.approx(np.mean([x for x, _ in batches()]), abs=1e-5)
    assert one["slots"][0] == 2


def save_alone_and_load(folder):
    """Returns the weights that this worker loads, and what it prints, after one worker has saved alone."""
    keras = sg.keras
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((GLOBAL_BATCH, 3), np.float32)
    path = f"{folder}/model.keras"
    worker = task()[1]
    saving = [keras.callbacks.ModelCheckpoint(path)] if worker == 0 else []
    model.fit(x, x[:, :1], batch_size=GLOBAL_BATCH, verbose=0, callbacks=saving)
    strategy.reduce("SUM", 1.0, axis=None)  # the file is there
    with strategy.scope():
        loaded = keras.models.load_model(path)
        if worker == 0:
            model.save(f"{folder}/again.keras")
    printed = f"{folder}/printed{worker}"
    sg.print("step", loaded.optimizer.iterations, output_stream=f"file://{printed}")
    with open(printed) as file:
        return [weight.tolist() for weight in loaded.get_weights()], file.read()


@pytest.mark.slow
def test_workers_load_what_one_of_them_saved(tmp_path):
    one, other = run_cluster(save_alone_and_load, 2, (str(tmp_path),), devices_per_worker=1)
    assert one == other
    assert one[1] == "step 1\n"
