"""How two processes that XLA connects reduce: what is small they exchange, what is large XLA reduces."""

import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from stratagem._src.collectives.all_reduce import _all_reduce
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.mesh.replica_group import REPLICA_AXIS


def reduced_by(num_bytes, **group):
    """Returns the program in which two replicas reduce so many bytes each."""
    both = types.SimpleNamespace(**{"spans_processes": True, "on_cpu": True, "size": 2} | group)
    mesh = jax.sharding.Mesh(jax.devices()[:2], (REPLICA_AXIS,))
    along = PartitionSpec(REPLICA_AXIS)
    program = jax.shard_map(
        lambda array: _all_reduce(ReduceOp.SUM, array, both),
        mesh=mesh,
        in_specs=along,
        out_specs=along,
        check_vma=False,
    )
    return str(jax.make_jaxpr(program)(jnp.zeros(2 * num_bytes // 4, jnp.float32)))


@pytest.mark.parametrize("num_bytes", [4096, 65536])
def test_small_arrays_are_exchanged(num_bytes):
    assert "ppermute" in reduced_by(num_bytes)


@pytest.mark.parametrize("num_bytes", [131072, 25_000_000])
def test_large_arrays_use_both_directions_of_the_wire(num_bytes):
    program = reduced_by(num_bytes)
    assert "psum" in program
    assert "ppermute" not in program


@pytest.mark.parametrize(
    "group", [{"spans_processes": False}, {"on_cpu": False}, {"size": 3}], ids=str
)
def test_others_leave_it_to_xla(group):
    assert "ppermute" not in reduced_by(4096, **group)
