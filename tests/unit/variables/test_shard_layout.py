"""How arrays are divided, by table."""

import numpy as np
import pytest

from stratagem._src.variables.shard_layout import ShardLayout


@pytest.mark.parametrize(
    ("shape", "count", "dim", "shard_shape", "padding"),
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
def test_the_dim_that_needs_the_least_padding(shape, count, dim, shard_shape, padding):
    layout = ShardLayout.of(shape, count)
    assert (layout.dim, layout.shard_shape, layout.padding) == (dim, shard_shape, padding)
    assert layout.padded_shape[dim] == count * shard_shape[dim] == shape[dim] + padding
    full = np.arange(np.prod(shape)).reshape(shape)
    assert layout.pad(full).shape == layout.padded_shape
    np.testing.assert_array_equal(layout.unpad(layout.pad(full)), full)


def test_rows_are_divided_where_each_replica_has_some_of_each():
    assert ShardLayout.of((4, 6, 6), 2).row_layout == ShardLayout((6, 6), 2, 0)
    assert ShardLayout.of((4, 6), 2).row_layout is None
