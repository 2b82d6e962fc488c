"""What a restored checkpoint leaves in the program's own structures."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

pytestmark = pytest.mark.about("variables")


class Pair(NamedTuple):
    kernel: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: Any
    bias: Any


@jax.tree_util.register_pytree_with_keys_class
class Box:
    def __init__(self, *parts):
        self.parts = parts

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.SequenceKey(i), p) for i, p in enumerate(self.parts)], None

    @classmethod
    def tree_unflatten(cls, _, parts):
        return cls(*parts)


def _nnx_state(kernel, bias):
    nnx = pytest.importorskip("flax.nnx")
    return nnx.State({"layer": {"kernel": nnx.Param(kernel), "bias": nnx.Param(bias)}})


CONTAINERS = {
    "nnx": _nnx_state,
    "named_tuple": Pair,
    "dataclass": Layer,
    "pytree": Box,
    "dict": lambda kernel, bias: {"layer": [kernel, {"bias": bias}]},
}


@pytest.mark.spread("container")
@pytest.mark.parametrize("container", CONTAINERS)
def test_variables_stay_where_they_are_in_a_restored_structure(
    strategy, prepare, container, tmp_path
):
    with strategy.scope():
        kernel, bias = sg.Variable([1.0, 2.0]), sg.Variable(1.0)
    params = CONTAINERS[container](kernel, bias)
    checkpoint = sg.train.Checkpoint(params=params)
    path = checkpoint.save(tmp_path / "ckpt")

    def change():
        kernel.assign(jnp.zeros(2))
        bias.assign(0.0)

    change()
    checkpoint.restore(path).assert_consumed()
    found = sg.nest.flatten(params)
    assert {id(v) for v in found} == {id(kernel), id(bias)}
    assert {id(v) for v in sg.nest.flatten(checkpoint.params)} == {id(kernel), id(bias)}
    np.testing.assert_array_equal(kernel.numpy(), [1, 2])
    assert float(bias) == 1

    @prepare
    def step():
        def run():
            return sg.value_and_grad(lambda: jnp.sum(kernel * bias), [kernel, bias])()

        return strategy.reduce("MEAN", strategy.run(run)[0], axis=None)

    assert float(step()) == 3
