"""Functional models with functions of ``tf`` between their layers, as programs for Keras 2 write them."""

import pickle

import numpy as np
import pytest
from keras_training import keras, mirrored

import stratagem as tf

pytestmark = pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")
IDS = np.arange(12, dtype=np.int32).reshape(4, 3) % 7


def functional_model():
    ids = keras.Input((3,), dtype=tf.int32)
    embedded = keras.layers.Embedding(7, 5)(ids)
    mean = tf.reduce_mean(embedded, axis=1)
    both = tf.concat([mean, tf.nn.relu(mean)], axis=-1)
    rows = tf.reshape(tf.cast(both, tf.float32) * 2.0 + tf.math.square(both), [-1, 2, 5])
    return keras.Model(ids, [keras.layers.Dense(1)(both), rows])


def expected_rows(model):
    table = model.layers[1].get_weights()[0]
    mean = table[IDS].mean(1)
    both = np.concatenate([mean, np.maximum(mean, 0)], -1)
    return (both * 2 + both**2).reshape(-1, 2, 5)


def test_functions_of_symbolic_tensors_are_operations():
    model = functional_model()
    assert [output.shape for output in model.outputs] == [(None, 1), (None, 2, 5)]
    np.testing.assert_allclose(model(IDS)[1], expected_rows(model), rtol=1e-5)


def test_models_are_saved_with_them(tmp_path):
    model = functional_model()
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    for found, expected in zip(loaded(IDS), model(IDS), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_models_train_under_strategies():
    with mirrored(2).scope():
        inputs = keras.Input((3,))
        hidden = tf.nn.tanh(keras.layers.Dense(4)(inputs))
        outputs = keras.layers.Dense(1)(tf.concat([hidden, inputs], -1))
        model = keras.Model(inputs, tf.squeeze(outputs, axis=[-1]))
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    losses = model.fit(x, x.sum(1), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_functions_stay_what_they_are_for_values():
    assert tf.math.reduce_sum([1, 2]) == 3
    assert tf.reduce_sum.__doc__.startswith("Returns the sum")
    assert pickle.loads(pickle.dumps(tf.math.square)) is tf.math.square
    with pytest.raises(TypeError, match="unexpected keyword"):
        tf.reduce_sum([1.0], dimension=0)
    assert tf.function(lambda x: tf.stack([x, x]))(tf.constant(1.0)).shape == (2,)


def test_sizes_that_are_not_known_do_not_become_known():
    inputs = keras.Input((3,))
    assert tf.shape(inputs).shape == (2,)
    assert tf.reshape(inputs, [-1, 1]).shape == (None, 1)
    with pytest.raises(Exception, match="must be known"):
        tf.zeros(tf.shape(inputs))
