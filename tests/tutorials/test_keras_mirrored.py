"""The stations of TensorFlow's tutorial "Distributed training with Keras".

The TensorBoard callback needs TensorFlow; a CSVLogger stands in its place.
"""

import csv
import os

import numpy as np
import pytest

import stratagem as tf


def pictures(count, seed):
    """Returns pictures from 0 to 255 of which a bright column says what they show, and what."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    pixels = rng.integers(0, 80, (count, 8, 8, 1), dtype=np.uint8)
    for picture, label in zip(pixels, labels, strict=True):
        picture[:, 2 * label : 2 * label + 2] += 150
    return pixels, labels


def scale(image, label):
    return image.astype("float32") / 255, label


def learning_rate_of(epoch):
    return 2e-2 if epoch < 3 else 1e-3


class PrintRate(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.slow
def test_fit_with_callbacks_and_saved_models(strategy, tmp_path):
    tf.keras.utils.set_random_seed(1)
    batch_size = 16 * strategy.num_replicas_in_sync
    train = tf.data.Dataset.from_tensor_slices(pictures(130, seed=0))
    train_dataset = train.map(scale).cache().shuffle(130, seed=1).batch(batch_size)
    test = tf.data.Dataset.from_tensor_slices(pictures(50, seed=1))
    eval_dataset = test.map(scale).batch(batch_size)

    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((8, 8, 1)),
                tf.keras.layers.Conv2D(8, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(16, activation="relu"),
                tf.keras.layers.Dense(4),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
            metrics=["accuracy"],
        )

    rates = PrintRate()
    callbacks = [
        tf.keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        tf.keras.callbacks.ModelCheckpoint(
            filepath=os.path.join(tmp_path, "ckpt_{epoch}.weights.h5"), save_weights_only=True
        ),
        tf.keras.callbacks.LearningRateScheduler(learning_rate_of),
        rates,
    ]
    history = model.fit(train_dataset, epochs=4, callbacks=callbacks, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert rates.rates == pytest.approx([2e-2, 2e-2, 2e-2, 1e-3])
    with open(tmp_path / "log.csv") as log:
        logged = [float(row["loss"]) for row in csv.DictReader(log)]
    assert logged == pytest.approx(history["loss"])
    assert sorted(path.name for path in tmp_path.glob("ckpt*")) == [
        f"ckpt_{epoch}.weights.h5" for epoch in range(1, 5)
    ]

    trained = model.get_weights()
    model.load_weights(tmp_path / "ckpt_1.weights.h5")
    assert not np.allclose(model.get_weights()[-2], trained[-2])
    model.load_weights(tmp_path / "ckpt_4.weights.h5")
    for loaded, expected in zip(model.get_weights(), trained, strict=True):
        np.testing.assert_array_equal(loaded, expected)
    eval_loss, eval_accuracy = model.evaluate(eval_dataset, verbose=0)
    assert eval_accuracy == 1.0

    path = tmp_path / "my_model.keras"
    model.save(path)
    unreplicated = tf.keras.models.load_model(path)
    assert unreplicated.evaluate(eval_dataset, verbose=0) == pytest.approx(
        [eval_loss, eval_accuracy], rel=1e-4
    )
    with strategy.scope():
        replicated = tf.keras.models.load_model(path)
    assert replicated.evaluate(eval_dataset, verbose=0) == pytest.approx(
        [eval_loss, eval_accuracy], rel=1e-4
    )
    # It goes on where it was: the optimizer's state has come along.
    assert int(replicated.optimizer.iterations) == int(model.optimizer.iterations)
    replicated.fit(train_dataset, epochs=1, verbose=0)
