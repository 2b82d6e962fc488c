"""Keeps freed memory in the process, so that a step does not fault its temporary buffers in again.

XLA's CPU backend allocates the temporary buffers of a program with ``malloc`` in every call. By default
glibc maps large blocks from the kernel and returns them when they are freed, so each step touches new
pages: 8,800 page faults a step for a small transformer, 44,000 for a ResNet. With the settings here freed
blocks stay in the heaps and the faults are gone. The price: the process keeps the largest amount of memory
that it ever used.

A thread other than the main one has heaps (an *arena*) of at most 64 MiB; larger blocks are mapped again
each time. So programs are compiled to allocate their temporary buffers in smaller blocks
(``mesh/backend_start.py``). ``STRATAGEM_MALLOC=one-arena`` lets all threads share the main arena, which has
no such limit, for results of more than 64 MiB. It is not the default, because then all threads contend for
one lock: steps of small models, which take 0.1 ms, were 0.7 times as fast.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["MALLOC_VARIABLE", "MAX_KEPT_BYTES", "keep_freed_memory", "malloc_is_ours_to_tune"]

MALLOC_VARIABLE = "STRATAGEM_MALLOC"
"""The environment variable: ``default`` turns this off, ``one-arena`` lets all threads share a heap."""

MAX_KEPT_BYTES = 2**26
"""The size of the heaps of a thread: larger blocks are mapped from the kernel each time."""

_DEFAULT, _ONE_ARENA = "default", "one-arena"

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8

_MAX_INT = 2**31 - 1
_TOP_PAD_BYTES = 256 * 2**20

# Environment variables by which users tune or replace glibc's allocator.
_CHOSEN_BY_USER = re.compile(r"MALLOC_\w+_?")
_HUGE_PAGES = "glibc.malloc.hugetlb=1"  # set by `stratagem run`, and kept: heaps use huge pages too
_OTHER_ALLOCATOR = re.compile(r"jemalloc|tcmalloc|mimalloc|hoard|scudo")


def malloc_is_ours_to_tune() -> bool:
    """Returns whether this process uses glibc's ``malloc`` as it comes, and the user wants it tuned.

    Raises:
        InvalidArgumentError: If ``STRATAGEM_MALLOC`` has an unknown value.
    """
    environment = os.environ
    wanted = environment.get(MALLOC_VARIABLE, "")
    if wanted not in ("", _DEFAULT, _ONE_ARENA):
        raise InvalidArgumentError(
            f"{MALLOC_VARIABLE} must be {_DEFAULT} or {_ONE_ARENA}, not {wanted!r}. Unset it to keep "
            "freed memory."
        )
    if not sys.platform.startswith("linux") or wanted == _DEFAULT:
        return False
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return False
    except (OSError, ValueError):  # another C library does not know the name
        return False
    return not (
        any(map(_CHOSEN_BY_USER.fullmatch, environment))
        or "glibc.malloc." in environment.get("GLIBC_TUNABLES", "").replace(_HUGE_PAGES, "")
        or _OTHER_ALLOCATOR.search(environment.get("LD_PRELOAD", ""))
    )


def keep_freed_memory() -> bool:
    """Makes ``malloc`` keep what is freed; returns whether it does.

    Call it before JAX starts its threads: one that has allocated before keeps an arena of its own.
    """
    if not malloc_is_ours_to_tune():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = [
        (_M_MMAP_MAX, 0),  # large blocks come from the heap too
        (_M_TRIM_THRESHOLD, _MAX_INT),  # the end of a heap is never returned to the kernel
        (_M_TOP_PAD, _TOP_PAD_BYTES),  # and grows in large steps
    ]
    if os.environ.get(MALLOC_VARIABLE) == _ONE_ARENA:
        settings.append((_M_ARENA_MAX, 1))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
