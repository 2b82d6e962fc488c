"""How values of the host lie on the devices of the replicas."""

import types

import jax
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.mesh.replica_group import ReplicaGroup

GROUP = ReplicaGroup.of(jax.devices()[:2])


@pytest.mark.parametrize("part", [3, 2.5, np.int64(7), np.arange(3), np.ones((2, 2), np.float16)])
def test_join_and_split(part):
    array = GROUP.assemble([part, part])
    assert array.sharding == GROUP.sharded
    assert array.dtype == jax.dtypes.canonicalize_dtype(np.asarray(part).dtype)
    for mine in GROUP.split(array, scalar=np.ndim(part) == 0):
        np.testing.assert_array_equal(mine, part)


def test_join_of_the_host_and_of_devices():
    array = GROUP.assemble([np.arange(2), jax.numpy.arange(2, 4)])
    np.testing.assert_array_equal(array, range(4))


def test_rows_are_divided():
    array = GROUP.shard_rows(np.arange(12).reshape(6, 2))
    assert array.sharding == GROUP.sharded
    np.testing.assert_array_equal(array, np.arange(12).reshape(6, 2))
    assert [shard.data.shape for shard in array.addressable_shards] == [(3, 2), (3, 2)]


def test_copies_of_an_array_of_the_host():
    array = GROUP.replicate(np.arange(3.0))
    assert array.sharding == GROUP.replicated
    for mine in GROUP.shards(array):
        np.testing.assert_array_equal(mine, [0, 1, 2])


@pytest.mark.parametrize(
    "place",
    [
        lambda wide: GROUP.assemble([wide, wide]),
        lambda wide: GROUP.assemble([wide[0], wide[1]]),
        lambda wide: GROUP.assemble([wide, jax.numpy.zeros(2, int)]),
        GROUP.shard_rows,
        GROUP.replicate,
    ],
)
def test_numbers_that_do_not_fit_are_refused(place):
    with pytest.raises(sg.errors.InvalidArgumentError, match="do not fit int32"):
        place(np.array([1, 2**40]))


@pytest.mark.parametrize(
    ("processes", "local_size", "num_devices", "expected"),
    [
        ([0, 1], 1, 2, True),
        ([0, 0, 1, 1], 2, 4, True),
        ([1, 0], 1, 2, False),
        ([0, 1, 0, 1], 2, 4, False),
        ([0, 0, 1], 2, 3, False),
        ([0, 1], 1, 4, False),
        ([1, 2], 0, 2, False),
    ],
)
def test_equal_blocks_of_replicas_of_one_device(processes, local_size, num_devices, expected):
    group = types.SimpleNamespace(
        devices=[types.SimpleNamespace(process_index=process) for process in processes],
        device_set=set(range(num_devices)),
        local_size=local_size,
        size=len(processes),
    )
    assert ReplicaGroup.has_equal_blocks.func(group) is expected
