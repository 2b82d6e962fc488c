import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.parameter_server.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    shard_sizes,
)


@pytest.mark.parametrize(
    ("num_shards", "shape", "axis", "partitions"),
    [
        (2, [10, 3], 0, [2, 1]),
        (2, [10, 3], 1, [1, 2]),
        (2, [10, 3], -1, [1, 2]),
        (20, [10, 3], 0, [10, 1]),
        (1, [10, 3], 0, [1, 1]),
        (4, [7], 0, [4]),
        (4, [0, 3], 0, [1, 1]),
    ],
)
def test_fixed_shards(num_shards, shape, axis, partitions):
    partitioner = FixedShardsPartitioner(num_shards)

    assert partitioner(TensorShape(shape), jnp.float32, axis=axis) == partitions
    assert partitioner(tuple(shape), "float32", axis) == partitions


@pytest.mark.parametrize(
    ("min_shard_bytes", "max_shards", "shape", "dtype", "partitions"),
    [
        (24, 4, [10, 3], "float32", [4, 1]),
        (24, 8, [10, 3], "float32", [5, 1]),
        (4, 2, [6, 1], "float32", [2, 1]),
        (4, 10, [6, 1], "float32", [6, 1]),
        (5, 10, [6, 1], "float32", [5, 1]),
        (256 << 10, 100, [1024, 1024], "float32", [16, 1]),
        (256 << 10, 8, [1024, 1024], "float32", [8, 1]),
        (256 << 10, 100, [1024, 1024], "float64", [32, 1]),
        (1 << 30, 8, [10, 3], "float32", [1, 1]),
        (1, 100, [3, 100], "float32", [3, 1]),
        (4, 100, [0, 3], "float32", [1, 1]),
    ],
)
def test_min_size(min_shard_bytes, max_shards, shape, dtype, partitions):
    partitioner = MinSizePartitioner(min_shard_bytes, max_shards)

    assert partitioner(TensorShape(shape), np.dtype(dtype)) == partitions


@pytest.mark.parametrize(
    ("max_shard_bytes", "max_shards", "shape", "dtype", "partitions"),
    [
        (4, None, [6, 1], "float32", [6, 1]),
        (4, 2, [6, 1], "float32", [2, 1]),
        (1024, None, [6, 1], "float32", [1, 1]),
        (8, None, [6, 1], "float32", [3, 1]),
        (15, None, [6, 1], "float32", [2, 1]),
        (1, None, [6, 100], "float32", [6, 1]),
        (16, None, [6, 1], "float64", [3, 1]),
        (16, None, [0, 3], "float32", [1, 1]),
        (16, None, [3, 0], "float32", [1, 1]),
    ],
)
def test_max_size(max_shard_bytes, max_shards, shape, dtype, partitions):
    partitioner = MaxSizePartitioner(max_shard_bytes, max_shards)

    assert partitioner(TensorShape(shape), jnp.dtype(dtype)) == partitions


def test_an_axis_can_be_chosen_by_size_too():
    assert MinSizePartitioner(24, 4)((3, 10), "float32", axis=1) == [1, 4]
    assert MaxSizePartitioner(24)((3, 10), "float32", axis=-1) == [1, 5]


@pytest.mark.parametrize("dtype", [str, bytes, "string", np.dtype("U7"), np.dtype("O"), "S3"])
def test_strings_have_an_estimated_size(dtype):
    assert MinSizePartitioner(16, 100)((4, 1), dtype) == [4, 1]
    assert MinSizePartitioner(16, 100, bytes_per_string=8)((4, 1), dtype) == [2, 1]
    assert MaxSizePartitioner(16)((4, 1), dtype) == [4, 1]
    assert MaxSizePartitioner(16, bytes_per_string=8)((4, 1), dtype) == [2, 1]


def test_bfloat16_has_its_size():
    assert MaxSizePartitioner(4)((8,), jnp.bfloat16) == [4]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FixedShardsPartitioner(0), "num_shards must be positive, got 0"),
        (lambda: MinSizePartitioner(min_shard_bytes=0), "min_shard_bytes must be positive"),
        (lambda: MinSizePartitioner(max_shards=-1), "max_shards must be positive, got -1"),
        (lambda: MinSizePartitioner(bytes_per_string=0), "bytes_per_string must be positive"),
        (lambda: MaxSizePartitioner(0), "max_shard_bytes must be positive"),
        (lambda: MaxSizePartitioner(1, max_shards=0), "max_shards must be positive, got 0"),
        (lambda: MaxSizePartitioner(1, bytes_per_string=0), "bytes_per_string must be positive"),
    ],
)
def test_settings_must_be_positive(make, said):
    with pytest.raises(ValueError, match=said):
        make()


PARTITIONERS = [FixedShardsPartitioner(2), MinSizePartitioner(4, 2), MaxSizePartitioner(4)]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(
    ("shape", "axis", "said"),
    [
        (TensorShape([None, 3]), 0, "fully defined"),
        (TensorShape(None), 0, "fully defined"),
        ([10, 3], 2, r"2 axes of the shape \[10, 3\], got 2"),
        ([10, 3], -3, "got -3"),
        ([], 0, "0 axes"),
    ],
)
def test_shapes_that_cannot_be_split_are_rejected(partitioner, shape, axis, said):
    with pytest.raises(ValueError, match=said):
        partitioner(shape, "float32", axis)


def test_the_base_must_be_completed():
    with pytest.raises(NotImplementedError, match="Partitioner must define __call__"):
        Partitioner()((10, 3), "float32")
    assert all(isinstance(partitioner, Partitioner) for partitioner in PARTITIONERS)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=3),
    st.integers(1, 400),
    st.none() | st.integers(1, 9),
)
def test_no_shard_is_above_the_maximum_unless_it_must_be(shape, max_shard_bytes, max_shards):
    num_shards = MaxSizePartitioner(max_shard_bytes, max_shards)(shape, "float32")[0]
    row_bytes = 4 * int(np.prod(shape[1:]))
    largest = max(shard_sizes(shape[0], num_shards)) * row_bytes

    assert largest <= max_shard_bytes or num_shards in (max_shards, shape[0])
    if num_shards > 1:
        assert max(shard_sizes(shape[0], num_shards - 1)) * row_bytes > max_shard_bytes
