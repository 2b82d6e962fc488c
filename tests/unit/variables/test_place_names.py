"""Variables without a name are called after their place in a structure."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import stratagem as sg


@functools.partial(jax.tree_util.register_dataclass, data_fields=["kernel"], meta_fields=[])
@dataclasses.dataclass
class Dense:
    kernel: sg.Variable


def make_model():
    return {
        "layer1": {"w": sg.Variable([1.0, 2.0])},
        "rest": [Dense(sg.Variable(3.0)), sg.Variable(4.0, name="mine")],
    }


NAMES = ["layer1/w:0", "rest/0/kernel:0", "mine:0"]


def names(model):
    return [v.name for v in sg.nest.flatten(model)]


@pytest.fixture(params=["none", "mirrored", "central"])
def model(request):
    if request.param == "none":
        return make_model()
    made = {
        "mirrored": sg.distribute.MirroredStrategy,
        "central": sg.distribute.CentralStorageStrategy,
    }[request.param](["CPU:0", "CPU:1"])
    with made.scope():
        return make_model()


def test_gradients_name_the_variables(model):
    assert names(model) == ["Variable:0", "Variable:0", "mine:0"]
    sg.value_and_grad(lambda: jnp.sum(model["layer1"]["w"]), model)
    assert names(model) == NAMES
    with pytest.raises(ValueError, match=r"layer1/w"):
        model["layer1"]["w"].assign([1.0, 2.0, 3.0])
    assert "layer1/w" in repr(model["layer1"]["w"])


def test_checkpoints_name_the_variables(model):
    sg.train.Checkpoint(model=model, step=sg.Variable(0, name="step"))
    assert names(model) == ["model/layer1/w:0", "model/rest/0/kernel:0", "mine:0"]


def test_optimizers_name_the_variables(model):
    optimizer = sg.train.Optimizer(optax.sgd(0.1, momentum=0.9))
    optimizer.build(model)
    assert names(model) == NAMES
    assert any("layer1/w" in state.name for state in optimizer.variables)


def test_the_first_name_stays(model):
    sg.value_and_grad(lambda: 0.0, model)
    sg.train.Checkpoint(model=model)
    sg.value_and_grad(lambda: 0.0, {"other": model})
    assert names(model) == NAMES


def test_numbers_alone_are_no_name():
    variables = [sg.Variable(1.0), sg.Variable(2.0)]
    sg.value_and_grad(lambda: variables[0] * 1.0, variables)
    sg.value_and_grad(lambda: variables[0] * 1.0, (variables[0], [variables[1]]))
    assert names(variables) == ["Variable:0", "Variable:0"]
