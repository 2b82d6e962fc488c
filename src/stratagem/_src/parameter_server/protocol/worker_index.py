"""The index of the worker that the current code runs on."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from stratagem._src.core.errors import ContextError

__all__ = ["experimental_get_current_worker_index", "on_worker"]

_index: contextvars.ContextVar[int] = contextvars.ContextVar("stratagem_worker_index")


def experimental_get_current_worker_index() -> int:
    """Returns the index of the worker that runs the calling function.

    Raises:
        ContextError: Outside of a function that a ``ClusterCoordinator`` scheduled.
    """
    try:
        return _index.get()
    except LookupError:
        raise ContextError(
            "experimental_get_current_worker_index() must be called in a function that was passed to "
            "ClusterCoordinator.schedule() or create_per_worker_dataset(), but this code does not run "
            "on a worker."
        ) from None


@contextlib.contextmanager
def on_worker(index: int) -> Iterator[None]:
    """Makes ``index`` the current worker for the block."""
    token = _index.set(index)
    try:
        yield
    finally:
        _index.reset(token)
