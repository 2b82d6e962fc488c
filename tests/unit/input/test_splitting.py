import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.input.splitting import split_rows, worker_share


@pytest.mark.parametrize(
    ("size", "replicas", "expected"),
    [
        (4, 2, [2, 2]),
        (2, 2, [1, 1]),
        (4, 3, [2, 2, 0]),
        (5, 3, [2, 2, 1]),
        (7, 4, [2, 2, 2, 1]),
        (1, 4, [1, 0, 0, 0]),
        (0, 3, [0, 0, 0]),
        (6, 1, [6]),
    ],
)
def test_rows_of_replicas(size, replicas, expected):
    assert [end - start for start, end in split_rows((0, size), replicas)] == expected


def test_seven_rows_on_two_workers_with_two_replicas_each():
    def sizes(worker, step):
        return [b - a for a, b in split_rows(worker_share(7, 2, worker, step), 2)]

    assert [sizes(0, 0), sizes(0, 1)] == [[2, 2], [2, 1]]
    assert [sizes(1, 0), sizes(1, 1)] == [[2, 1], [2, 2]]


@given(size=st.integers(0, 50), replicas=st.integers(1, 9), start=st.integers(0, 9))
def test_replicas_cover_the_rows_in_order(size, replicas, start):
    parts = split_rows((start, start + size), replicas)
    assert [row for a, b in parts for row in range(a, b)] == list(range(start, start + size))
    assert len({b - a for a, b in parts[:1]} | {b - a for a, b in parts if b - a}) <= 2


@given(size=st.integers(0, 50), workers=st.integers(1, 6), step=st.integers(0, 9))
def test_workers_cover_every_batch(size, workers, step):
    shares = [worker_share(size, workers, index, step) for index in range(workers)]
    assert [row for a, b in shares for row in range(a, b)] == list(range(size))
    assert max(b - a for a, b in shares) - min(b - a for a, b in shares) <= 1


@given(size=st.integers(0, 20), workers=st.integers(1, 6))
def test_over_a_cycle_all_workers_take_the_same(size, workers):
    totals = [
        sum(b - a for a, b in (worker_share(size, workers, index, s) for s in range(workers)))
        for index in range(workers)
    ]
    assert len(set(totals)) == 1
