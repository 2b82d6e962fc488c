"""Thousands of compiled steps, none of them read, on more devices than cores."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import jax.numpy as jnp
import stratagem as sg

count, steps = int(sys.argv[1]), int(sys.argv[2])
strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
with strategy.scope():
    weights = [sg.Variable(jnp.eye(64), aggregation=sg.VariableAggregation.MEAN) for _ in range(4)]

@sg.function
def step(x):
    def replica(x):
        for w in weights:
            x = jnp.tanh(x @ w)
            x = x + sg.distribute.get_replica_context().all_reduce("MEAN", x)
            w.assign_add(x[:64] * 1e-3)
        return x
    return strategy.run(replica, args=(x,))

other = sg.function(lambda x: strategy.reduce("SUM", x, axis=0))
x = jnp.ones((64, 64))
for _ in range(steps):
    result = step(x)
    other(result)
print(float(weights[0][0, 0]))
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "count",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8],
)
def test_steps_launched_without_reading_a_result_finish(count):
    steps = 3000 if count < 8 else 2000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(count), str(steps)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
