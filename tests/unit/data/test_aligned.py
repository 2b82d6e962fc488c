"""Large rows begin where JAX takes memory over without a copy, and hold what they should."""

import jax
import numpy as np
import pytest

from stratagem._src.data.plan.aligned_arrays import copy_of, take_rows
from stratagem.data import Dataset

LARGE = np.arange(1000 * 100, dtype=np.float32).reshape(1000, 100)


@pytest.mark.parametrize(
    "array",
    [
        LARGE,
        LARGE[:, ::2],
        LARGE[:4],
        LARGE[:, 0],
        LARGE[:0],
        LARGE.astype("S20"),
        LARGE.astype(object),
        LARGE.astype("M8[s]"),
        LARGE.reshape(1000, 5, 20),
        LARGE.reshape(1000, 100, 1)[:, :0],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_rows_and_copies_equal_those_of_numpy(array):
    indices = np.random.default_rng(0).permutation(len(array))

    rows, copy = take_rows(array, indices), copy_of(array)

    np.testing.assert_array_equal(rows, array[indices])
    np.testing.assert_array_equal(copy, array)
    assert rows.dtype == copy.dtype == array.dtype
    assert rows.flags.writeable
    assert copy.flags.writeable
    assert not np.shares_memory(copy, array)


def test_jax_takes_over_the_memory_of_large_batches():
    dataset = Dataset.from_tensor_slices(LARGE).batch(1000)
    sources = {"batch": next(iter(dataset)), "one element": next(iter(Dataset.from_tensors(LARGE)))}

    for name, array in sources.items():
        placed = jax.device_put(array, jax.devices("cpu")[0])
        assert placed.unsafe_buffer_pointer() == array.ctypes.data, name
