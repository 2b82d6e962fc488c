"""The one place that decides how many programs may be in flight.

XLA's in-process collectives on CPU share one thread pool: programs queued behind each other can take
all of its threads while each waits for the other's participants, and XLA then aborts the process. So
with several CPU devices a program is launched only when the one before it has finished. Elsewhere
dispatch stays asynchronous.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import starmap
from typing import Any

import jax

from stratagem.core.tracing import is_tracer

__all__ = ["launch"]

_lock = threading.Lock()
_in_flight: jax.Array | None = None


def launch(program: Callable[..., Any], args: tuple[Any, ...], serialize: bool) -> Any:
    """Calls a compiled program and returns its results.

    Args:
        program: A ``jax.jit`` function.
        args: Its arguments.
        serialize: Whether the program may contain collectives between CPU devices.
    """
    global _in_flight
    # The results must not be lost to an interrupt that arrives between the call and the assignment,
    # because the arguments may have been given away: list.extend stores them from C.
    results: list[Any] = []
    if not serialize:
        results.extend(starmap(program, (args,)))
        return results[0]
    with _lock:
        _wait(_in_flight)
        results.extend(starmap(program, (args,)))
        leaves = jax.tree.leaves(results[0])
        _in_flight = leaves[0] if leaves and not is_tracer(leaves[0]) else None
    return results[0]


def _wait(array: jax.Array | None) -> None:
    if array is None or array.is_deleted():
        return
    try:
        array.block_until_ready()
    except Exception:  # its own reader is told; this program has nothing to do with it
        return
