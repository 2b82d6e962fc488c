"""``transpose(dot_general(a, b))`` becomes ``dot_general(b, a)``, and nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec
from rewriting import count, rewriting_by

from stratagem._src.jaxpr.transposed_dots import remove_transposed_dots

rewritten = rewriting_by(remove_transposed_dots)


def dense_loss(kernel, x):
    return jnp.sum(jnp.tanh(x @ kernel))


def inputs(*shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(shape[-1], 5)).astype(np.float32)
    return kernel, x


def test_the_gradient_of_a_dense_layer_needs_no_transposition():
    before, after, (expected, actual) = rewritten(jax.grad(dense_loss), *inputs(3, 4, 6))
    assert count(before, "transpose") == 1
    assert count(after, "transpose") == 0
    assert count(after, "dot_general") == count(before, "dot_general")
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)


def in_scan(kernel, xs):
    return jax.lax.scan(lambda k, x: (k - jax.grad(dense_loss)(k, x), None), kernel, xs)[0]


def in_cond(kernel, x):
    return jax.lax.cond(x[0, 0, 0] > 0, jax.grad(dense_loss), lambda k, _: k, kernel, x)


def in_shard_map(kernel, x):
    mesh = Mesh(jax.devices()[:1], ("replica",))
    step = jax.shard_map(
        lambda k, x: jax.lax.psum(jax.grad(dense_loss)(k, x), "replica"),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("replica")),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return step(kernel, x)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (in_scan, (2, 3, 4, 6)),
        (in_cond, (3, 4, 6)),
        (in_shard_map, (3, 4, 6)),
        (jax.jit(jax.grad(dense_loss)), (3, 4, 6)),
        (jax.checkpoint(jax.grad(dense_loss)), (3, 4, 6)),
    ],
    ids=["scan", "cond", "shard_map", "jit", "checkpoint"],
)
def test_bodies_are_rewritten_too(fn, shape):
    before, after, (expected, actual) = rewritten(fn, *inputs(*shape))
    assert count(before, "transpose") > count(after, "transpose") == 0
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)


def test_a_product_that_is_used_twice_stays():
    def fn(a, b):
        product = jnp.einsum("abc,abd->cd", a, b)
        return product.T, product + 1

    a = np.ones((2, 3, 4), np.float32)
    before, after, _ = rewritten(fn, a, np.ones((2, 3, 5), np.float32))
    assert after is before


def test_a_product_that_is_returned_stays():
    def fn(a, b):
        product = a @ b
        return product, product.T

    before, after, _ = rewritten(fn, np.ones((2, 3), np.float32), np.ones((3, 4), np.float32))
    assert after is before


def test_a_jaxpr_without_such_products_is_the_same_object():
    before, after, _ = rewritten(lambda x: jnp.sin(x).T @ x, np.ones((3, 4), np.float32))
    assert after is before


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_random_products_and_permutations(data):
    """Any product with any permutation behind it computes the same array."""
    sizes = {letter: data.draw(st.integers(1, 4), label=letter) for letter in "abcdefgh"}
    batch, contracted, left, right = "ab", "cd", "ef", "gh"
    chosen = [
        letters[: data.draw(st.integers(0, 2))] for letters in (batch, contracted, left, right)
    ]
    batch, contracted, left, right = chosen
    first = "".join(data.draw(st.permutations(batch + contracted + left)))
    second = "".join(data.draw(st.permutations(batch + contracted + right)))
    exchanged = data.draw(st.booleans())
    natural = batch + left + right
    out = batch + right + left if exchanged else "".join(data.draw(st.permutations(natural)))

    def fn(a, b):
        dims = tuple(
            tuple(tuple(operand.index(letter) for letter in letters) for operand in (first, second))
            for letters in (contracted, batch)
        )
        product = jax.lax.dot_general(a, b, dims)
        return jnp.transpose(product, [natural.index(letter) for letter in out])

    generator = np.random.default_rng(0)
    a, b = (
        generator.normal(size=[sizes[letter] for letter in word]).astype(np.float32)
        for word in (first, second)
    )
    before, after, (expected, actual) = rewritten(fn, a, b)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    if exchanged and count(before, "transpose"):
        assert count(after, "transpose") == 0
