"""What computes on the CPU works beside accelerators, also if JAX was told to start only those."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.jax_compat.host_device import host_device, on_host
from stratagem._src.parameter_server.server.server_computation import on_server

_PROGRAM = """
import jax
from stratagem._src.jax_compat.host_device import add_host_platform
{before}
add_host_platform()
print(jax.config.jax_platforms)
"""


def platforms(named, before=""):
    environment = {"PATH": os.environ["PATH"], **({"JAX_PLATFORMS": named} if named else {})}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(before=before)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("named", "expected"),
    [("cuda", "cuda,cpu"), ("tpu", "tpu,cpu"), ("cpu", "cpu"), ("cpu,cuda", "cpu,cuda")],
)
def test_the_cpu_is_added_behind_the_named_platforms(named, expected):
    assert platforms(named) == expected


def test_a_running_backend_is_left_alone():
    changed = "jax.devices(); jax.config.update('jax_platforms', 'cuda')"
    assert platforms("cpu", changed) == "cuda"


@pytest.fixture
def _without_cpu(monkeypatch):
    """JAX as it is after it was started with accelerators only; here those are CPUs too."""
    local_devices = jax.local_devices

    def without(*args, backend=None, **kwargs):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return local_devices(*args, backend=backend, **kwargs)

    monkeypatch.setattr(jax, "local_devices", without)


@pytest.mark.usefixtures("_without_cpu")
def test_nothing_needs_a_cpu_device():
    assert host_device() is None
    with on_host():
        assert float(jax.numpy.ones(())) == 1.0
    mapped = sg.data.Dataset.range(4).map(lambda x: x * 2).batch(4)
    np.testing.assert_array_equal(next(iter(mapped)), [0, 2, 4, 6])
    with on_server(np.dtype(np.float64)):
        assert jax.numpy.ones((), np.float64).dtype == np.float64
    called = jax.jit(lambda x: jax.pure_callback(np.sin, x, x))
    np.testing.assert_allclose(sg.function(called)(jax.numpy.ones(3)), np.sin(1.0), rtol=1e-6)
    strategy = sg.distribute.MirroredStrategy(jax.devices()[:2])
    with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
        v = sg.Variable(np.arange(4.0, dtype=np.float32))
    np.testing.assert_array_equal(v.numpy(), np.arange(4.0))


def test_full_values_of_sharded_variables_are_made_on_the_host():
    strategy = sg.distribute.MirroredStrategy(jax.devices()[2:4])
    made_on = []

    def initial():
        made = jax.numpy.ones(8)
        made_on.append(made.device)
        return made

    with jax.default_device(jax.devices()[3]), strategy.scope():
        with sg.distribute.experimental.FullySharded(min_size=2):
            sg.Variable(initial)
        sg.Variable(initial)
    assert made_on == [host_device(), jax.devices()[3]]
