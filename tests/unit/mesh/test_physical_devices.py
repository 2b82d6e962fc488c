"""``config`` as TensorFlow spells it; settings come before the backend, so programs run in processes."""

import subprocess
import sys

import pytest

import stratagem as sg

SPLIT = """
import stratagem as tf
assert tf.config.list_physical_devices("GPU") == tf.config.list_physical_devices("XYZ") == []
[cpu] = tf.config.list_physical_devices("CPU")
assert tf.config.list_physical_devices() == [cpu] == tf.config.list_physical_devices("cpu")
assert (cpu.name, cpu.device_type) == ("/physical_device:CPU:0", "CPU")
assert tf.config.get_logical_device_configuration(cpu) is None
three = [tf.config.LogicalDeviceConfiguration()] * 3
tf.config.set_logical_device_configuration(cpu, three)
assert tf.config.get_logical_device_configuration(cpu) == three
assert len(tf.config.list_logical_devices("CPU")) == 3  # starts the backend
tf.config.set_logical_device_configuration(cpu, three)
strategy = tf.distribute.MirroredStrategy()
assert strategy.num_replicas_in_sync == 3
try:
    tf.config.set_logical_device_configuration(cpu, three[:2])
except RuntimeError as error:
    print(type(error).__name__, len(tf.config.list_physical_devices()))
"""
OLDER = """
import stratagem as tf
experimental = tf.config.experimental
cpus = experimental.list_physical_devices("CPU")
experimental.set_virtual_device_configuration(cpus[0], [experimental.VirtualDeviceConfiguration()] * 2)
assert len(experimental.get_virtual_device_configuration(cpus[0])) == 2
print(len(experimental.list_logical_devices("CPU")))
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cpu_is_split_before_the_backend_starts():
    assert run(SPLIT) == "BackendStartedError 1"


def test_older_names():
    assert run(OLDER) == "2"


def test_what_cannot_be_configured_is_refused():
    [cpu] = sg.config.list_physical_devices("CPU")
    whole = sg.config.LogicalDeviceConfiguration()
    for device in "CPU:0", sg.config.PhysicalDevice("/physical_device:CPU:7", "CPU"):
        with pytest.raises(ValueError, match="no physical device"):
            sg.config.set_logical_device_configuration(device, [whole])
        with pytest.raises(ValueError, match="no physical device"):
            sg.config.get_logical_device_configuration(device)
    limited = sg.config.LogicalDeviceConfiguration(memory_limit=7)
    with pytest.raises(ValueError, match=r"no memory limit.*memory_limit=7"):
        sg.config.set_logical_device_configuration(cpu, [whole, limited])
    with pytest.raises(ValueError, match="got none"):
        sg.config.set_logical_device_configuration(cpu, [])
