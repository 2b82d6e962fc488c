"""What is read of a ``jax.shard_map`` in a jaxpr."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from stratagem._src.jax_compat.shard_map_equation import mapped_equation

SPLIT, WHOLE = PartitionSpec("a"), PartitionSpec()


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))


def equation(mesh, **options):
    mapped = jax.shard_map(
        lambda x, y: (x + y, jax.lax.psum(x, "a")),
        mesh=mesh,
        in_specs=(SPLIT, WHOLE),
        out_specs=(SPLIT, WHOLE),
        **options,
    )
    return jax.make_jaxpr(mapped)(jnp.ones(4), jnp.ones(2)).eqns[0]


def test_what_is_mapped(mesh):
    found = mapped_equation(equation(mesh, check_vma=False), mesh)
    assert found is not None
    assert [v.aval.shape for v in found.jaxpr.invars] == [(2,), (2,)]
    assert found.in_specs == (SPLIT, WHOLE)
    assert found.out_specs == (SPLIT, WHOLE)


def test_other_ways_to_map_are_left_alone(mesh):
    assert mapped_equation(equation(mesh, check_vma=True), mesh) is None
    some = jax.make_jaxpr(
        jax.jit(
            jax.shard_map(
                lambda x: x,
                mesh=mesh,
                in_specs=SPLIT,
                out_specs=SPLIT,
                axis_names={"a"},
                check_vma=False,
            )
        )
    )(jnp.ones(4))
    assert mapped_equation(some.eqns[0].params["jaxpr"].jaxpr.eqns[0], mesh) is None
    other = Mesh(np.array(jax.devices()[4:8]).reshape(2, 2), ("a", "b"))
    assert mapped_equation(equation(mesh, check_vma=False), other) is None
    assert mapped_equation(jax.make_jaxpr(jnp.sin)(1.0).eqns[0], mesh) is None
