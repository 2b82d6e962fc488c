"""Random words are those of ``jax.random``, from whichever element on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.partitioner.deferred_random_bits import random_words


@pytest.mark.parametrize(("start", "count"), [(0, 24), (5, 7), (11, 1), (6, 12)])
def test_words_are_those_of_jax(start, count):
    key = jax.random.key(1234567)
    expected = jax.random.bits(key, (24,), jnp.uint32)[start : start + count]
    words = random_words(jax.random.key_data(key), jnp.uint32(start), count)
    np.testing.assert_array_equal(words, expected)
