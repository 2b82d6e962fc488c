"""Strategies with devices of a topology description: programs are compiled, nothing runs."""

import jax
import numpy as np
import pytest
from targets import devices_of

import stratagem as sg

TARGET = "v5e:2x4"


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(devices_of(TARGET))


def test_variables_are_created_and_read_as_always(strategy):
    with strategy.scope():
        v = sg.Variable([1.0, 2.0])
    v.assign_add([1.0, 1.0])
    np.testing.assert_array_equal(v.numpy(), [2.0, 3.0])
    assert strategy.num_replicas_in_sync == 8


def test_a_function_that_creates_its_variables(strategy):
    held = []

    @sg.function
    def step(x):
        with strategy.scope():
            if not held:
                held.append(sg.Variable(x * 3))
        return strategy.run(lambda: held[0] * 2)

    assert step.lower(np.float32(2.0)).compile().memory_analysis()
    assert float(held[0]) == 6.0


@pytest.mark.parametrize("times", [1, 3])
def test_calls_and_collectives_are_refused(strategy, times):
    x = strategy.experimental_distribute_values_from_function(lambda _: np.ones(2, np.float32))
    step = sg.function(lambda x: strategy.reduce("SUM", x))
    for _ in range(times):
        with pytest.raises(sg.errors.DeviceError, match="compiled but not run"):
            step(x)
        with pytest.raises(sg.errors.DeviceError, match="compiled but not run"):
            strategy.reduce("SUM", x)


def test_described_and_real_devices_do_not_mix():
    with pytest.raises(sg.errors.DeviceError, match="got both"):
        sg.distribute.MirroredStrategy([devices_of(TARGET)[0], jax.devices("cpu")[0]])
