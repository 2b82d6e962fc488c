"""Gradients of pooling by comparisons are those of JAX, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stratagem._src.partitioner.disjoint_windows import are_disjoint, scatter_to_chosen


def scatter(window, strides, operand, source, *, padding="VALID", minimum=False):
    """Returns the equation of a gradient of pooling, and the gradient by JAX."""
    start, choose = (jnp.inf, lax.min) if minimum else (-jnp.inf, lax.max)

    def gradient(operand, source):
        def pool(x):
            return lax.reduce_window(x, start, choose, window, strides, padding)

        return jax.vjp(pool, operand)[1](source)[0]

    closed = jax.make_jaxpr(gradient)(operand, source)
    [eqn] = [e for e in closed.eqns if e.primitive.name == "select_and_scatter_add"]
    return eqn.params, gradient(operand, source)


def numbers(*shape, seed=0):
    """Numbers of which many are equal."""
    return np.random.default_rng(seed).integers(0, 4, shape).astype(np.float32)


@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize(
    ("window", "shape"),
    [
        ((1, 2, 2, 1), (2, 6, 8, 3)),
        pytest.param((1, 2, 2, 1), (2, 7, 5, 3), marks=pytest.mark.slow),
        ((1, 3, 2, 1), (2, 7, 5, 3)),
        pytest.param((1, 1, 2, 3), (1, 2, 4, 6), marks=pytest.mark.slow),
        ((1, 4), (2, 8)),
    ],
)
def test_the_first_of_equal_elements_gets_the_gradient(window, shape, minimum):
    operand = numbers(*shape)
    source = numbers(*(n // w for n, w in zip(shape, window, strict=True)), seed=1) + 1
    params, expected = scatter(window, window, operand, source, minimum=minimum)
    assert are_disjoint(params)
    np.testing.assert_array_equal(scatter_to_chosen(params, source, operand), expected)


def test_elements_that_are_not_numbers_are_chosen_as_by_jax():
    operand = numbers(2, 4, 4, 1)
    operand[0, 0, 0] = operand[1, 1, 1] = operand[1, 2, 3] = np.nan
    source = numbers(2, 2, 2, 1, seed=1) + 1
    params, expected = scatter((1, 2, 2, 1), (1, 2, 2, 1), operand, source)
    np.testing.assert_array_equal(scatter_to_chosen(params, source, operand), expected)


@pytest.mark.parametrize(
    ("window", "strides", "padding", "count"),
    [
        ((1, 3), (1, 2), "VALID", 3),
        ((1, 2), (1, 3), "VALID", 3),
        ((1, 3), (1, 3), "SAME", 3),
        ((1, 2), (1, 2), ((0, 0), (2, 2)), 6),
        ((1, 32), (1, 32), "VALID", 1),
    ],
)
def test_windows_that_overlap_or_are_padded_or_large_are_not(window, strides, padding, count):
    length = 32 if window[1] == 32 else 8
    source = np.ones((1, count), np.float32)
    params, _ = scatter(window, strides, numbers(1, length), source, padding=padding)
    assert not are_disjoint(params)
