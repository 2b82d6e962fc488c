"""XLA's flags, which it reads once: when the first backend starts.

XLA ends the process when a device waits for another in a collective for 40 seconds. On a busy machine that
is not a deadlock: it is a callback, a debugger, or another program that has the processor. So the limit
is out of reach, unless the user has set it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

__all__ = ["added_to_xla_flags", "be_patient_in_collectives", "patient_in_collectives"]

_PATIENCE = {
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "--xla_cpu_collective_call_terminate_timeout_seconds": 30 * 24 * 3600,
}


@contextlib.contextmanager
def added_to_xla_flags(*flags: str) -> Iterator[None]:
    """Adds flags to those of the environment, for a backend that starts in this block."""
    before = os.environ.get("XLA_FLAGS")
    if not flags or (before or "").strip()[:1] not in ("", "-"):
        yield  # it names a file of flags, which stands alone
        return
    os.environ["XLA_FLAGS"] = " ".join([before or "", *flags]).strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


@contextlib.contextmanager
def patient_in_collectives() -> Iterator[None]:
    """Lets collectives of a CPU backend that starts in this block wait."""
    chosen = os.environ.get("XLA_FLAGS", "")
    added = [f"{name}={value}" for name, value in _PATIENCE.items() if name not in chosen]
    with added_to_xla_flags(*added):
        yield


def be_patient_in_collectives() -> None:
    """Lets collectives on CPU wait, in a backend that JAX starts from now on.

    Nothing to do where JAX has changed.
    """
    # Imported when used: the library can be imported without JAX.
    from jax._src import xla_bridge

    factories: Any = getattr(xla_bridge, "_backend_factories", {})
    registered = factories.get("cpu")
    make = getattr(registered, "factory", None)
    if make is None:
        return

    @functools.wraps(make)
    def make_patient(*args: Any, **kwargs: Any) -> Any:
        with patient_in_collectives():
            return make(*args, **kwargs)

    factories["cpu"] = dataclasses.replace(registered, factory=make_patient)
