"""Traced arrays that follow from constants alone have a value during the trace."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf
from stratagem._src.jax_compat.folded_value import folded_value

TABLE = np.array([3, 5, 7], np.int32)


def folded(make, *args):
    """Returns the folded value of what ``make`` computes while it is traced."""
    found = []

    def traced(*args):
        result = make(*args)
        assert isinstance(result, jax.core.Tracer)
        found.append(folded_value(result))
        return result

    jax.make_jaxpr(traced)(*args)
    return found[0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: jnp.repeat(jnp.asarray(3), 2), [3, 3]),
        (lambda: jnp.arange(4)[1:] * 2 + jnp.int32(1), [3, 5, 7]),
        (lambda: jnp.stack([jnp.sum(jnp.asarray(TABLE)), jnp.prod(jnp.arange(1, 4))]), [15, 6]),
        (lambda: jax.jit(lambda a: jnp.maximum(a, 4))(jnp.asarray(TABLE)), [4, 5, 7]),
        (lambda: jnp.split(jnp.arange(6), 3)[1], [2, 3]),
        (
            lambda: jnp.concatenate([jnp.zeros((1, 2), int), jnp.ones((1, 2), int)]),
            [[0, 0], [1, 1]],
        ),
    ],
)
def test_what_is_computed_of_constants(make, expected):
    np.testing.assert_array_equal(folded(make), expected)
    np.testing.assert_array_equal(folded(lambda x: make(), jnp.ones(3)), expected)
    inner = []
    jax.make_jaxpr(lambda: jax.jit(lambda: inner.append(folded_value(make())))())()
    np.testing.assert_array_equal(inner[0], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: jnp.arange(3) + x[0],
        lambda x: jnp.zeros(1 << 14) + 1,
        lambda x: functools.reduce(lambda a, _: a + 1, range(1000), jnp.arange(2)),
        lambda x: jax.pure_callback(lambda: np.int32(1), jax.ShapeDtypeStruct((), np.int32)),
        lambda x: jax.random.bits(jax.random.key(0)) + jnp.uint32(1),
    ],
)
def test_what_has_no_value(make):
    assert folded(make, jnp.ones(3, int)) is None


def test_known_arrays():
    assert folded_value(jnp.asarray(3)) == 3
    np.testing.assert_array_equal(folded_value(TABLE), TABLE)


def test_sizes_of_tensorflow_s_functions():
    @tf.function
    def compute(x, size):
        parts = tf.split(x, tf.repeat(2, tf.shape(x)[1] // 2), axis=-1)
        padded = tf.pad(parts[1], tf.stack([[tf.constant(1), 0], [0, tf.reduce_prod([1, 2])]]))
        with pytest.raises(tf.errors.TracedValueError, match="must be known"):
            tf.zeros(size + tf.constant(1))
        return padded + tf.cast(tf.range(tf.cast(4.0, tf.int32)), tf.float32)

    @tf.function
    def crop(x, border):
        size = tf.maximum(border, 0)
        return x[tf.math.maximum(-border, 0) : tf.shape(x)[0] - size, tf.add(1, size) :]

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(crop(x, 1), x[:2, 2:])
    assert isinstance(tf.maximum(1, 2), tf.Tensor)

    result = compute(np.arange(8, dtype=np.float32).reshape(2, 4), tf.constant(2))
    np.testing.assert_array_equal(result, [[0, 1, 2, 3], [2, 4, 2, 3], [6, 8, 2, 3]])
