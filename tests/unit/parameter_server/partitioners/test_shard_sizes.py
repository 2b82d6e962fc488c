import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.parameter_server.partitioners import (
    num_shards_along_axis_0,
    shard_offsets,
    shard_sizes,
)


@pytest.mark.parametrize(
    ("num_rows", "num_shards", "sizes"),
    [
        (10, 4, [3, 3, 2, 2]),
        (10, 1, [10]),
        (10, 10, [1] * 10),
        (2, 5, [1, 1]),
        (7, 3, [3, 2, 2]),
        (0, 3, [0]),
    ],
)
def test_larger_shards_come_first(num_rows, num_shards, sizes):
    assert shard_sizes(num_rows, num_shards) == sizes


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_shards_cover_every_row_evenly(num_rows, num_shards):
    sizes = shard_sizes(num_rows, num_shards)
    offsets = shard_offsets(num_rows, num_shards)

    assert sum(sizes) == num_rows
    assert len(sizes) == max(1, min(num_shards, num_rows))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert [b - a for a, b in zip(offsets, [*offsets[1:], num_rows], strict=True)] == sizes


@pytest.mark.parametrize(("num_rows", "num_shards"), [(-1, 1), (3, 0), (3, -2)])
def test_impossible_counts_are_rejected(num_rows, num_shards):
    with pytest.raises(ValueError, match=f"got {num_rows} and {num_shards}"):
        shard_sizes(num_rows, num_shards)


@pytest.mark.parametrize(
    ("partitions", "shape", "num_shards"),
    [
        ([4, 1], (10, 3), 4),
        ((4, 1), (10, 3), 4),
        ([1, 1], (10, 3), 1),
        ([20, 1], (10, 3), 10),
        ([3], (10,), 3),
        ([], (), 1),
        ([2], (), 1),
        ([4, 1], (0, 3), 1),
    ],
)
def test_how_many_shards_a_variable_gets(partitions, shape, num_shards):
    assert num_shards_along_axis_0(partitions, shape) == num_shards


@pytest.mark.parametrize(
    ("partitions", "shape", "said"),
    [
        ([1, 2], (10, 3), "Only axis 0"),
        ([2, 2], (10, 3), r"Only axis 0 .* got \[2, 2\]"),
        ([2, 0], (10, 3), r"Only axis 0 .* got \[2, 0\]"),
        ([], (10,), r"list of integers.* got \[\] for the shape \[10\]"),
        ([0, 1], (10, 3), "at least one"),
    ],
)
def test_what_a_partitioner_must_not_return(partitions, shape, said):
    with pytest.raises(ValueError, match=said):
        num_shards_along_axis_0(partitions, shape)
