"""Freed memory stays in the process, unless the user chose how ``malloc`` works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratagem._src.process import malloc

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc is the C library of Linux"
)

# The page faults of touching 64 MiB that were freed before.
_FAULTS = """
import ctypes, resource
from stratagem._src.process.malloc import keep_freed_memory
print(keep_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def touch():
    block = libc.malloc(64 * 2**20)
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS],
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
