"""Operations on split last dimensions are computed on merged ones, and nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec
from rewriting import rewriting_by

from stratagem._src.jaxpr.split_last_dims import merge_split_dims
from stratagem._src.jaxpr.walk import all_equations

GROUPS = 4
SHAPE = (8, 4, 4, 32)
SPLIT = (*SHAPE[:3], GROUPS, 8)


rewritten = rewriting_by(merge_split_dims)


def on_split(jaxpr, shape=SPLIT):
    """Returns the names of the operations that compute arrays of a split shape."""
    found = {
        e.primitive.name for e in all_equations(jaxpr) for v in e.outvars if v.aval.shape == shape
    }
    return found - {"reshape", "jit", "shard_map", "scan", "pjit"}


def normalized(x, scale):
    groups = x.reshape(*x.shape[:-1], GROUPS, -1)
    mean = groups.mean((1, 2, 4), keepdims=True)
    variance = groups.var((1, 2, 4), keepdims=True)
    groups = (groups - mean) * jax.lax.rsqrt(variance + 1e-5)
    return groups.reshape(x.shape) * scale


def loss(x, scale):
    return jnp.sum(jnp.tanh(normalized(x, scale)) ** 3)


def inputs(shape=SHAPE):
    random = np.random.default_rng(0)
    return random.normal(size=shape).astype(np.float32), np.linspace(
        1, 2, shape[-1], dtype=np.float32
    )


def in_scan(x, scale):
    return jax.lax.scan(lambda x, _: (x + jax.grad(loss)(x, scale), None), x, length=2)[0]


def in_shard_map(x, scale):
    mesh = Mesh(jax.devices()[:1], ("replica",))
    spec = PartitionSpec("replica")
    return jax.shard_map(
        jax.grad(loss), mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False
    )(x, scale)


@pytest.mark.parametrize(
    "fn",
    [loss, jax.grad(loss, argnums=(0, 1)), in_scan, in_shard_map, jax.jit(jax.grad(loss))],
    ids=["forward", "gradient", "scan", "shard_map", "jit"],
)
def test_group_normalisation_computes_on_channels(fn):
    before, after, (expected, actual) = rewritten(fn, *inputs())
    assert {"mul", "sub"} <= on_split(before)
    assert not on_split(after)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_flax_group_normalisation_computes_on_channels():
    layer = nn.GroupNorm(num_groups=GROUPS)
    x, _ = inputs()
    variables = layer.init(jax.random.key(0), x)

    def step(variables, x):
        return jax.grad(lambda x: jnp.sum(jnp.sin(layer.apply(variables, x))))(x)

    _, after, (expected, actual) = rewritten(step, variables, x)
    assert not on_split(after)
    np.testing.assert_allclose(actual[0], expected[0], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("shape", [(8, 4, 4, 64), (2, 2, 2, 32), (8, 4, 4, GROUPS)])
def test_wide_small_and_unsplit_dimensions_stay(shape):
    before, after, _ = rewritten(loss, *inputs(shape))
    assert after is before


@pytest.mark.parametrize("shapes", [[(), (1,)], [(4,), (4,)], [(0,), (2, 0)], [(6,), (1, 3, 2)]])
def test_other_reshapes_stay(shapes):
    before, after, _ = rewritten(lambda x: jnp.sin(x.reshape(shapes[1])), np.ones(shapes[0]))
    assert after is before


def test_a_small_last_dimension_that_nothing_split_stays():
    before, after, _ = rewritten(lambda x: jnp.tanh(x) + x.mean((0, 1)), np.ones((64, 64, 4, 2)))
    assert after is before


@settings(deadline=None, max_examples=10)
@given(st.data())
def test_random_programs(data):
    """Any operations between arrays of a split shape, parts of it and numbers compute the same."""
    draw = data.draw
    ndim = draw(st.integers(1, 3))
    sizes = [512, *draw(st.lists(st.integers(2, 4), min_size=ndim, max_size=ndim))]
    split = (*sizes, draw(st.integers(2, 8)), draw(st.sampled_from([2, 8, 15])))
    x = np.random.default_rng(0).normal(size=(*sizes, split[-2] * split[-1])).astype(np.float32)
    kinds = st.sampled_from(["unary", "number", "broadcast", "rows", "where", "reduce", "max"])
    steps = draw(
        st.lists(
            st.tuples(kinds, st.lists(st.booleans(), min_size=len(split), max_size=len(split))),
            min_size=1,
            max_size=6,
        )
    )

    def fn(x):
        y = x.reshape(split)
        results = []
        for kind, chosen in steps:
            axes = tuple(axis for axis, is_chosen in enumerate(chosen) if is_chosen)
            if kind == "unary":
                y = jnp.sin(y)
            elif kind == "number":
                y = y * 0.5 + 1
            elif kind == "broadcast":
                y = y - y.mean(axes, keepdims=True)
            elif kind == "rows":
                y = y + jnp.arange(split[-1], dtype=jnp.float32)
            elif kind == "where":
                y = jnp.where(y > 0.1, y, -y)
            elif kind == "max":
                results.append(y.max(axes))
            else:
                results.append(y.sum(axes))
        return [y.reshape(x.shape), *results]

    _, after, (expected, actual) = rewritten(fn, x)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=5e-2)  # sums of a million numbers
    # What has full rows, such as a mean of the last dimension, is broadcast before they are merged.
    assert on_split(after, split) <= {"reduce_sum", "reduce_max", "broadcast_in_dim"}
