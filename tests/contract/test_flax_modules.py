"""flax nnx modules that a step changes in place: refused, or said to be in vain."""

import logging

import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import stratagem as sg
from stratagem._src.execution import flax_modules

pytestmark = pytest.mark.about("calls")


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(flax_modules, "_warned", [])


@pytest.fixture
def warnings(caplog):
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def make():
    module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    return module, nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)


def train(module, optimizer):
    gradient = nnx.grad(lambda module: jnp.sum(module(jnp.ones((1, 2)))))(module)
    optimizer.update(module, gradient)


def change(module):
    module.bias[...] = module.bias[...] + 1.0


@pytest.mark.parametrize("use", [train, lambda module, _: change(module)])
def test_a_captured_module_is_not_changed_by_each_replica(many, execute, use):
    module, optimizer = make()
    with pytest.raises(Exception, match="different trace level") as caught:
        execute(lambda: many.run(lambda: use(module, optimizer)))
    assert any(
        "nnx.merge(definition, variables, copy=True)" in note for note in caught.value.__notes__
    )
    assert module.bias[...].tolist() == [0]
    change(module)  # outside of the replicas
    assert module.bias[...].tolist() == [1]


def test_a_module_made_in_the_replica_may_change(strategy, execute):
    definition, state = nnx.split(make()[0])

    def step():
        module = nnx.merge(definition, state, copy=True)
        change(module)
        return module.bias[...]

    result = execute(lambda: strategy.run(step))
    assert strategy.experimental_local_results(result)[0].tolist() == [1]


def test_changes_of_an_argument_that_are_discarded_are_said(placed_strategy, execute, warnings):
    module, optimizer = make()
    execute(lambda: placed_strategy.run(lambda m: (change(m), nnx.state(m))[1], args=(module,)))
    assert warnings() == []
    execute(lambda: placed_strategy.run(train, args=(module, optimizer)))
    execute(lambda: placed_strategy.run(train, args=(module, optimizer)))
    [warning] = warnings()
    assert "changed 3 nnx variable(s)" in warning
    assert "Return nnx.state(module)" in warning
    assert module.bias[...].tolist() == [0]


def test_changes_of_an_argument_of_a_function_that_are_discarded_are_said(warnings):
    sg.function(train)(*make())
    assert "changed 3 nnx variable(s)" in warnings()[0]
