"""What every update makes of the old value and its operand, by table."""

import numpy as np
import pytest

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.variables import updates


@pytest.mark.parametrize(
    ("update", "new"),
    [(updates.ASSIGN, [3, 5]), (updates.ASSIGN_ADD, [4, 7]), (updates.ASSIGN_SUB, [-2, -3])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_dense(update, new):
    np.testing.assert_array_equal(update.apply(np.array([1, 2]), np.array([3, 5])), new)


SCATTERS = {
    # to rows 8, 6, 4 with rows 2 and 4 for the last one
    updates.SCATTER_ADD: [8, 6, 10],
    updates.SCATTER_SUB: [8, 6, -2],
    updates.SCATTER_MUL: [8, 6, 32],
    updates.SCATTER_DIV: [8, 6, 0.5],
    updates.SCATTER_MIN: [8, 6, 2],
    updates.SCATTER_MAX: [8, 6, 4],
}


@pytest.mark.parametrize(("update", "new"), SCATTERS.items(), ids=[u.name for u in SCATTERS])
def test_an_index_that_repeats_counts_every_time(update, new):
    old, slices = np.float32([8, 6, 4]), IndexedSlices(np.float32([2, 4]), np.array([2, 2]))
    np.testing.assert_array_equal(update.apply(old, slices), new)


@pytest.mark.parametrize("update", [*SCATTERS, updates.SCATTER_UPDATE], ids=lambda u: u.name)
def test_rows_that_are_not_there_change_nothing(update):
    old, slices = np.float32([8, 6, 4]), IndexedSlices(np.float32([2, 2]), np.array([-1, 3]))
    np.testing.assert_array_equal(update.apply(old, slices), old)


def test_rows_are_set():
    old, slices = np.zeros((3, 2), np.float32), IndexedSlices(np.ones((1, 2)), np.array([1]))
    new = updates.SCATTER_UPDATE.apply(old, slices)
    np.testing.assert_array_equal(new, [[0, 0], [1, 1], [0, 0]])


def test_whole_numbers_stay_whole():
    new = updates.SCATTER_DIV.apply(np.int32([7]), IndexedSlices(np.int32([2]), np.array([0])))
    assert (new.dtype, new.tolist()) == (np.int32, [3])


def test_which_can_be_reduced_first():
    every = [value for value in vars(updates).values() if isinstance(value, updates.Update)]
    not_reducible = {update.name for update in every if not update.reducible}
    assert not_reducible == {"scatter_min", "scatter_max", "scatter_update"}
    assert {update.name for update in every if update.sparse} == {
        update.name for update in every if update.name.startswith("scatter")
    }


def test_an_update_that_only_a_server_can_carry_out():
    update = updates.update_on_server("adam", b"state")
    assert update.server_only
    assert not updates.ASSIGN.server_only
    with pytest.raises(AssertionError, match="adam is applied on the server"):
        update.apply(1, 2)
