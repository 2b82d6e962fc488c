"""Makes flax nnx refuse in an eager replica what it refuses in a trace: changes of modules made outside."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["own_trace_level"]

_THIS_THREAD = threading.local()


@contextlib.contextmanager
def own_trace_level() -> Iterator[None]:
    """Gives the block a trace level of its own in the eyes of flax nnx, as a ``jax.jit`` has.

    Every eager replica runs the same Python function. A module that the function captured would be changed
    by one replica after the other, each with its own gradient. flax refuses to change a module of another
    trace level, and asks one function which level is current.
    """
    _install()
    _THIS_THREAD.is_replica = True
    try:
        yield
    finally:
        _THIS_THREAD.is_replica = False


def _install() -> None:
    tracers: Any = sys.modules.get("flax.nnx.tracers")
    # Another version of flax may not have the function: then such changes are not noticed.
    current = getattr(tracers, "current_jax_trace", None)
    if current is None or hasattr(current, "of_replicas"):
        return

    def current_jax_trace() -> Any:
        is_replica = getattr(_THIS_THREAD, "is_replica", False)
        return (current(), "replica") if is_replica else current()

    current_jax_trace.of_replicas = True  # type: ignore[attr-defined]
    tracers.current_jax_trace = current_jax_trace
