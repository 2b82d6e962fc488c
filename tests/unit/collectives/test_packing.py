import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._src.collectives.hierarchical_copy_all_reduce import group_size
from stratagem._src.collectives.packing import DEFAULT_PACKING, apply_in_packs, plan_packs
from stratagem._src.core.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)

F = np.float32


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        ([3, 1, 4], {"num_packs": 0}, [[0], [1], [2]]),
        ([3, 1, 4], {"num_packs": 1}, [[0, 1, 2]]),
        ([3, 1, 4], {"num_packs": 2}, [[0, 1], [2]]),
        ([1, 1, 1], {"num_packs": 9}, [[0], [1], [2]]),
        ([2, 1, 2, 1], {"bytes_per_pack": 12}, [[0, 1], [2, 3]]),
        ([1, 4, 1], {"bytes_per_pack": 12}, [[0, 2], [1]]),
        ([3, 1, 4], {"bytes_per_pack": 1, "num_packs": 1}, [[0], [1], [2]]),
        ([1] * 5, {"bytes_per_pack": 100, "arrays_per_pack": 2}, [[0, 1], [2, 3], [4]]),
        ([0, 0], {"num_packs": 1}, [[0, 1]]),
        ([], {"num_packs": 1}, []),
    ],
)
def test_plan(sizes, options, expected):
    assert plan_packs([np.zeros(size, F) for size in sizes], **options) == expected


def test_a_pack_has_one_dtype():
    arrays = [np.zeros(1, F), np.zeros(1, np.int32), np.zeros(1, F)]
    assert plan_packs(arrays, num_packs=1) == [[0, 2], [1]]


@settings(max_examples=50, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=5),
    num_packs=st.integers(0, 4),
    bytes_per_pack=st.integers(0, 40),
)
def test_packing_and_unpacking_is_the_identity(shapes, num_packs, bytes_per_pack):
    arrays = [np.random.default_rng(0).normal(size=s).astype(F) for s in shapes]
    packs = plan_packs(arrays, num_packs=num_packs, bytes_per_pack=bytes_per_pack)
    assert sorted(position for pack in packs for position in pack) == list(range(len(arrays)))
    for array, result in zip(arrays, apply_in_packs(lambda x: x * 2, arrays, packs), strict=True):
        np.testing.assert_array_equal(result, array * 2)
        assert result.shape == array.shape


@pytest.mark.parametrize(
    ("on_cpu", "shares_memory", "expected"),
    [
        (True, False, [[0, 1, 2], [3]]),
        (True, True, [[0, 1], [2], [3]]),
        (False, False, [[0], [1], [2], [3]]),
    ],
)
def test_defaults(on_cpu, shares_memory, expected):
    arrays = [np.zeros(num_bytes // 4, F) for num_bytes in (200_000, 200_000, 300_000, 5_000_000)]
    group = types.SimpleNamespace(on_cpu=on_cpu)
    assert DEFAULT_PACKING.plan(arrays, group, shares_memory=shares_memory) == expected


def test_options():
    options = CommunicationOptions(implementation="RING")
    assert options.implementation is CommunicationImplementation.RING
    assert CommunicationOptions(implementation="ring") == options
    for wrong in ({"bytes_per_pack": -1}, {"timeout_seconds": 0}, {"implementation": "TELEPATHY"}):
        with pytest.raises(ValueError):
            CommunicationOptions(**wrong)
    with pytest.raises(ValueError, match="num_packs"):
        plan_packs([], num_packs=-1)


@pytest.mark.parametrize("n", range(1, 65))
def test_groups_divide_the_replicas(n):
    assert n % group_size(n) == 0
    assert n == 1 or group_size(n) > 1
