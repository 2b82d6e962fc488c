"""Arrays on devices: as ``jax.device_put`` puts them, also where JAX has changed."""

import jax
import numpy as np
import pytest

from stratagem._src.jax_compat import device_arrays
from stratagem._src.mesh.replica_group import ReplicaGroup

GROUP = ReplicaGroup.of(jax.devices()[:2])
ROWS = np.arange(8).reshape(4, 2)


def test_the_private_name_is_there():
    assert device_arrays._private_put() is not None
    assert device_arrays._private_copy() is not None


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("sharding", [GROUP.sharded, GROUP.replicated])
def test_a_copy_without_a_program(sharding, changed, monkeypatch):
    if changed:
        monkeypatch.setattr(device_arrays, "_private_copy", lambda: None)
    array = jax.jit(lambda x: x + 1, out_shardings=sharding)(ROWS)
    copied = device_arrays.copy_without_program(array)
    assert copied is not array
    assert copied.sharding == array.sharding
    jax.jit(lambda x: x * 0, donate_argnums=0)(array)
    np.testing.assert_array_equal(copied, ROWS + 1)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "bfloat16"])
def test_pieces_make_up_one_array(changed, dtype, monkeypatch):
    if changed:
        monkeypatch.setattr(device_arrays, "_private_put", lambda: None)
    whole = ROWS.astype(jax.numpy.dtype(dtype))
    array = device_arrays.put_pieces([whole[:2], whole[2:]], (4, 2), GROUP.sharded, GROUP.devices)
    expected = jax.device_put(whole, GROUP.sharded)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert array.sharding == GROUP.sharded
    assert array.committed
    assert not array.weak_type
    for ours, theirs in zip(array.addressable_shards, expected.addressable_shards, strict=True):
        assert ours.device == theirs.device
        np.testing.assert_array_equal(ours.data, theirs.data)
    np.testing.assert_array_equal(jax.jit(lambda x: x + x)(array), whole + whole)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("device", [0, 1, 2])
def test_copies_of_an_array_on_one_device(changed, device, monkeypatch):
    if changed:
        monkeypatch.setattr(device_arrays, "_private_put", lambda: None)
    for value in [jax.numpy.asarray(ROWS), jax.numpy.asarray(1.0)]:
        array = jax.device_put(value, jax.devices()[device])
        copies = device_arrays.put_copies(array, GROUP.replicated, GROUP.devices)
        assert (copies.shape, copies.dtype) == (array.shape, array.dtype)
        assert copies.weak_type == array.weak_type
        assert (copies.sharding, copies.committed) == (GROUP.replicated, True)
        for shard in copies.addressable_shards:
            assert shard.data.devices() == {shard.device}
            np.testing.assert_array_equal(shard.data, value)
        np.testing.assert_array_equal(jax.jit(lambda x: x + x)(copies), value + value)
        np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize("changed", [False, True])
def test_an_uncommitted_array_is_the_same_memory(changed, monkeypatch):
    if changed:
        monkeypatch.setattr(device_arrays, "_private_put", lambda: None)
    array = jax.device_put(ROWS, jax.devices()[1])
    found = device_arrays.uncommitted(array)
    assert found.devices() == array.devices()
    assert found.committed is changed
    assert found.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(found, ROWS)
    key = jax.device_put(jax.random.key(0), jax.devices()[1])
    assert device_arrays.uncommitted(key) is key
