"""XLA's flags as they are when JAX starts its CPU backend."""

import os
import subprocess
import sys

import pytest

from stratagem._src.jax_compat.xla_flags import added_to_xla_flags

LIMIT = "--xla_cpu_collective_call_terminate_timeout_seconds"
SHOW_FLAGS = """
{imports}
import os, dataclasses
from jax._src import xla_bridge
registered = xla_bridge._backend_factories["cpu"]
make, seen = registered.factory.__wrapped__, []
registered.factory.__closure__[
    registered.factory.__code__.co_freevars.index("make")
].cell_contents = lambda: seen.append(os.environ["XLA_FLAGS"]) or make()
before = os.environ.get("XLA_FLAGS")
jax.devices()
assert os.environ.get("XLA_FLAGS") == before
print(seen)
"""


@pytest.mark.parametrize("imports", ["import jax, stratagem", "import stratagem, jax"])
@pytest.mark.parametrize(
    ("flags", "limit"),
    [("", f"{LIMIT}=2592000"), (f"{LIMIT}=7", f"{LIMIT}=7"), ("--xla_dump_to=", "2592000")],
)
def test_collectives_are_given_time_whoever_starts_the_backend(imports, flags, limit):
    finished = subprocess.run(
        [sys.executable, "-c", SHOW_FLAGS.format(imports=imports)],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    assert limit in finished.stdout
    assert finished.stdout.count(LIMIT) == 1
    assert flags in finished.stdout


def test_a_file_of_flags_is_left_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "/etc/flags.txt")
    with added_to_xla_flags("--xla_one=1"):
        assert os.environ["XLA_FLAGS"] == "/etc/flags.txt"


@pytest.mark.parametrize("before", [None, "--xla_two=2"])
def test_flags_are_added_for_a_while(monkeypatch, before):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if before is not None:
        monkeypatch.setenv("XLA_FLAGS", before)
    with added_to_xla_flags("--xla_one=1"):
        assert os.environ["XLA_FLAGS"].split() == [*(before or "").split(), "--xla_one=1"]
    assert os.environ.get("XLA_FLAGS") == before
