"""Splitting rows over shards and joining them again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.parameter_server.client.shards import ShardedRows, make_shards, split_operands
from stratagem._src.parameter_server.partitioners import shard_sizes


@st.composite
def tables(draw):
    num_rows, num_shards = draw(st.integers(1, 30)), draw(st.integers(1, 6))
    sizes = shard_sizes(num_rows, num_shards)
    return num_rows, make_shards("t", [k % 2 for k in range(len(sizes))], sizes)


@given(tables(), st.data())
def test_rows_of_all_shards_join_to_the_rows_asked_for(table, data):
    num_rows, shards = table
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1))), np.int64)
    whole = np.arange(2.0 * num_rows).reshape(num_rows, 2)
    asked = ShardedRows(shards, rows)
    parts = [whole[shard.start : shard.stop][local] for shard, local, _ in asked.parts()]
    if parts:
        np.testing.assert_array_equal(asked.combine(parts, (2,), whole.dtype), whole[rows])
    assert sum(map(len, parts)) == len(rows)


@given(tables(), st.data())
def test_updates_of_all_shards_make_up_the_update(table, data):
    num_rows, shards = table
    indices = np.array(data.draw(st.lists(st.integers(-2, num_rows + 2))), np.int64)
    values = np.arange(2.0 * len(indices)).reshape(-1, 2) + 1
    expected, got = np.zeros((num_rows, 2)), np.zeros((num_rows, 2))
    inside = (indices >= 0) & (indices < num_rows)
    np.add.at(expected, indices[inside], values[inside])
    for shard, (part, local) in split_operands(shards, (num_rows, 2), (values, indices), rows=True):
        assert len(local)
        np.add.at(got[shard.start : shard.stop], local, part)
    np.testing.assert_array_equal(got, expected)


def test_operands_of_the_variables_shape_are_cut_up():
    shards = make_shards("t", [0, 1], [3, 2])
    whole, other = np.arange(10).reshape(5, 2), np.arange(5)
    parts = dict(split_operands(shards, (5, 2), (whole, other), rows=False))
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts.values()]), whole)
    assert all(part[1] is other for part in parts.values())
