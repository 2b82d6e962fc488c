"""Pieces of an array that JAX was interrupted in making."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.mesh.replica_group import ReplicaGroup


def interrupt_pieces(array):
    """Asks JAX for the pieces, with an interrupt when it makes the second one."""
    made = 0

    def profile(frame, event, _):
        nonlocal made
        if event == "call" and frame.f_code.co_name == "make_single_device_sharding":
            made += 1
            if made == 2:
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            _ = array.addressable_shards
    finally:
        sys.setprofile(None)


def test_all_pieces_after_an_interrupt():
    group = ReplicaGroup.of(jax.devices()[:2])
    array = jax.jit(lambda x: x + 1)(group.shard_rows(np.arange(4.0)))
    interrupt_pieces(array)
    assert [shard.data.tolist() for shard in addressable_shards(array)] == [[1, 2], [3, 4]]
    assert [block.tolist() for block in group.shards(array)] == [[1, 2], [3, 4]]
    # Also where something is traced.
    jax.jit(lambda: [np.asarray(shard.data) for shard in addressable_shards(array)] and None)()


def test_a_sharded_variable_after_an_interrupt():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
        variable = sg.Variable(np.zeros(4, np.float32))
    sg.function(lambda: variable.assign_add(jnp.ones(4)))()
    interrupt_pieces(variable.snapshot())
    assert variable.numpy().tolist() == [1] * 4
    assert variable.read_value().tolist() == [1] * 4
    variable.assign_add(jnp.ones(4))
    assert variable.numpy().tolist() == [2] * 4
