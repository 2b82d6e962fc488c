"""The one place that decides how many programs may be in flight.

XLA's in-process collectives on CPU share one thread pool: programs queued behind each other can take
all of its threads while each waits for the other's participants, and XLA then aborts the process. So
with several CPU devices a program is launched only when the one before it has finished. Elsewhere
dispatch stays asynchronous.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from stratagem.core.errors import ContextError
from stratagem.core.tracing import is_tracer

__all__ = [
    "LAUNCH_LOCK",
    "check_not_in_callback",
    "in_host_callback",
    "launch",
    "note_launched",
    "wait_for_previous",
]

LAUNCH_LOCK = threading.Lock()
"""Held from waiting for the program before until the next one is launched."""

_in_flight: jax.Array | None = None


class _Callback(threading.local):
    active = False


_callback = _Callback()


@contextlib.contextmanager
def in_host_callback() -> Iterator[None]:
    """Marks code that a running program calls back, and that must not wait for that program."""
    before, _callback.active = _callback.active, True
    try:
        yield
    finally:
        _callback.active = before


def wait_for_previous() -> None:
    """Waits until the program before has finished; the caller holds ``LAUNCH_LOCK``."""
    if _in_flight is not None:
        try:  # noqa: SIM105  (suppress is slow)
            _in_flight.block_until_ready()
        except Exception:
            # Deleted since, or failed: its own reader is told, this program has nothing to do with it.
            pass


def check_not_in_callback() -> None:
    """Checks that the code may wait for a program.

    Raises:
        ContextError: In a host callback, which the program may be waiting for.
    """
    if _callback.active:
        raise ContextError(
            "A host callback (jax.pure_callback, io_callback, jax.debug.callback) of a compiled step "
            "cannot run another program with collectives: the step waits for the callback. Return the "
            "value from the callback and go on after the step."
        )


def note_launched(result: jax.Array) -> None:
    """Notes an array of the program that was launched, to wait for."""
    global _in_flight
    _in_flight = result


def launch(program: Callable[..., Any], args: tuple[Any, ...], serialize: bool) -> Any:
    """Calls a compiled program and returns its results.

    Args:
        program: A ``jax.jit`` function that returns a list of arrays.
        args: Its arguments.
        serialize: Whether the program may contain collectives between CPU devices.
    """
    if not serialize:
        return program(*args)
    check_not_in_callback()
    with LAUNCH_LOCK:
        wait_for_previous()
        results = program(*args)
        if results and not is_tracer(results[0]):
            note_launched(results[0])
    return results
