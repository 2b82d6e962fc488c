"""Importing the library has no effects; what it costs is measured in benchmarks/import_time.py."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading
import jax

class Watched(dict):
    read = []
    def __getitem__(self, key):
        self.read.append(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        self.read.append(key)
        return super().get(key, default)

before = dict(os.environ)
os.environ = Watched(os.environ)
import stratagem, stratagem.cluster, stratagem.partitioners
from jax._src import xla_bridge
started = xla_bridge.backends_are_initialized()
print(threading.active_count(), started, Watched.read, dict(os.environ) == before)
"""


def run(program, *flags):
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_import_starts_no_backend_and_no_thread_and_reads_no_environment():
    assert run(PROGRAM).strip() == "1 False [] True"


@pytest.mark.parametrize("module", ["optax", "flax", "pyarrow", "keras", "tensorflow", "torch"])
def test_import_leaves_optional_libraries_alone(module):
    assert run(f"import sys, stratagem; print({module!r} in sys.modules)").strip() == "False"
