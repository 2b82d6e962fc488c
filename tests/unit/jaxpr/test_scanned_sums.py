"""Sums of stacked results of a loop move into the loop, and nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

from stratagem._src.jaxpr.scanned_sums import sum_inside_scans
from stratagem._src.jaxpr.walk import all_equations, inner_jaxprs

LAYERS, WIDTH = 3, 4
AXIS = "replica"


def on_two_replicas(fn):
    """Returns ``fn`` mapped over two devices, which all get their own rows."""
    spec = PartitionSpec(AXIS)
    mesh = Mesh(jax.devices()[:2], (AXIS,))
    return jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def rewritten(fn, *args, **options):
    """Returns the jaxpr of ``fn`` on two replicas before and after the pass, and what each computes."""
    before = jax.make_jaxpr(on_two_replicas(fn))(*args)
    after = sum_inside_scans(before.jaxpr, min_bytes=options.pop("min_bytes", 1), **options)
    results = [
        jax.jit(lambda *xs, j=j: jax.core.eval_jaxpr(j, before.consts, *xs))(*args)
        for j in (before.jaxpr, after)
    ]
    return before.jaxpr, after, results


def sums_of_loops(jaxpr):
    """Returns the dtypes and shapes of the sums in loops, and of those outside."""
    inside, outside = [], []

    def visit(jaxpr, found):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("psum", "reduce_scatter"):
                found.append((eqn.invars[0].aval.dtype.name, eqn.invars[0].aval.shape))
            for inner in inner_jaxprs(eqn):
                visit(inner, inside if eqn.primitive.name == "scan" else found)

    visit(jaxpr, outside)
    return inside, outside


def inputs(layers=LAYERS, seed=0):
    random = np.random.default_rng(seed)
    kernels = random.normal(size=(2 * layers, WIDTH, WIDTH)).astype(np.float32)
    return kernels, random.normal(size=(4, WIDTH)).astype(np.float32)


def gradients(kernels, x, dtype=jnp.float32):
    """Returns the gradients of scanned layers that compute in a dtype."""

    def loss(kernels):
        def layer(x, kernel):
            return jnp.tanh(x @ kernel.astype(dtype)), None

        return jnp.sum(jax.lax.scan(layer, x.astype(dtype), kernels)[0].astype(jnp.float32))

    return jax.grad(loss)(kernels)


def summed(kernels, x):
    return jax.lax.psum(gradients(kernels, x), AXIS)


def test_gradients_of_scanned_layers_are_summed_in_the_loop():
    before, after, (expected, actual) = rewritten(summed, *inputs())
    assert sums_of_loops(before) == ([], [("float32", (LAYERS, WIDTH, WIDTH))])
    assert sums_of_loops(after) == ([("float32", (WIDTH, WIDTH))], [])
    np.testing.assert_array_equal(actual[0], expected[0])


def test_what_is_narrower_on_the_wire_is_narrower_in_the_loop():
    def mean(kernels, x):
        sent = gradients(kernels, x, jnp.bfloat16).astype(jnp.bfloat16)
        return jax.lax.pmean(sent, AXIS).astype(jnp.float32)

    _, after, (expected, actual) = rewritten(mean, *inputs())
    assert sums_of_loops(after) == ([("bfloat16", (WIDTH, WIDTH))], [])
    np.testing.assert_array_equal(actual[0], expected[0])


def test_a_reduce_scatter_along_another_dimension_moves():
    def scattered(kernels, x):
        return jax.lax.psum_scatter(
            gradients(kernels, x), AXIS, scatter_dimension=2, tiled=True
        ).reshape(LAYERS, -1)

    _, after, (expected, actual) = rewritten(scattered, *inputs())
    assert sums_of_loops(after) == ([("float32", (WIDTH, WIDTH))], [])
    np.testing.assert_array_equal(actual[0], expected[0])
    before, after, _ = rewritten(scattered, *inputs(), sums=["psum"])
    assert after is before


def test_a_loop_in_a_called_function_is_found():
    called = jax.jit(gradients)
    _, after, (expected, actual) = rewritten(
        lambda kernels, x: jax.lax.psum(called(kernels, x), AXIS), *inputs()
    )
    assert sums_of_loops(after) == ([("float32", (WIDTH, WIDTH))], [])
    np.testing.assert_array_equal(actual[0], expected[0])


def used_twice(kernels, x):
    stack = gradients(kernels, x)
    return jax.lax.psum(stack, AXIS) + jnp.max(jnp.abs(stack))


def of_all_rows(kernels, x):
    return jax.lax.psum(jnp.flip(gradients(kernels, x), 0), AXIS)


def divided_rows(kernels, x):
    return jax.lax.psum_scatter(gradients(kernels, x), AXIS, scatter_dimension=0, tiled=True)


def carried(kernels, x):
    total, _ = jax.lax.scan(lambda total, k: (total + k, None), jnp.zeros((WIDTH, WIDTH)), kernels)
    return jax.lax.psum(total, AXIS)


@pytest.mark.parametrize("fn", [used_twice, of_all_rows, divided_rows, carried])
def test_other_sums_stay(fn):
    before, after, _ = rewritten(fn, *inputs(layers=4))
    assert after is before


def test_small_sums_stay():
    row = 4 * WIDTH * WIDTH
    before, after, _ = rewritten(summed, *inputs(), min_bytes=row + 1)
    assert after is before
    before, after, _ = rewritten(summed, *inputs(), min_bytes=row)
    assert after is not before


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_random_loops(data):
    """Stacks of random dtypes and uses, summed in random ways, are the same to the last bit."""
    dtypes = st.sampled_from(["float32", "bfloat16", "float16", "int32"])
    outputs = data.draw(
        st.lists(st.tuples(dtypes, dtypes, st.integers(0, 4)), min_size=1, max_size=4)
    )
    reverse, has_carry = data.draw(st.booleans()), data.draw(st.booleans())
    nested, in_call = data.draw(st.booleans()), data.draw(st.booleans())

    def step(carry, x):
        rows = [(x * (i + 1) + carry).astype(made) for i, (made, _, _) in enumerate(outputs)]
        return carry + jnp.sum(x) if has_carry else carry, rows

    def loop(xs):
        return jax.lax.scan(step, jnp.float32(1), xs, reverse=reverse)

    def replica(xs):
        run = jax.jit(loop) if in_call else loop
        if nested:
            carry, stacks = jax.lax.scan(lambda c, _: run(xs * c), jnp.float32(1), length=2)
        else:
            carry, stacks = run(xs)
        results = [carry[None]]
        for stack, (_, sent, use) in zip(stacks, outputs, strict=True):
            total = stack.astype(sent)
            if use == 1:
                total = total / 2 if sent != "int32" else total * 2
            if use == 4:
                total = jax.lax.psum_scatter(
                    total, AXIS, scatter_dimension=total.ndim - 1, tiled=True
                )
            elif use != 3:
                total = jax.lax.psum(total, AXIS)
            results.append(total)
            if use == 2:
                results.append(stack)
        return results

    xs = np.random.default_rng(0).normal(size=(2 * LAYERS, WIDTH)).astype(np.float32)
    before, after, (expected, actual) = rewritten(replica, xs)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    moves = [use in (0, 1, 4) for _, _, use in outputs]
    inside, _ = sums_of_loops(after)
    assert len(inside) == sum(moves)
    assert len([*all_equations(after)]) == len([*all_equations(before)])
