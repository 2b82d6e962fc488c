"""The mean of contributions."""

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.control_plane.island_server.island_server import average


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32, np.float64])
def test_means(dtype):
    rng = np.random.default_rng(0)
    parts = [[rng.normal(size=(3, 2)).astype(dtype), np.asarray(i, dtype)] for i in range(3)]
    wide = np.float64 if np.dtype(dtype).itemsize > 4 else np.float32
    means = average(parts)
    for number, mean in enumerate(means):
        assert mean.dtype == np.dtype(dtype)
        expected = sum(part[number].astype(wide) for part in parts) / wide(3)
        np.testing.assert_array_equal(mean, expected.astype(dtype))


def test_contributions_stay_as_they_are():
    parts = [[np.float32([1])], [np.float32([3])]]
    average(parts)
    assert parts[0][0] == 1


def test_the_mean_of_one_has_its_bits():
    [mean] = average([[np.float32([0.1])]])
    assert mean == np.float32(0.1)
