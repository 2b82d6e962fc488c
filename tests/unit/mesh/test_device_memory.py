"""How much memory of devices is in use."""

import gc

import jax
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.jax_compat.running_backends import running_backends
from stratagem._src.mesh import device_memory
from stratagem._src.mesh.device_memory import DeviceMemory


@pytest.fixture
def group():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).replica_group


def grown(make):
    gc.collect()
    before = DeviceMemory().metrics()["bytes"]
    made = make()
    after = DeviceMemory().metrics()["bytes"]
    jax.block_until_ready(made)
    return after - before


def test_every_copy_counts_and_every_part_once(group):
    rows = np.ones((4, 256), np.float32)
    assert grown(lambda: jax.device_put(rows, group.replicated)) == 2 * rows.nbytes
    assert grown(lambda: jax.device_put(rows, group.sharded)) == rows.nbytes


def test_arrays_are_not_counted_every_second(group):
    memory = DeviceMemory()
    first = memory.metrics()
    array = jax.device_put(np.ones(1000, np.float32), group.replicated)
    assert memory.metrics() is first
    del array


def test_no_backend_is_started_for_it(monkeypatch):
    assert jax.local_devices()[0].client in running_backends()
    monkeypatch.setattr(device_memory, "running_backends", list)
    assert DeviceMemory().metrics() == {}


def test_devices_that_tell_are_asked(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_in_use": 3, "peak_bytes_in_use": 5, "bytes_limit": 10, "num_allocs": 1}

    class Backend:
        def local_devices(self):
            return [Device(), Device()]

    monkeypatch.setattr(device_memory, "running_backends", lambda: [Backend()])
    assert DeviceMemory().metrics() == {"bytes": 6, "peak_bytes": 10, "limit_bytes": 20}
