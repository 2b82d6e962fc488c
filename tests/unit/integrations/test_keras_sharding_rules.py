"""Keras models whose variables are sharded over the devices of a replica."""

import jax
import keras
import numpy as np
import pytest

import stratagem as sg

ex = sg.distribute.experimental
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(20, 16)).astype(np.float32)
Y = RANDOM.normal(size=(20, 8)).astype(np.float32)


class Layouts(keras.layers.Layer):
    """Notes the layouts of what passes through it, in compiled code."""

    def __init__(self, seen):
        super().__init__()
        self.note = seen.append  # not the list, which Keras would copy

    def call(self, x):
        if isinstance(x, jax.core.Tracer):
            jax.debug.inspect_array_sharding(x, callback=self.note)
        return x


def layout_map():
    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], [f"cpu:{i}" for i in range(8)])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = (None, "model")
    layouts[".*up/bias"] = ("model",)
    layouts["net/up/output"] = ("batch", "model")
    return layouts


def rules():
    return ex.ShardingRules(
        {"kernel": ("fsdp", "tensor"), "up/bias": ("tensor",)},
        axes={"fsdp": 2, "tensor": 2},
        activations={"net/up/output": ("data", "tensor")},
    )


def mirrored(num_devices, sharding_rules=None):
    return sg.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_devices)], sharding_rules=sharding_rules
    )


def make_model(strategy, seen):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((16,)),
                keras.layers.Dense(32, activation="relu", name="up"),
                Layouts(seen),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(8, name="down"),
            ],
            name="net",
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def fit(model):
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [*history.history["loss"], *history.history["mae"]], model.get_weights()


@pytest.fixture(scope="module")
def unsharded():
    return fit(make_model(mirrored(1), []))


@pytest.mark.parametrize(
    ("make", "shards"),
    [
        (layout_map, {"up/kernel": (16, 8), "up/bias": (8,), "down/kernel": (32, 2)}),
        pytest.param(
            rules,
            {"up/kernel": (8, 16), "up/bias": (16,), "down/kernel": (16, 4)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_fit_equals_unsharded_fit(unsharded, make, shards):
    seen = []
    model = make_model(mirrored(8, make()), seen)
    metrics, weights = fit(model)
    np.testing.assert_allclose(metrics, unsharded[0], rtol=1e-5)
    for got, expected in zip(weights, unsharded[1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    found = {
        v.path: v.twin.snapshot().addressable_shards[0].data.shape
        for v in (*model.variables, *model.optimizer.variables)
    }
    for name, shape in shards.items():
        slot = name.replace("/", "_")
        assert found[f"net/{name}"] == shape
        assert {
            s for path, s in found.items() if path.split("/")[-1].startswith(f"net_{slot}_")
        } == {shape}
    # The batch over the replicas and fsdp, and what the layer computes over the model's axis.
    assert seen[-1].shard_shape((8, 32)) == ((4, 8) if make is layout_map else (2, 16))


@pytest.mark.slow
def test_evaluate_predict_and_weights_in_files(tmp_path):
    model = make_model(mirrored(8, rules()), [])
    fit(model)
    path = str(tmp_path / "weights.weights.h5")
    model.save_weights(path)
    other = make_model(mirrored(2), [])
    other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    for call in (model.predict, model.evaluate):
        args = (X,) if call == model.predict else (X, Y)
        expected = getattr(other, call.__name__)(*args, batch_size=8, verbose=0)
        np.testing.assert_allclose(
            call(*args, batch_size=8, verbose=0), expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
def test_a_custom_loop_equals_the_unsharded_one():
    results = []
    for strategy in (mirrored(2), mirrored(8, rules())):
        seen = []
        model = make_model(strategy, seen)

        def step(x, y, model=model):
            with sg.GradientTape() as tape:
                loss = keras.ops.mean((model(x, training=True) - y) ** 2) / 2
            model.optimizer.apply(
                tape.gradient(loss, model.trainable_variables), model.trainable_variables
            )
            return loss

        @sg.function
        def train(x, y, strategy=strategy, step=step):
            return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

        batches = strategy.experimental_distribute_dataset(
            sg.data.Dataset.from_tensor_slices((X[:16], Y[:16])).batch(8)
        )
        losses = [float(train(x, y)) for x, y in batches]
        results.append([np.array(losses), *model.get_weights()])
    assert seen[-1].shard_shape((4, 32)) == (2, 16)
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_map_without_a_mesh_and_an_unknown_batch_axis():
    with pytest.raises(ValueError, match="needs a device mesh"):
        mirrored(2, keras.distribution.LayoutMap(None))
    with pytest.raises(ValueError, match="batch_dim_name must be an axis"):
        ex.ShardingRules.from_layout_map(layout_map(), "data")
