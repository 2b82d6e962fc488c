"""NumPy draws the numbers of ``jax.random``, bit for bit."""

import jax
import numpy as np
import pytest

from stratagem._src.jax_compat.host_random import (
    KNOWN_ROUNDING,
    host_normal,
    host_truncated_normal,
    host_uniform,
)

SHAPE = (3, 7, 821)  # more elements than one chunk has
KEYS = [np.array(key, np.uint32) for key in ((0, 0), (7, 0), (2**32 - 1, 2**31))]


def assert_same_bits(made, expected):
    if made is None and not KNOWN_ROUNDING:
        return
    np.testing.assert_array_equal(made.view(np.uint32), np.asarray(expected).view(np.uint32))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_numbers_are_those_of_jax(key):
    for low, high in ((-0.05, 0.05), (0, 1), (-0.1767766952966369, 0.1767766952966369), (0, 3e-6)):
        drawn = jax.random.uniform(key, SHAPE, minval=low, maxval=high)
        assert_same_bits(host_uniform(key, SHAPE, low, high), drawn)
    assert_same_bits(host_normal(key, SHAPE), jax.random.normal(key, SHAPE))
    drawn = jax.random.truncated_normal(key, -2.0, 2.0, SHAPE)
    assert_same_bits(host_truncated_normal(key, SHAPE, 2.0), drawn)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_numbers_of_random_shapes_are_those_of_jax(seed):
    random = np.random.default_rng(seed)
    shape = tuple(map(int, random.integers(1, 60, size=random.integers(1, 4))))
    key = random.integers(0, 2**32, size=2, dtype=np.uint32)
    bound, cut = 10.0 ** random.uniform(-6, 2), float(random.uniform(0.5, 3))
    drawn = jax.random.uniform(key, shape, minval=-bound, maxval=bound)
    assert_same_bits(host_uniform(key, shape, -bound, bound), drawn)
    assert_same_bits(host_normal(key, shape), jax.random.normal(key, shape))
    drawn = jax.random.truncated_normal(key, -cut, cut, shape)
    assert_same_bits(host_truncated_normal(key, shape, cut), drawn)


def test_what_numpy_might_round_otherwise_is_left_to_jax():
    key = KEYS[1]
    assert host_uniform(key, (3,), 0.25, 1.0) is None
    assert host_uniform(key, (), 0.0, 1.0) is None
    assert host_uniform(key, (0, 3), 0.0, 1.0) is None
    assert host_uniform(key, (1 << 12, 1 << 11), 0.0, 1.0) is None
    assert host_uniform(np.zeros(4, np.uint32), (3,), 0.0, 1.0) is None


@pytest.mark.parametrize(
    ("setting", "value"),
    [("jax_threefry_partitionable", False), ("jax_default_prng_impl", "rbg")],
)
def test_another_generator_is_left_to_jax(setting, value):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        assert host_uniform(KEYS[1], (3,), -1, 1) is None
    finally:
        jax.config.update(setting, before)
    assert host_uniform(KEYS[1], (3,), -1, 1) is not None
