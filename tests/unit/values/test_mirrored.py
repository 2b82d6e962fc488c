import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.values.mirrored import Mirrored


@pytest.fixture
def value(group):
    return Mirrored(group, group.replicate(np.float32([1.0, 2.0])))


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda v: v + 1, [2, 3]),
        (lambda v: 1 - v, [0, -1]),
        (lambda v: v * v, [1, 4]),
        (lambda v: np.ones(2) / v, [1, 0.5]),
        (lambda v: v == 2, [False, True]),
        (lambda v: -v, [-1, -2]),
        (lambda v: v[::-1], [2, 1]),
        (jnp.cumsum, [1, 3]),
        (np.asarray, [1, 2]),
        (list, [1, 2]),
        (len, 2),
    ],
)
def test_is_the_array_that_it_holds(value, use, expected):
    np.testing.assert_array_equal(use(value), expected)


def test_shape_and_dtype(value):
    assert (value.shape, value.dtype) == ((2,), np.float32)


def test_a_copy_on_every_device(value, group):
    assert [part.device for part in value.values] == list(group.devices)
    for part in value.values:
        np.testing.assert_array_equal(part, [1, 2])


def test_is_its_array_to_jax(value):
    doubled = jax.tree.map(lambda x: 2 * x, value)
    assert isinstance(doubled, jax.Array)
    np.testing.assert_array_equal(doubled, [2, 4])


def test_inside_of_a_program_every_component_is_the_array(group):
    seen = []

    def step(x):
        inside = Mirrored(group, x)
        seen.extend(part is x for part in inside.values)
        return inside + 1

    assert float(jax.jit(step)(1.0)) == 2
    assert seen == [True, True]


def test_copies_are_itself(value):
    assert copy.copy(value) is value
    assert copy.deepcopy(value) is value


def test_repr_shows_every_component(value):
    text = repr(value)
    assert text.startswith("Mirrored:{\n  0: Array([1., 2.]")
    assert "\n  1: Array([1., 2.]" in text
