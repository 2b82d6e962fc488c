"""Options of devices, threads and the optimizer in ``tf.config``, as programs for GPUs set them."""

import os
import subprocess
import sys
import types

import pytest

import stratagem as tf
from stratagem._src.mesh import device_options

GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.fixture
def with_gpu(monkeypatch):
    """Has a GPU listed, on a machine that has none; the backend has not started."""
    cpu = tf.config.list_physical_devices("CPU")[0]

    def listed(kind=None):
        return [d for d in (cpu, GPU) if kind in (None, d.device_type)]

    monkeypatch.setattr(device_options, "list_physical_devices", listed)
    monkeypatch.setattr(device_options, "may_have_accelerators", lambda: True)
    monkeypatch.setattr(device_options, "running_backends", list)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    return monkeypatch


def test_the_first_lines_of_a_program_for_gpus():
    found, _ = run(
        "import stratagem as tf\n"
        "gpus = tf.config.experimental.list_physical_devices('GPU')\n"
        "for gpu in gpus: tf.config.experimental.set_memory_growth(gpu, True)\n"
        "if gpus: tf.config.experimental.set_visible_devices(gpus[0], 'GPU')\n"
        "tf.config.set_visible_devices([], 'GPU')\n"
        "tf.config.set_soft_device_placement(True)\n"
        "tf.config.optimizer.set_jit(True)\n"
        "tf.config.optimizer.set_experimental_options({'layout_optimizer': True})\n"
        "tf.config.threading.set_inter_op_parallelism_threads(2)\n"
        "tf.config.experimental.enable_op_determinism()\n"
        "print(tf.config.get_visible_devices(), tf.config.threading.get_inter_op_parallelism_threads())\n"
    )
    assert found == "[PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')] 2"


def test_memory_growth_is_set_before_the_backend_starts(with_gpu):
    growth = tf.config.experimental
    assert not growth.get_memory_growth(GPU)
    growth.set_memory_growth(GPU, True)
    assert growth.get_memory_growth(GPU)
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    with pytest.raises(ValueError, match="Only GPUs"):
        growth.set_memory_growth(tf.config.list_physical_devices("CPU")[0], True)
    with pytest.raises(ValueError, match="no physical device 'GPU:0'"):
        growth.get_memory_growth("GPU:0")


def test_memory_growth_that_comes_too_late_says_so(with_gpu, caplog):
    with_gpu.setattr(device_options, "running_backends", lambda: ["gpu"])
    tf.config.experimental.set_memory_growth(GPU, False)
    assert caplog.messages == []
    tf.config.experimental.set_memory_growth(GPU, True)
    assert "Set XLA_PYTHON_CLIENT_PREALLOCATE=false" in caplog.text
    assert not tf.config.experimental.get_memory_growth(GPU)


def test_devices_that_cannot_be_hidden(with_gpu):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_visible_devices([cpu, GPU])
    tf.config.set_visible_devices(GPU, "GPU")
    with pytest.raises(ValueError, match="CPU cannot be hidden"):
        tf.config.set_visible_devices([GPU])
    with pytest.raises(ValueError, match="takes devices that list_physical_devices"):
        tf.config.set_visible_devices([cpu], "GPU")
    with_gpu.setattr(device_options, "running_backends", lambda: ["gpu"])
    with pytest.raises(
        RuntimeError, match=r"started with /physical_device:GPU:0.*JAX_PLATFORMS=cpu"
    ):
        tf.config.set_visible_devices([], "GPU")


def test_hidden_accelerators_are_not_started():
    found, _ = run(
        "import jax, stratagem as tf\n"
        "from stratagem._src.mesh import backend_start, device_options\n"
        "device_options.may_have_accelerators = lambda: True\n"
        "tf.config.set_visible_devices([], 'GPU')\n"
        "print(jax.config.jax_platforms)\n"
    )
    assert found == "cpu"


def test_details_of_a_gpu(with_gpu):
    gpu = types.SimpleNamespace(device_kind="NVIDIA H100", compute_capability="9.0")
    with_gpu.setattr(device_options.jax, "local_devices", lambda backend: [gpu])
    details = tf.config.experimental.get_device_details
    assert details(GPU) == {"device_name": "NVIDIA H100", "compute_capability": (9, 0)}
    assert details(tf.config.list_physical_devices("CPU")[0]) == {}


def test_determinism_is_a_flag_of_xla(with_gpu):
    with_gpu.setenv("XLA_FLAGS", "--xla_a=1")
    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_op_determinism()
    assert os.environ["XLA_FLAGS"] == "--xla_a=1 --xla_gpu_deterministic_ops=true"
    with_gpu.setenv("XLA_FLAGS", "")
    with_gpu.setattr(device_options, "running_backends", lambda: ["gpu"])
    with pytest.raises(RuntimeError, match="before the JAX backend starts"):
        tf.config.experimental.enable_op_determinism()


def test_device_raises_without_soft_placement():
    try:
        tf.config.set_soft_device_placement(False)
        assert not tf.config.get_soft_device_placement()
        with tf.device("/CPU:0"):
            assert float(tf.ones([])) == 1
        with pytest.raises(ValueError, match="soft placement is off"), tf.device("/GPU:0"):
            pass
    finally:
        tf.config.set_soft_device_placement(True)
    with tf.device("/GPU:0"):
        assert float(tf.ones([])) == 1


def test_numbers_of_threads_say_where_they_are_set(caplog):
    threading = tf.config.threading
    threading.set_intra_op_parallelism_threads(3)
    assert "PJRT_NPROC=3" in caplog.text
    assert threading.get_intra_op_parallelism_threads() == 3
    threading.set_intra_op_parallelism_threads(0)


def test_options_that_change_numbers_are_refused():
    optimizer = tf.config.optimizer
    optimizer.set_experimental_options({"remapping": True, "auto_mixed_precision": False})
    assert optimizer.get_experimental_options()["remapping"]
    with pytest.raises(
        NotImplementedError, match=r"auto_mixed_precision=True. Use .*mixed_bfloat16"
    ):
        optimizer.set_experimental_options({"auto_mixed_precision": True})
