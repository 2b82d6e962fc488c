"""``keras.utils.experimental.DatasetCreator`` and ``keras.utils.SidecarEvaluator``."""

import numpy as np
import pytest
import tensorboardX  # noqa: F401  (it sets an environment variable when it is imported)

import stratagem as tf

keras = tf.keras
X = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(axis=1, keepdims=True)


class Model(keras.Model):
    """Built by its first batch, as most subclassed models are."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)


def trained(strategy, data, **options):
    with strategy.scope():
        model = Model()
        model.compile(keras.optimizers.Adam(0.1), "mse")
    history = model.fit(data, epochs=2, steps_per_epoch=2, verbose=0, **options)
    return model, history.history


def test_a_dataset_creator_feeds_fit_as_a_dataset_of_global_batches_does():
    contexts = []

    def dataset_fn(context):
        contexts.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return (
            tf.data.Dataset.from_tensor_slices((X, Y))
            .repeat()
            .batch(context.get_per_replica_batch_size(4))
        )

    creator = keras.utils.experimental.DatasetCreator(dataset_fn, tf.distribute.InputOptions())
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    model, history = trained(two, creator, validation_data=creator, validation_steps=2)
    _, alone = trained(tf.distribute.get_strategy(), creator, validation_data=(X, Y))
    assert int(model.optimizer.iterations) == 4
    np.testing.assert_allclose(history["loss"], alone["loss"], rtol=1e-6)
    np.testing.assert_allclose(history["val_loss"], alone["val_loss"], rtol=1e-6)
    assert contexts == [(1, 2), (1, 2), (1, 1)]


def test_what_a_dataset_creator_refuses():
    creator = keras.utils.experimental.DatasetCreator
    with pytest.raises(TypeError, match="must be a function of an InputContext, got a Dataset"):
        creator(tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match=r"tf\.distribute\.InputOptions, got a dict"):
        creator(len, {})
    model = Model()
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="DatasetCreator needs a number of ba"):
        model.fit(creator(lambda context: tf.data.Dataset.range(3)))


def test_a_sidecar_evaluates_each_checkpoint_of_a_model(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    model, _ = trained(strategy, data.repeat())
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    unbuilt = Model()
    unbuilt.compile(keras.optimizers.Adam(0.1), "mse")
    callback = keras.callbacks.TensorBoard(tmp_path / "logs")
    evaluator = keras.utils.SidecarEvaluator(
        unbuilt, data, tmp_path, max_evaluations=1, callbacks=[callback]
    )
    expected = model.evaluate(data, verbose=0)
    np.testing.assert_allclose(evaluator.start()[4]["loss"], expected, rtol=1e-6)
    (file,) = (tmp_path / "logs" / "validation").iterdir()
    assert b"evaluation_loss_vs_iterations" in file.read_bytes()
    with pytest.raises(TypeError, match="needs a compiled Keras model"):
        keras.utils.SidecarEvaluator(Model(), data, tmp_path)
