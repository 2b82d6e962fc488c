"""Products with arrays of equal elements are right in loops and conditionals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.jaxpr.uniform_operands import sum_uniform_products
from stratagem._src.jaxpr.walk import all_equations

BLOCKS = np.random.default_rng(0).random((4, 512, 32), np.float32)
ONES = np.ones((32, 32), np.float32)


def in_scan(f, blocks):
    def body(total, block):
        return total + f(block), None

    return jax.lax.scan(body, jnp.zeros(32), blocks)[0]


def in_map(f, blocks):
    return jax.lax.map(f, blocks).sum(0)


def in_cond(f, blocks):
    return sum(
        jax.lax.cond(block[0, 0] > -1, f, lambda _: jnp.zeros(32), block) for block in blocks
    )


def in_fori_loop(f, blocks):
    return jax.lax.fori_loop(
        0, 4, lambda i, state: (state[0] + f(blocks[i]), state[1]), (jnp.zeros(32), 1)
    )[0]


LOOPS = [in_scan, in_map, in_cond, in_fori_loop]


def ones(block):
    return (block @ jnp.ones((32, 32))).sum(0)


def scaled(block):
    return (block @ jnp.transpose(jnp.full((32, 32), 0.5) * 2.0)).sum(0)


def computed(block):
    return (block @ jnp.broadcast_to(block[0, 0] * 0 + 1, (32, 32))).sum(0)


def called(block):
    return (block @ jax.jit(lambda: jnp.ones((32, 32)))()).sum(0)


def captured(block):
    return (block @ ONES).sum(0)


def largest(block):
    return (block @ jnp.ones((32, 32))).max(0)


def convolved(block):
    image = block.reshape(8, 8, 8, 32)
    kernel = jnp.full((3, 3, 32, 32), 0.5)
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=numbers
    ).sum((0, 1, 2))


def differentiated(block):
    return jax.grad(lambda b: jnp.sum((b @ jnp.ones((32, 32))) ** 2))(block).sum(0)


FUNCTIONS = [ones, scaled, computed, called, captured, largest, convolved, differentiated]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_products_in_loops_are_right(loop, f):
    expected = sum(np.asarray(f(jnp.asarray(block))) for block in BLOCKS)
    actual = sg.function(lambda blocks: loop(f, blocks))(BLOCKS)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_xla_still_computes_them_wrongly():
    """If this fails, XLA has been repaired: the pass can go once no supported JAX needs it."""
    wrong = 0
    for f in (ones, largest, differentiated):
        expected = sum(np.asarray(f(jnp.asarray(block))) for block in BLOCKS)
        actual = jax.jit(lambda blocks, f=f: in_scan(f, blocks))(BLOCKS)
        wrong += not np.allclose(actual, expected, rtol=1e-3)
    assert wrong


def num_products(fn, *args):
    jaxpr = sum_uniform_products(jax.make_jaxpr(fn)(*args).jaxpr)
    return sum(eqn.primitive.name == "dot_general" for eqn in all_equations(jaxpr))


def test_other_products_stay():
    weights = np.eye(32, dtype=np.float32)

    def changed_in_the_loop(blocks):
        def body(total, block):
            return total + 1 + (block @ total), None

        return jax.lax.scan(body, jnp.zeros((32, 32)), blocks)[0]

    def of_two_values(block):
        return (block @ jnp.concatenate([jnp.zeros((16, 32)), jnp.ones((16, 32))])).sum(0)

    def with_weights(weights, blocks):
        return in_scan(lambda block: (block @ weights).sum(0), blocks)

    assert num_products(with_weights, weights, BLOCKS) == 1
    assert num_products(changed_in_the_loop, BLOCKS[:, :32]) == 1
    assert num_products(lambda blocks: in_scan(of_two_values, blocks), BLOCKS) == 1
    assert num_products(lambda blocks: in_scan(ones, blocks), BLOCKS) == 0


DOTS = [
    ("ab,bc->ac", (3, 4), (4, 5)),
    ("ba,cb->ac", (4, 3), (5, 4)),
    ("zab,zbc->zac", (2, 3, 4), (2, 4, 5)),
    ("abz,czb->zac", (3, 4, 2), (5, 2, 4)),
    ("abcd,cde->abe", (2, 3, 4, 5), (4, 5, 6)),
    ("ab,ab->", (3, 4), (3, 4)),
]


@pytest.mark.parametrize(("spec", "left", "right"), DOTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("position", [0, 1])
def test_products_of_any_dims_are_the_same_sums(spec, left, right, dtype, position):
    random = np.random.default_rng(0)
    shapes = [left, right]
    array = jnp.asarray(random.integers(-4, 5, shapes[1 - position]), dtype)

    def product(array):
        operands = [array, array]
        operands[position] = jnp.full(shapes[position], 2, dtype)
        return jnp.einsum(spec, *operands)

    jaxpr = sum_uniform_products(jax.make_jaxpr(product)(array).jaxpr)
    assert not any(eqn.primitive.name == "dot_general" for eqn in all_equations(jaxpr))
    [actual] = jax.core.eval_jaxpr(jaxpr, [], array)
    expected = product(array)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("numbers", [("NHWC", "HWIO", "NHWC"), ("CHNW", "OWIH", "WNCH")])
@pytest.mark.parametrize(
    "options",
    [{}, {"lhs_dilation": (2, 1)}, {"rhs_dilation": (1, 2)}, {"window_strides": (2, 3)}],
)
def test_convolutions_are_the_same_sums(numbers, options):
    sizes = {"N": 2, "H": 7, "W": 6, "C": 3, "I": 3, "O": 4}
    window = {**sizes, "H": 2, "W": 3}
    image = np.random.default_rng(0).integers(-4, 5, [sizes[d] for d in numbers[0]])
    image = jnp.asarray(image, jnp.float32)

    def convolved(image):
        kernel = jnp.full([window[d] for d in numbers[1]], 2.0)
        given = {"window_strides": (1, 1), "padding": ((1, 0), (2, 1)), **options}
        return jax.lax.conv_general_dilated(image, kernel, dimension_numbers=numbers, **given)

    jaxpr = sum_uniform_products(jax.make_jaxpr(convolved)(image).jaxpr)
    assert not any(eqn.primitive.name == "conv_general_dilated" for eqn in all_equations(jaxpr))
    [actual] = jax.core.eval_jaxpr(jaxpr, [], image)
    np.testing.assert_array_equal(actual, convolved(image))
