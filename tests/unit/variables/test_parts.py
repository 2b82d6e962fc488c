"""How arrays are divided, by table."""

import numpy as np
import pytest

from stratagem._src.variables.shard_layout import Parts


@pytest.mark.parametrize(
    ("shape", "count", "dim", "part_shape", "padding"),
    [
        ((8,), 2, 0, (4,), 0),
        ((5,), 2, 0, (3,), 1),
        ((2,), 4, 0, (1,), 2),
        ((6, 4), 2, 0, (3, 4), 0),
        ((5, 4), 2, 1, (5, 2), 0),  # divides without padding
        ((5, 3), 2, 0, (3, 3), 1),  # 1 of 5 is less than 1 of 3
        ((4, 6, 6), 2, 1, (4, 3, 6), 0),  # a stack of layers: each is divided
        ((4, 3, 6), 2, 2, (4, 3, 3), 0),
        ((4, 3, 5), 2, 0, (2, 3, 5), 0),
        ((3, 3, 16, 32), 8, 2, (3, 3, 2, 32), 0),
        ((50257, 300), 8, 0, (6283, 300), 7),
    ],
)
def test_the_dim_that_needs_the_least_padding(shape, count, dim, part_shape, padding):
    parts = Parts.of(shape, count)
    assert (parts.dim, parts.part_shape, parts.padding) == (dim, part_shape, padding)
    assert parts.stored_shape[dim] == count * part_shape[dim] == shape[dim] + padding
    whole = np.arange(np.prod(shape)).reshape(shape)
    assert parts.padded(whole).shape == parts.stored_shape
    np.testing.assert_array_equal(parts.trimmed(parts.padded(whole)), whole)


def test_rows_are_divided_where_each_replica_has_some_of_each():
    assert Parts.of((4, 6, 6), 2).of_row == Parts((6, 6), 2, 0)
    assert Parts.of((4, 6), 2).of_row is None
