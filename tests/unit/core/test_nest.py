"""``sg.nest``: structures whose leaves are variables, and stay variables where a user maps over them."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import stratagem as sg


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["kernel", "bias"], meta_fields=["name"]
)
@dataclasses.dataclass
class Dense:
    kernel: sg.Variable
    bias: sg.Variable
    name: str = "dense"


class Layers(dict):
    """A container of the user's own."""


def make_model():
    return Layers(
        first=Dense(sg.Variable([1.0, 2.0]), sg.Variable(3.0)),
        rest=[{"w": sg.Variable(4.0)}, (sg.Variable(5.0), None)],
    )


@pytest.fixture(params=["none", "mirrored"])
def model(request):
    if request.param == "none":
        return make_model()
    with sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return make_model()


def test_leaves_are_the_variables(model):
    leaves = sg.nest.flatten(model)
    assert leaves[0] is model["first"].kernel
    assert [leaf is None or isinstance(leaf, sg.Variable) for leaf in leaves] == [True] * 5
    assert leaves[-1] is None


def test_a_map_can_assign(model):
    mapped = sg.nest.map_structure(lambda v: None if v is None else v.assign(v * 10), model)
    assert type(mapped) is Layers
    assert mapped["first"].bias is model["first"].bias
    assert mapped["first"].name == "dense"
    np.testing.assert_array_equal(model["first"].kernel, [10.0, 20.0])
    assert float(model["rest"][1][0]) == 50.0


def test_maps_over_several_structures(model):
    ones = sg.nest.map_structure(lambda v: v if v is None else np.ones(v.shape), model)
    sg.nest.map_structure(lambda v, one: v if v is None else v.assign_add(one), model, ones)
    assert float(model["rest"][0]["w"]) == 5.0


def test_within_a_compiled_function(model):
    @sg.function
    def grow():
        sg.nest.map_structure(lambda v: v if v is None else v.assign_add(v), model)

    grow()
    assert float(model["first"].bias) == 6.0


def test_packing_what_was_flattened(model):
    leaves = sg.nest.flatten(model)
    packed = sg.nest.pack_sequence_as(model, leaves)
    assert packed["rest"][1][0] is model["rest"][1][0]
    with pytest.raises(ValueError, match="5 leaves, got 4"):
        sg.nest.pack_sequence_as(model, leaves[1:])


def test_forms_are_compared_before_anything_happens(model):
    called = []
    with pytest.raises(ValueError, match="same form"):
        sg.nest.map_structure(lambda *v: called.append(v), model, {"first": 1})
    with pytest.raises(ValueError, match="at least one"):
        sg.nest.map_structure(called.append)
    sg.nest.assert_same_structure([1, 2], [3, None])
    with pytest.raises(ValueError, match="same form"):
        sg.nest.assert_same_structure([1, 2], (1, 2))
    assert not called


@pytest.mark.parametrize(
    ("value", "expected"),
    [([], True), ({}, True), (None, False), ("ab", False), (np.ones(2), False), ((1,), True)],
    ids=["list", "dict", "none", "text", "array", "tuple"],
)
def test_is_nested(value, expected):
    assert sg.nest.is_nested(value) is expected
    assert not sg.nest.is_nested(sg.Variable(1.0))


def test_to_jax_a_variable_is_its_value(model):
    """What jnp.sum(v) and jax.jit(f)(v) need; jax.tree takes variables as leaves if it is told."""
    assert not any(isinstance(leaf, sg.Variable) for leaf in jax.tree.leaves(model["rest"]))
    kept = jax.tree.leaves(model["rest"], is_leaf=lambda x: isinstance(x, sg.Variable))
    assert kept == [model["rest"][0]["w"], model["rest"][1][0]]
