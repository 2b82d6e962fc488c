"""What programs written for ``tf.keras`` of Keras 2 use."""

import numpy as np
import pytest
import tensorboardX  # noqa: F401  (it sets an environment variable when it is imported)

import stratagem as tf

keras = tf.keras
X = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def model():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        made.compile(tf.keras.optimizers.legacy.SGD(0.1), loss="mse")
    return made


def test_names():
    assert keras.losses.Reduction.NONE == "none"
    assert keras.losses.MSE is keras.losses.mean_squared_error
    assert keras.layers.ThresholdedReLU.__name__ == "ThresholdedReLU"
    assert keras.optimizers.legacy.Adam is keras.optimizers.Adam
    with pytest.raises(AttributeError, match="has no attribute 'Reductoin'"):
        keras.losses.Reductoin  # noqa: B018
    assert not hasattr(keras.metrics, "__wrapped__")


def test_reset_states():
    metric = keras.metrics.Mean()
    metric.update_state(3.0)
    metric.reset_states()
    assert float(metric.result()) == 0.0


def test_tensorboard_writes_without_tensorflow(model, tmp_path):
    callback = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    model.fit(X, Y, validation_data=(X, Y), epochs=2, verbose=0, callbacks=[callback])
    for part in ("train", "validation"):
        (file,) = (tmp_path / part).iterdir()
        assert b"epoch_loss" in file.read_bytes()
    assert b"evaluation_loss_vs_iterations" in file.read_bytes()


def test_a_path_without_extension_is_a_directory(model, tmp_path):
    path = tmp_path / "model"
    tf.saved_model.save(model, path)
    model.save(path, options=tf.saved_model.SaveOptions("/job:localhost"))
    with pytest.raises(tf.errors.NotFoundError):
        tf.saved_model.load(path)  # not what was there before
    loaded = keras.models.load_model(path, options=tf.saved_model.LoadOptions())
    np.testing.assert_array_equal(loaded(X), model(X))
    model.save(path, save_format="tf")
    with pytest.raises(ValueError, match="extension"):
        model.save(tmp_path / "model.zip")
    with pytest.raises(tf.errors.InvalidArgumentError, match="'/job:ps'"):
        tf.saved_model.SaveOptions("/job:ps")


def test_tf_metrics_in_compile(tmp_path):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        metrics = [tf.metrics.SparseCategoricalAccuracy(), tf.metrics.Mean(name="unused")][:1]
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    history = model.fit(X, np.arange(8) % 2, verbose=0).history
    assert "sparse_categorical_accuracy" in history
    model.save(tmp_path / "model.keras")

    class Own(tf.metrics.Metric):
        pass

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"keras\.metrics\.Metric"):
        model.compile("sgd", "mse", metrics=[Own()])
