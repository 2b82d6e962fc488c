"""A strategy for all devices that finds one says so, once."""

import os
import subprocess
import sys

PROGRAM = """
import stratagem as sg
{first}
sg.distribute.MirroredStrategy({devices})
sg.distribute.MirroredStrategy({devices})
"""


def said(first="", devices=""):
    names = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    env = {k: v for k, v in os.environ.items() if k not in names} | {"JAX_PLATFORMS": "cpu"}
    program = PROGRAM.format(first=first, devices=devices)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


def test_one_device_is_told_of_once_with_the_way_to_more():
    [line] = said()
    assert line.startswith("MirroredStrategy found one device, ")
    assert "found no accelerator" in line
    assert 'MirroredStrategy(["CPU:0", "CPU:1"])' in line


def test_a_backend_that_ran_before_is_named_as_the_reason():
    [line] = said("import jax; jax.devices()")
    assert "JAX had started before with one CPU device" in line
    assert "in a notebook the kernel" in line


def test_a_device_that_was_asked_for_is_not_news():
    assert said(devices='["CPU:0"]') == []
