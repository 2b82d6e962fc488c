"""Rows for blocks of time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.profiling.task.record_events import lanes


@pytest.mark.parametrize(
    ("blocks", "rows"),
    [
        ([], []),
        ([(0, 1), (1, 2)], [0, 0]),
        ([(0, 4), (1, 3), (2, 3)], [0, 0, 0]),
        ([(0, 2), (1, 3)], [0, 1]),
        ([(1, 3), (0, 2)], [1, 0]),
        ([(0, 2), (1, 3), (2, 4), (3, 5)], [0, 1, 0, 1]),
        ([(0, 2), (0, 2)], [0, 0]),
        ([(0, 0), (0, 5)], [0, 0]),
    ],
)
def test_blocks_share_rows_where_they_can(blocks, rows):
    assert lanes(blocks) == rows


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_within_a_row_blocks_lie_in_each_other_or_apart(spans):
    blocks = [(begin, begin + length) for begin, length in spans]
    rows = lanes(blocks)
    for i, (begin, end) in enumerate(blocks):
        for j, (other_begin, other_end) in enumerate(blocks[:i]):
            if rows[i] == rows[j]:
                apart = end <= other_begin or other_end <= begin
                inside = (begin >= other_begin and end <= other_end) or (
                    other_begin >= begin and other_end <= end
                )
                assert apart or inside
