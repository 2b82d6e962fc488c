"""Convolutions in the forms that XLA's CPU compiler is fast at are the same convolutions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec
from rewriting import count, rewriting_by

from stratagem._src.jaxpr import convolutions
from stratagem._src.jaxpr.convolutions import rewrite_convolutions
from stratagem._src.jaxpr.walk import all_equations

rewritten = rewriting_by(rewrite_convolutions)


def assert_equal(results):
    for expected, actual in zip(*results, strict=True):
        assert actual.dtype == expected.dtype
        scale = max(1.0, float(jnp.abs(expected).max()))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * scale)


def has_channels_last(eqn):
    numbers, ndim = eqn.params["dimension_numbers"], eqn.invars[0].aval.ndim
    return numbers.lhs_spec == numbers.out_spec == (
        0,
        ndim - 1,
        *range(1, ndim - 1),
    ) and numbers.rhs_spec == (ndim - 1, ndim - 2, *range(ndim - 2))


def convolutions_of(jaxpr):
    return [eqn for eqn in all_equations(jaxpr) if eqn.primitive.name == "conv_general_dilated"]


def convolve(image, kernel, stride=1, padding="SAME", numbers=("NHWC", "HWIO", "NHWC"), **options):
    return jax.lax.conv_general_dilated(
        image, kernel, (stride, stride), padding, dimension_numbers=numbers, **options
    )


def loss(kernel, image, **options):
    return jnp.sum(jnp.tanh(convolve(image, kernel, **options)))


def arrays(kernel, image):
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(np.float32) for shape in (kernel, image)]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [6, 7])
def test_the_gradient_of_a_pointwise_kernel_is_a_product(stride, size):
    kernel, image = arrays((1, 1, 5, 3), (4, size, size, 5))
    before, after, results = rewritten(
        jax.grad(lambda k, x: loss(k, x, stride=stride)), kernel, image
    )
    assert count(before, "dot_general") == 0
    assert count(after, "dot_general") == 1
    assert_equal(results)


@pytest.mark.parametrize(("batch", "pieces"), [(8, 1), (16, 2), (19, 2), (200, 8)])
def test_the_gradient_of_a_kernel_is_summed_in_pieces(batch, pieces, monkeypatch):
    monkeypatch.setattr(convolutions, "_MIN_PRODUCTS", 1)
    kernel, image = arrays((3, 3, 5, 4), (batch, 6, 6, 5))
    before, after, results = rewritten(jax.grad(loss), kernel, image)
    forward = 1
    assert count(before, "conv_general_dilated") == forward + 1
    assert count(after, "conv_general_dilated") == forward + pieces
    assert_equal(results)


def test_small_gradients_and_those_of_halves_are_computed_at_once(monkeypatch):
    kernel, image = arrays((3, 3, 5, 4), (64, 6, 6, 5))
    before, after, _ = rewritten(jax.grad(loss), kernel, image)
    assert count(after, "conv_general_dilated") == count(before, "conv_general_dilated")
    monkeypatch.setattr(convolutions, "_MIN_PRODUCTS", 1)
    halves = [jnp.asarray(x, jnp.bfloat16) for x in (kernel, image)]
    before, after, _ = rewritten(jax.grad(loss), *halves)  # each piece would be rounded
    assert count(after, "conv_general_dilated") == count(before, "conv_general_dilated")


def steps_in_scan(kernel, images):
    def step(kernel, image):
        gradients = jax.grad(loss, argnums=(0, 1))(kernel, image)
        return kernel - 0.1 * gradients[0], gradients[1].sum()

    return jax.lax.scan(step, kernel, images)


def in_cond(kernel, images):
    gradient = jax.grad(loss, argnums=(0, 1))
    return jax.lax.cond(images[0, 0, 0, 0, 0] > 9, lambda k, x: (k, x), gradient, kernel, images[0])


def in_shard_map(kernel, images):
    mesh, whole = Mesh(jax.devices()[:1], ("replica",)), PartitionSpec()
    return jax.shard_map(
        steps_in_scan, mesh=mesh, in_specs=(whole, whole), out_specs=(whole, whole), check_vma=False
    )(kernel, images)


@pytest.mark.parametrize("fn", [steps_in_scan, in_cond, in_shard_map])
def test_gradients_in_loops_have_their_channels_last(fn):
    kernel, images = arrays((3, 3, 5, 4), (2, 4, 6, 6, 5))
    before, after, results = rewritten(fn, kernel, images)
    assert not all(map(has_channels_last, convolutions_of(before)))
    assert all(map(has_channels_last, convolutions_of(after)))
    assert_equal(results)


def test_forward_convolutions_and_grouped_ones_stay_as_they_are():
    kernel, image = arrays((3, 3, 5, 4), (4, 6, 6, 5))
    before, after, _ = rewritten(convolve, image, kernel)
    assert after is before
    kernel, image = arrays((3, 3, 1, 10), (4, 6, 6, 5))
    before, after, _ = rewritten(
        jax.grad(lambda k, x: loss(k, x, feature_group_count=5)), kernel, image
    )
    assert after is before


def test_an_empty_batch_is_left_alone():
    kernel, image = arrays((3, 3, 5, 4), (0, 6, 6, 5))
    before, after, _ = rewritten(jax.grad(loss), kernel, image)
    assert after is before


LAYOUTS = [
    [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("CNW", "WOI", "WNC")],
    [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HNCW", "IHOW", "CWHN")],
    [("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW")],
]


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_random_convolutions_and_their_gradients_stay_the_same(data):
    compare_a_random_convolution(data)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_many_random_convolutions_and_their_gradients_stay_the_same(data):
    compare_a_random_convolution(data)


def compare_a_random_convolution(data):
    ndim = data.draw(st.integers(1, 3))
    numbers = data.draw(st.sampled_from(LAYOUTS[ndim - 1]))
    sizes = st.integers(1, 6)
    space = {d: data.draw(sizes) for d in "DHW"}
    window = {d: data.draw(st.integers(1, 3)) for d in "DHW"}
    counts = {"N": data.draw(st.integers(1, 20)), "C": data.draw(sizes), "O": data.draw(sizes)}
    image_shape = [{**space, **counts}[d] for d in numbers[0]]
    kernel_shape = [{**window, "I": counts["C"], "O": counts["O"]}[d] for d in numbers[1]]
    strides = data.draw(st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim))
    padding = data.draw(
        st.one_of(
            st.just("SAME"),
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=ndim, max_size=ndim),
        )
    )
    dilations = data.draw(st.lists(st.integers(1, 2), min_size=ndim, max_size=ndim))
    kernel, image = arrays(kernel_shape, image_shape)

    def value(kernel, image):
        result = jax.lax.conv_general_dilated(
            image, kernel, strides, padding, rhs_dilation=dilations, dimension_numbers=numbers
        )
        return jnp.sum(jnp.tanh(result))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "_MIN_PRODUCTS", 1)
        _, _, results = rewritten(jax.value_and_grad(value, argnums=(0, 1)), kernel, image)
    assert_equal(results)
