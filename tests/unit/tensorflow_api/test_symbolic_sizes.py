"""Sizes that are not known while a function is traced: ``jax.export``, and shapes that Keras infers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf

CASES = {
    "item": (lambda x: tf.reshape(x, (tf.shape(x)[0], -1)), ("b", 12)),
    "product": (lambda x: tf.reshape(x, [-1, tf.shape(x)[1] * tf.shape(x)[2]]), ("b", 12)),
    "attribute": (lambda x: tf.reshape(x, (x.shape[0], 12)), ("b", 12)),
    "arithmetic": (lambda x: tf.reshape(x, (tf.shape(x)[0] * 2, 6)), ("2*b", 6)),
    "concat": (lambda x: tf.reshape(x, tf.concat([tf.shape(x)[:1], [12]], 0)), ("b", 12)),
    "stack": (lambda x: tf.reshape(x, tf.stack([tf.shape(x)[0], 12])), ("b", 12)),
    "zeros": (lambda x: tf.zeros((tf.shape(x)[0], 2)), ("b", 2)),
    "zeros of a shape": (lambda x: tf.zeros(tf.shape(x)), ("b", 4, 3)),
    "fill": (lambda x: tf.fill([tf.shape(x)[0], 2], 3.0), ("b", 2)),
    "range": (lambda x: tf.cast(tf.range(tf.shape(x)[0]), tf.float32), ("b",)),
    "broadcast": (lambda x: tf.broadcast_to(tf.ones((1, 3)), (tf.shape(x)[0], 3)), ("b", 3)),
    "tile": (lambda x: tf.tile(tf.ones((1, 3)), [tf.shape(x)[0], 1]), ("b", 3)),
    "cast": (lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32), ()),
    "cast of known sizes": (lambda x: tf.cast(tf.shape(x)[1:3], tf.float32), (2,)),
    "cast of a shape": (lambda x: tf.cast(tf.shape(x), tf.float32), (3,)),
    "size": (lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32), ()),
    "mean of integers": (lambda x: tf.reduce_mean(tf.cast(x, tf.int32), 0), (4, 3)),
    "ensure_shape": (lambda x: tf.ensure_shape(x, [None, 4, 3]), ("b", 4, 3)),
    "slice": (lambda x: tf.slice(x, [0, 0, 0], [tf.shape(x)[0], 2, 3]), ("b", 2, 3)),
    "eye": (lambda x: tf.eye(3, batch_shape=[tf.shape(x)[0]]), ("b", 3, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_take_symbolic_sizes(case):
    function, expected = CASES[case]
    [size] = jax.export.symbolic_shape("b")
    result = jax.eval_shape(function, jax.ShapeDtypeStruct((size, 4, 3), jnp.float32))
    assert tuple(map(str, result.shape)) == tuple(map(str, expected))


def test_a_symbolic_shape_broadcasts_with_another():
    [size] = jax.export.symbolic_shape("b")
    found = tf.broadcast_dynamic_shape([size, 1], [1, 3])
    assert list(map(str, found)) == ["b", "3"]


def test_strings_are_no_sizes():
    words = tf.constant([["a", "b"], ["c", "d"]])
    assert words[0].numpy().tolist() == [b"a", b"b"]
    assert tf.concat([words, words], 0).shape == (4, 2)


class Sampling(tf.keras.layers.Layer):
    def call(self, mean):
        return mean + tf.random.normal((tf.shape(mean)[0], tf.shape(mean)[1]))


def test_a_functional_keras_model_draws_and_asks_for_shapes():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    tf.random.set_seed(7)
    expected = tf.random.normal((2, 3))
    tf.random.set_seed(7)
    with strategy.scope():
        inputs = tf.keras.Input((3,))
        hidden = tf.keras.layers.Lambda(lambda x: tf.reshape(x, (-1, tf.shape(x)[1], 1)))(inputs)
        model = tf.keras.Model(inputs, Sampling()(tf.keras.layers.Flatten()(hidden)))
    assert model.output_shape == (None, 3)
    # Inferring shapes has drawn nothing, and the numbers combine with arrays on all devices.
    np.testing.assert_allclose(model(np.zeros((2, 3), np.float32)), expected)


def test_numbers_of_no_replica_combine_with_mirrored_arrays():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])
    assert (v.read_value() + tf.random.normal([2])).shape == (2,)
