"""Variables that a worker creates later than the others, and gets from them."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg


@pytest.fixture
def strategy():
    strategy = sg.distribute.MultiWorkerMirroredStrategy()  # no cluster: one worker
    strategy.extended.is_elastic = True
    return strategy


class Lazy:
    """Two variables of one shape that the first step creates, the first one with a computed value."""

    def __init__(self):
        self.made = []

    def step(self, x):
        if not self.made:
            self.made.append(sg.Variable(jnp.sum(x) * jnp.ones(2)))
            self.made.append(sg.Variable(np.zeros(2, np.float32)))
        return jnp.sum(x)


@pytest.mark.parametrize("compiled", [True, False])
def test_they_get_values_in_the_order_of_their_creation(strategy, compiled):
    given = [np.array([1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)]
    strategy.extended.expect(given)
    lazy = Lazy()
    step = sg.function(lazy.step) if compiled else lazy.step
    with strategy.scope():
        step(np.ones(2, np.float32))
    assert [v.numpy().tolist() for v in lazy.made] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("compiled", [True, False])
def test_they_are_known_in_the_order_of_their_creation(strategy, compiled):
    lazy = Lazy()
    step = sg.function(lazy.step) if compiled else lazy.step
    with strategy.scope():
        step(np.ones(2, np.float32))
    created = strategy.extended.created_variables()
    assert [id(v) for v in created] == [id(v) for v in lazy.made]
    assert [id(v) for v, _ in strategy.extended.first_values()] == [id(v) for v in lazy.made]
