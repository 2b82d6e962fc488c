"""Freed memory is kept from the first need of devices on, on CPU, and never by an import alone."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc is the C library of Linux"
)

# Prints how often memory was kept after the imports, and whether the backend had started each time later.
_PROGRAM = """
from jax._src import xla_bridge
import stratagem as sg
sg.Variable, sg.distribute.MirroredStrategy
from stratagem._src.mesh import backend_start
calls = []
def keep():
    calls.append(xla_bridge.backends_are_initialized())
backend_start.keep_freed_memory = keep
print(len(calls))
{use}
print(calls)
"""

_USES = [
    pytest.param("sg.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])", id="strategy"),
    pytest.param("sg.Variable(1.0)", id="variable", marks=pytest.mark.slow),
    pytest.param("sg.function(lambda x: x + 1)(2)", id="function", marks=pytest.mark.slow),
    pytest.param("sg.config.list_logical_devices()", id="devices", marks=pytest.mark.slow),
]


def run(use: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(use=use)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:2]


@pytest.mark.parametrize("use", _USES)
def test_memory_is_kept_before_the_backend_starts(use):
    assert run(f"{use}\n{use}", JAX_PLATFORMS="cpu") == ["0", "[False]"]


def test_programs_on_accelerators_keep_the_allocator():
    use = "from stratagem._src.mesh.backend_start import prepare_backend; prepare_backend()"
    assert run(use, JAX_PLATFORMS="cuda,cpu") == ["0", "[]"]
