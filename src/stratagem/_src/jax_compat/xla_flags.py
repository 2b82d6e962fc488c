"""Sets XLA's flags, which XLA reads once, when the first backend starts.

XLA aborts the process when a device waits for another in a collective for 40 seconds. On a busy machine
such a wait is not a deadlock but a callback, a debugger, or another program that uses the CPU. So the
timeout is raised to 30 days, unless the user has set it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from stratagem._src.core.types import PyTree

__all__ = [
    "add_cpu_flag",
    "added_to_xla_flags",
    "raise_collective_timeouts",
    "raised_collective_timeouts",
]

_cpu_flags = {
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "--xla_cpu_collective_call_terminate_timeout_seconds": 30 * 24 * 3600,
}


@contextlib.contextmanager
def added_to_xla_flags(*flags: str) -> Iterator[None]:
    """Adds flags to those of the environment, for a backend that starts in this block."""
    before = os.environ.get("XLA_FLAGS")
    if not flags or (before or "").strip()[:1] not in ("", "-"):
        yield  # XLA_FLAGS names a file of flags, to which nothing can be added
        return
    os.environ["XLA_FLAGS"] = " ".join([before or "", *flags]).strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


def add_cpu_flag(name: str, value: int) -> None:
    """Sets a flag for CPU backends that start from now on, unless the user has set it."""
    _cpu_flags[name] = value


@contextlib.contextmanager
def raised_collective_timeouts() -> Iterator[None]:
    """Raises the timeouts of collectives, and sets other flags, for a CPU backend that starts here."""
    chosen = os.environ.get("XLA_FLAGS", "")
    added = [f"{name}={value}" for name, value in _cpu_flags.items() if name not in chosen]
    with added_to_xla_flags(*added):
        yield


def raise_collective_timeouts() -> None:
    """Raises the timeouts of CPU collectives for backends that JAX starts from now on.

    Does nothing if JAX has changed.
    """
    try:
        # Imported lazily: the library can be imported without JAX.
        from jax._src import xla_bridge

        factories: Any = xla_bridge._backend_factories
    except (ImportError, AttributeError):
        return
    registered = factories.get("cpu")
    make = getattr(registered, "factory", None)
    if make is None:
        return

    @functools.wraps(make)
    def make_with_timeouts(*args: PyTree, **kwargs: Any) -> Any:
        with raised_collective_timeouts():
            return make(*args, **kwargs)

    factories["cpu"] = dataclasses.replace(registered, factory=make_with_timeouts)
