import subprocess
import sys

import jax
import pytest

import stratagem as sg
from stratagem._src.mesh.devices import DeviceName, canonical_name, parse_device, resolve_devices


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU:0", DeviceName("cpu", 0)),
        ("cpu:3", DeviceName("cpu", 3)),
        ("/gpu:1", DeviceName("gpu", 1)),
        ("/device:GPU:2", DeviceName("gpu", 2)),
        ("/job:localhost/replica:0/task:0/device:GPU:0", DeviceName("gpu", 0)),
        ("/job:worker/task:1/device:TPU:7", DeviceName("tpu", 7)),
    ],
)
def test_parse(text, expected):
    assert parse_device(text) == expected


@pytest.mark.parametrize("text", ["", "CPU", "CPU:", "CPU:x", "XPU:0", "CPU:0:1", "cpu 0"])
def test_malformed_names(text):
    with pytest.raises(ValueError, match="written like"):
        parse_device(text)


def test_resolve():
    assert resolve_devices("CPU:1") == (jax.devices()[1],)
    assert resolve_devices([jax.devices()[2], "/cpu:0"]) == (jax.devices()[2], jax.devices()[0])
    assert resolve_devices() == resolve_devices([]) == tuple(jax.devices())
    name = "/job:localhost/replica:0/task:0/device:CPU:3"
    assert canonical_name(resolve_devices(name)[0]) == name


def test_unknown_and_repeated_devices():
    with pytest.raises(ValueError, match=r"no device GPU:0.*Available: .*CPU:0"):
        sg.distribute.MirroredStrategy(["GPU:0"])
    with pytest.raises(ValueError, match="given once"):
        sg.distribute.MirroredStrategy(["CPU:0", "CPU:0"])
    with pytest.raises(ValueError, match="one device"):
        sg.distribute.OneDeviceStrategy(["CPU:0"])


def test_too_late_for_more_devices():
    with pytest.raises(RuntimeError, match=r"set_num_cpu_devices\(100\) at the start"):
        sg.distribute.MirroredStrategy(["CPU:99"])
    with pytest.raises(RuntimeError, match="already started with 8"):
        sg.config.set_num_cpu_devices(3)
    sg.config.set_num_cpu_devices(8)
    with pytest.raises(ValueError, match="at least 1"):
        sg.config.set_num_cpu_devices(0)


def test_list_logical_devices():
    listed = sg.config.list_logical_devices()
    assert [d.device_type for d in listed] == ["CPU"] * 8
    assert sg.config.list_logical_devices("GPU") == []
    assert sg.config.list_logical_devices("cpu") == listed


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("s = sg.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])", "2 2"),
        pytest.param("s = sg.distribute.MirroredStrategy()", "1 1", marks=pytest.mark.slow),
        pytest.param("sg.config.set_num_cpu_devices(3); s = sg.distribute.MirroredStrategy()", "3 3",
                     marks=pytest.mark.slow),
        ("sg.config.set_num_cpu_devices(4); s = sg.distribute.MirroredStrategy(['CPU:1'])", "1 4"),
        ("os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=5'; "
         "s = sg.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])", "2 5"),
        pytest.param("s = sg.distribute.CentralStorageStrategy(['CPU:0', 'CPU:1'])", "2 2",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_devices_are_provided_before_the_backend_starts(program, expected):
    tail = "; print(s.num_replicas_in_sync, len(jax.devices()))"
    done = subprocess.run(
        [sys.executable, "-c", f"import os, jax, stratagem as sg; {program}{tail}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
