"""The stations of TensorFlow's tutorial "Save and load a model using a distribution strategy".

A SavedModel is TensorFlow's; here a model is saved as Keras saves it, and its values as a checkpoint.
"""

import numpy as np
import pytest

import stratagem as tf

ROWS = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
LABELS = (ROWS.sum(axis=1) > 0).astype(np.int32)


STRATEGIES = [
    pytest.param(lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), id="mirrored"),
    pytest.param(lambda: tf.distribute.OneDeviceStrategy("CPU:0"), id="one_device"),
    pytest.param(None, id="none"),
]


def get_model(strategy):
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((4,)),
                tf.keras.layers.Dense(8, activation="relu"),
                tf.keras.layers.Dense(2),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(0.05),
            metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
        )
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a model that was trained on two replicas, its predictions, and where it is saved."""
    model = get_model(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    dataset = tf.data.Dataset.from_tensor_slices((ROWS, LABELS)).batch(16)
    model.fit(dataset, epochs=4, verbose=0)
    path = tmp_path_factory.mktemp("saved") / "my_model.keras"
    model.save(path)
    return model, model.predict(ROWS, verbose=0), path


@pytest.mark.parametrize("make_strategy", STRATEGIES)
def test_a_loaded_model_predicts_and_trains_on(trained, make_strategy):
    _, predictions, path = trained
    if make_strategy is None:
        loaded = tf.keras.models.load_model(path)
    else:
        with make_strategy().scope():
            loaded = tf.keras.models.load_model(path)
    dataset = tf.data.Dataset.from_tensor_slices((ROWS, LABELS)).batch(16)
    np.testing.assert_allclose(loaded.predict(ROWS, verbose=0), predictions, rtol=1e-4, atol=1e-5)
    before, _ = loaded.evaluate(dataset, verbose=0)
    history = loaded.fit(dataset, epochs=2, verbose=0).history
    assert history["loss"][-1] < before


def test_inference_with_a_distributed_dataset(trained):
    """What the tutorial does with the function of a loaded SavedModel."""
    _, predictions, path = trained
    another_strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with another_strategy.scope():
        loaded = tf.keras.models.load_model(path)
    dataset = tf.data.Dataset.from_tensor_slices(ROWS).batch(16)

    @tf.function
    def infer(batch):
        return another_strategy.run(lambda rows: loaded(rows, training=False), args=(batch,))

    batches = another_strategy.experimental_distribute_dataset(dataset)
    results = [another_strategy.gather(infer(batch), axis=0).numpy() for batch in batches]
    np.testing.assert_allclose(np.concatenate(results), predictions, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")
def test_weights_and_checkpoints_go_into_models_elsewhere(trained, tmp_path):
    model, predictions, _ = trained
    model.save_weights(tmp_path / "model.weights.h5")
    with_weights = get_model(tf.distribute.OneDeviceStrategy("CPU:0"))
    with_weights.load_weights(tmp_path / "model.weights.h5")

    saved = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    restored = get_model(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"]))
    tf.train.Checkpoint(model=restored).restore(saved)
    for each in (with_weights, restored):
        np.testing.assert_allclose(each.predict(ROWS, verbose=0), predictions, rtol=1e-4, atol=1e-5)


class SubclassedModel(tf.keras.Model):
    output_name = "output_layer"

    def __init__(self):
        super().__init__()
        self._dense_layer = tf.keras.layers.Dense(5, name=self.output_name)

    def call(self, inputs):
        return self._dense_layer(inputs)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras' own
def test_a_model_of_ones_own_class_saves_weights(tmp_path):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = SubclassedModel()
        model(ROWS)
    model.save_weights(tmp_path / "own.weights.h5")
    other = SubclassedModel()
    other(ROWS)
    other.load_weights(tmp_path / "own.weights.h5")
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
