"""Freed memory stays in the process, unless the user chose how ``malloc`` works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.process import malloc

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc is the C library of Linux"
)

# The page faults of touching memory that was freed before.
_FAULTS = """
import ctypes, resource, sys, threading
from stratagem._src.process.malloc import keep_freed_memory
print(keep_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
where, size = sys.argv[1], int(sys.argv[2]) * 2**20
def touch():
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
def measure():
    touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    touch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
if where == "main":
    measure()
else:
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
"""


def faults(where: str = "main", size: int = 80, **environment: str) -> tuple[bool, int]:
    """Returns whether ``malloc`` was tuned, and the page faults of a block of so many MiB in a thread."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, where, str(size)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = done.stdout.split()
    return kept == "True", int(count)


def test_memory_that_was_freed_is_not_faulted_in_again():
    kept, count = faults()
    assert kept
    assert count < 100
    kept, count = faults(STRATAGEM_MALLOC="default")
    assert not kept
    assert count > 1_000  # else this test shows nothing


def test_threads_keep_blocks_of_less_than_64_mib_and_with_one_arena_larger_ones():
    _, count = faults("thread", 40)
    assert count < 100
    _, count = faults("thread", 80)
    assert count > 1_000  # as the documentation says
    _, count = faults("thread", 80, STRATAGEM_MALLOC="one-arena")
    assert count < 100


def test_an_unknown_choice_is_an_error(monkeypatch):
    monkeypatch.setenv("STRATAGEM_MALLOC", "jemalloc")
    with pytest.raises(InvalidArgumentError, match="must be default or one-arena, not 'jemalloc'"):
        malloc.keep_freed_memory()


def test_huge_pages_are_kept_too():
    kept, count = faults(GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
    assert kept
    assert count < 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STRATAGEM_MALLOC", "default"),
        ("MALLOC_ARENA_MAX", "2"),
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=4"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
    ],
)
def test_the_choice_of_the_user_counts(name, value, monkeypatch):
    monkeypatch.delenv(malloc.MALLOC_VARIABLE, raising=False)
    assert malloc.malloc_is_ours_to_tune()
    monkeypatch.setenv(name, value)
    assert not malloc.malloc_is_ours_to_tune()


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(malloc.sys, "platform", "darwin")
    assert not malloc.malloc_is_ours_to_tune()


# Four buffers of 24 MiB that are in use at once: more than the heap of a thread holds in one block.
_FAULTS_OF_A_STEP = """
import resource
import jax.numpy as jnp, numpy as np
import stratagem as sg
@sg.function
def step(x):
    parts = [jnp.tanh((x + i) @ x[:2048].T) for i in range(4)]
    return sum(part[::-1] for part in parts)[0, 0]
x = np.ones((3072, 2), np.float32)
def run():
    for _ in range(3):
        step(x).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(-run() + run())
"""


def faults_of_steps(**environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS_OF_A_STEP],
        # One thread runs all steps: each one gets its own heaps.
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(sys.path),
            "PJRT_NPROC": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_the_temporary_buffers_of_a_step_are_not_faulted_in_again():
    assert faults_of_steps() < 1_000
    assert faults_of_steps(XLA_FLAGS="--xla_multiheap_size_constraint_per_heap=-1") > 10_000
