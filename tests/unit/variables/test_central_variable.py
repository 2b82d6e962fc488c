import jax
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.central_variable import CentralVariable


def test_one_copy_on_the_parameter_device(central):
    v = central([1.0, 2.0])
    assert type(v) is CentralVariable
    v.assign_sub([1.0, 1.0])
    (only,) = v.values
    assert only.device == v.parameter_device == jax.devices("cpu")[3]
    assert v.device.endswith("CPU:3")
    np.testing.assert_array_equal(only, [0, 1])


def test_a_program_gets_a_copy_on_every_device_of_its_own(central, group):
    v = central(1.0)
    taken = v.take_for_program(group, donate=True)
    assert taken.devices() == set(group.devices)
    taken.delete()
    assert float(v) == 1


@pytest.mark.parametrize("devices", [slice(0, 2), slice(2, 4)], ids=["elsewhere", "there too"])
def test_what_a_program_returns_goes_to_the_parameter_device(central, devices):
    v = central(1.0)
    group = ReplicaGroup.of(jax.devices("cpu")[devices])
    v.accept_from_program(group, group.replicate(np.float32(5)), shared=False)
    assert (float(v), v.values[0].device) == (5, v.parameter_device)


@pytest.mark.parametrize("devices", [slice(0, 2), slice(2, 4), slice(3, 4)])
def test_a_value_read_before_a_step_stays(devices):
    devices = jax.devices("cpu")[devices]
    strategy = sg.distribute.experimental.CentralStorageStrategy(devices, jax.devices("cpu")[3])
    with strategy.scope():
        v = sg.Variable([1.0, 2.0], aggregation=sg.VariableAggregation.SUM)
    step = sg.function(lambda: strategy.run(lambda: v.assign_add([1.0, 1.0])))
    read = []
    for _ in range(5):
        read.append(v.value())
        step()
        step()
    assert [value.tolist() for value in read] == [
        [1.0 + 2 * i * len(devices), 2.0 + 2 * i * len(devices)] for i in range(5)
    ]
    assert {value.device for value in read} == {jax.devices("cpu")[3]}
    assert v.values[0].device == jax.devices("cpu")[3]
