"""Hybrid sharding (HSDP): sharded over the devices of a worker, replicated between workers."""

import numpy as np
import pytest

from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("mark")]


def train(num_workers, devices_per_worker, folder, with_keras):
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import stratagem as sg

    ex = sg.distribute.experimental
    rules = ex.ShardingRules({"kernel": ("fsdp", None)}, axes={"fsdp": devices_per_worker})
    strategy = (
        sg.distribute.MultiWorkerMirroredStrategy(sharding_rules=rules)
        if num_workers > 1
        else sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    )
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 6)).astype(np.float32)
    with strategy.scope():
        kernel = sg.Variable(random.normal(size=(6, 4)).astype(np.float32), name="kernel")
    optimizer = sg.train.Optimizer(optax.adam(0.1))

    @sg.function
    def step(x):
        def replica(x):
            loss = lambda: jnp.sum(jnp.tanh(x @ kernel) ** 2)  # noqa: E731
            value, gradient = sg.value_and_grad(loss, kernel)()
            optimizer.apply(gradient, kernel)
            return value

        return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    def rows(context):
        return np.split(x, 2)[context.replica_id_in_sync_group]

    losses = [
        float(step(strategy.experimental_distribute_values_from_function(rows))) for _ in "ab"
    ]
    kernel.assign_add(np.ones((6, 4), np.float32))
    checkpoint = sg.train.Checkpoint(kernel=kernel, optimizer=optimizer)
    path = checkpoint.save(folder)
    before = kernel.numpy()
    kernel.assign(np.zeros((6, 4), np.float32))
    checkpoint.restore(path)
    np.testing.assert_array_equal(kernel.numpy(), before)
    results = [losses, before.tolist()]
    shard = kernel.snapshot().addressable_shards[0].data.shape
    assert shard == ((3, 4) if num_workers > 1 else (6, 4)), shard
    if with_keras:
        import keras

        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, name="up")])
            model.compile("adam", "mse")
        data = sg.data.Dataset.from_tensor_slices((x, x[:, :4])).batch(4)
        history = model.fit(data, epochs=2, verbose=0)
        results += [history.history["loss"], model.get_weights()[0].tolist()]
        results.append(np.asarray(jax.device_get(model.predict(x, verbose=0))).tolist())
    return results


@pytest.mark.parametrize("with_keras", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_workers_of_two_devices_equal_unsharded_training(tmp_path, with_keras):
    [expected] = run_cluster(
        train, workers=1, devices_per_worker=2, args=(1, 2, str(tmp_path / "one"), with_keras)
    )
    results = run_cluster(
        train, workers=2, devices_per_worker=2, args=(2, 2, str(tmp_path / "two"), with_keras)
    )
    for result in results:
        for got, wanted in zip(result, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
