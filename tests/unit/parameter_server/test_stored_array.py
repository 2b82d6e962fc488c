"""Atomic updates, and reads that never change afterwards."""

import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratagem as sg
from stratagem._src.parameter_server.server.row_updates import ROW_UPDATES, combine_duplicates
from stratagem._src.parameter_server.server.stored_array import (
    StoredArray,
    aligned_empty,
    aligned_zeros,
)


def stored(value, dtype=np.float32):
    array = aligned_empty(np.shape(value), np.dtype(dtype))
    array[...] = value
    return StoredArray("w", array)


def test_a_read_keeps_its_value_when_updates_follow():
    array = stored(np.zeros((4, 2)))
    whole = array.read()
    part = whole[1:3]
    del whole
    array.update("assign_add", (np.ones((4, 2), np.float32),))
    array.update("scatter_update", (np.full((1, 2), 9, np.float32), np.array([1])))
    array.update("assign", (np.full((4, 2), 5, np.float32),))
    assert part.tolist() == [[0, 0], [0, 0]]
    assert array.read().tolist() == [[5, 5]] * 4


def test_a_read_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        stored([1.0]).read()[0] = 2


def test_updates_without_readers_stay_in_place():
    array = stored(np.zeros(1000))
    address = array.read().ctypes.data
    for _ in range(3):
        array.update("assign_add", (np.ones(1000, np.float32),))
        array.update("scatter_add", (np.ones(2, np.float32), np.array([0, 5])))
    assert array.read().ctypes.data == address


def test_memory_left_by_readers_is_used_again():
    array = stored(np.zeros(1000))
    addresses = set()
    for _ in range(6):
        reader = array.read()
        array.update("assign_add", (np.ones(1000, np.float32),))
        addresses.add(reader.ctypes.data)
        del reader
    assert len(addresses) == 2


def test_a_large_assigned_array_is_kept_without_a_copy():
    array = stored(np.zeros(1 << 19))
    value = np.ones(1 << 19, np.float32)
    array.update("assign", (value,), adopt=True)
    assert array.read().ctypes.data == value.ctypes.data
    # Its owner still holds it, so an update goes elsewhere.
    array.update("assign_add", (value,))
    assert value[0] == 1
    assert array.read()[0] == 2


def test_concurrent_updates_are_all_counted():
    array = stored(np.zeros((50, 3)))
    rows = np.array([3, 3, 7])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work():
        for _ in range(200):
            array.update("assign_add", (np.ones((50, 3), np.float32),))
            array.update("scatter_add", (np.ones((3, 3), np.float32), rows))
            snapshot = array.read()
            assert (snapshot[0] == snapshot[1]).all()

    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    total = array.read()
    assert total[0, 0] == 800
    assert total[3, 0] == 800 + 1600
    assert total[7, 0] == 800 + 800


@pytest.mark.parametrize("update", [*ROW_UPDATES, "scatter_update"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16])
def test_row_updates_agree_with_those_of_a_variable(update, dtype):
    start = np.arange(1, 13).reshape(6, 2)
    # Equal rows where an index repeats, because the order of scatter_update is not defined.
    indices, rows = np.array([5, 0, 5, 2]), np.array([[2, 4], [3, 1], [2, 4], [1, 2]])
    variable = sg.Variable(start.astype(dtype))
    getattr(variable, update)(sg.IndexedSlices(rows.astype(dtype), indices))
    array = stored(start, dtype)
    array.update(update, (rows.astype(dtype), indices))
    np.testing.assert_allclose(
        array.read().astype(np.float64), variable.numpy().astype(np.float64), rtol=1e-2
    )


def test_rows_out_of_range_are_left_out():
    array = stored(np.zeros((2, 1)))
    array.update("scatter_add", (np.ones((3, 1), np.float32), np.array([-1, 1, 2])))
    assert array.read().tolist() == [[0], [1]]


@settings(deadline=None, max_examples=50)
@given(
    indices=st.lists(st.integers(0, 4), max_size=60),
    combine=st.sampled_from([np.add, np.minimum, np.maximum]),
)
def test_combined_duplicates(indices, combine):
    rows = np.arange(len(indices), dtype=np.float64)[:, None] - 10
    unique, combined = combine_duplicates(np.array(indices, int), rows, combine)
    expected = {}
    for index, row in zip(indices, rows[:, 0], strict=True):
        expected[index] = row if index not in expected else combine(expected[index], row)
    assert dict(zip(unique.tolist(), combined[:, 0].tolist(), strict=True)) == expected
    assert len(unique) == len(expected)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(np.array([2, 0, 2]), [2, 0, 2]), (range(1, 3), [1, 2]), (range(2, -1, -2), [2, 0])],
)
def test_rows_are_read_as_copies(rows, expected):
    array = stored([[0.0], [1.0], [2.0]])
    read = array.read(rows)
    array.update("assign", (np.full((3, 1), 9, np.float32),))
    assert read[:, 0].tolist() == expected


def test_wrong_operands_are_refused_and_change_nothing():
    array = stored(np.zeros((2, 2)))
    with pytest.raises(sg.errors.ShapeMismatchError, match=r"needs an operand of shape \(2, 2\)"):
        array.update("assign_add", (np.ones(2, np.float32),))
    with pytest.raises(sg.errors.ShapeMismatchError, match="scatter_add"):
        array.update("scatter_add", (np.ones((2, 3), np.float32), np.array([0, 1])))
    with pytest.raises(sg.errors.VariableError, match="'explode'"):
        array.update("explode", (np.ones((2, 2), np.float32),))
    with pytest.raises(sg.errors.VariableError, match=r"must be in \[0, 2\), got 0 to 2"):
        array.read(np.array([0, 2]))
    assert not array.read().any()


@pytest.mark.parametrize("shape", [(), (3, 5), (1000,)])
def test_memory_is_aligned(shape):
    for allocate in (aligned_empty, aligned_zeros):
        array = allocate(shape, np.dtype(np.float32))
        assert array.shape == shape
        assert array.ctypes.data % 64 == 0
    assert not array.any()
