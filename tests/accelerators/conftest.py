"""XLA's compilers for TPU and GPU, without devices. ``make test-compilers`` installs them."""

import importlib.util
import os
import sys
from pathlib import Path

import jax
import pytest

import stratagem as sg

sys.path.insert(0, str(Path(__file__).parent))

_NEEDED = ("libtpu", "jax_cuda13_plugin")
_MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]

# Neither compiler may look for devices.
jax.config.update("jax_platforms", "cpu")
os.environ.update(
    KERAS_BACKEND="jax",
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5litepod-8",
)
sg.config.set_num_cpu_devices(16)  # they hold the values of replicas on two GPU hosts


def pytest_collection_modifyitems(items):
    for item in items:
        if _MISSING:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(_MISSING)}"))
        item.add_marker(pytest.mark.timeout(600))
