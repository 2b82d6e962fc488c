import numpy as np
import pytest

import stratagem as sg
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.variables.mirrored_variable import MirroredVariable


def test_a_copy_on_every_device(mirrored, group):
    v = mirrored([1.0, 2.0])
    assert type(v) is MirroredVariable
    v.assign_add([1.0, 1.0])
    assert [copy.device for copy in v.values] == list(group.devices)
    for copy in v.values:
        np.testing.assert_array_equal(copy, [2, 3])


def test_a_program_that_may_consume_the_array_gets_its_own(mirrored, group):
    v = mirrored(1.0)
    seen = v.values[0]
    taken = v.take_for_program(group, donate=True)
    taken.delete()
    assert float(seen) == float(v) == 1
    assert v.take_for_program(group, donate=False) is v.take_for_program(group, donate=False)


def test_what_a_program_returns_is_stored(mirrored, group):
    v = mirrored(1.0)
    v.store(group.replicate(np.float32(5)))
    assert [float(copy) for copy in v.values] == [5, 5]
    assert v.stores_program_results(group)


def test_a_snapshot_is_restored_on_every_device(mirrored):
    v = mirrored(1.0)
    before = v.snapshot()
    v.assign(2.0)
    v.restore_snapshot(before)
    assert [float(copy) for copy in v.values] == [1, 1]


@pytest.mark.parametrize("method", ["scatter_min", "scatter_max", "scatter_update"])
def test_rows_that_cannot_be_summed_are_refused_and_change_nothing(mirrored, method):
    v = mirrored([1.0, 2.0], aggregation=sg.VariableAggregation.SUM)
    with pytest.raises(NotImplementedError, match=f"{method}.*mirrored variable"):
        getattr(v, method)(IndexedSlices(np.float32([0]), np.array([0])))
    np.testing.assert_array_equal(v, [1, 2])
