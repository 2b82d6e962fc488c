"""Arrays of the host on devices: as ``jax.device_put`` puts them, also where JAX has changed."""

import jax
import numpy as np
import pytest

from stratagem._src.jax_internals import host_arrays
from stratagem._src.mesh.replica_group import ReplicaGroup

GROUP = ReplicaGroup.of(jax.devices()[:2])
ROWS = np.arange(8).reshape(4, 2)


def test_the_private_name_is_there():
    assert host_arrays._private_put() is not None


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "bfloat16"])
def test_pieces_make_up_one_array(changed, dtype, monkeypatch):
    if changed:
        monkeypatch.setattr(host_arrays, "_private_put", lambda: None)
    whole = ROWS.astype(jax.numpy.dtype(dtype))
    array = host_arrays.put_pieces([whole[:2], whole[2:]], (4, 2), GROUP.sharded, GROUP.devices)
    expected = jax.device_put(whole, GROUP.sharded)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.sharding == GROUP.sharded
    assert array.committed
    assert not array.weak_type
    for ours, theirs in zip(array.addressable_shards, expected.addressable_shards, strict=True):
        assert ours.device == theirs.device
        np.testing.assert_array_equal(ours.data, theirs.data)
    np.testing.assert_array_equal(jax.jit(lambda x: x + x)(array), whole + whole)
