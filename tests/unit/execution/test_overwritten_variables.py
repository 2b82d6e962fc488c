"""Programs that give variables new values do so in the arrays that they were given."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_nothing_is_copied_before_it_is_overwritten(num_replicas):
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        mean = sg.VariableAggregation.MEAN
        initial = np.eye(16, dtype=np.float32) / 2
        layers = [sg.Variable(initial, aggregation=mean) for _ in range(6)]

    def replica_step(x):
        def loss():
            y = x
            for layer in layers:
                y = jnp.tanh(y @ layer.value())
            return jnp.sum(y)

        value, gradients = sg.value_and_grad(loss, layers)()
        for layer, gradient in zip(layers, gradients, strict=True):
            layer.assign_sub(0.1 * gradient)
        return value

    @sg.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    x = jnp.ones((8, 16))
    step(x)
    [[entry]] = step._programs._entries.values()
    program = entry.program
    donated, kept = program.variables.lend(program.variables.hold())
    assert len(donated) == len(layers)
    placed = x if program.group is None else program.group.replicate(x)
    compiled = program.jitted.lower(donated, kept, program.consts, [placed]).compile().as_text()
    assert "input_output_alias" in compiled
    assert " copy(" not in compiled
