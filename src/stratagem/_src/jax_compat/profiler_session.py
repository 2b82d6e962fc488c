"""JAX's profiler without what ``jax.profiler.start_trace`` does beside: start a backend, choose files."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.lib import _profiler
from jax._src.profiler import _profile_state

__all__ = ["begin_session", "end_session"]


def begin_session(*, host_level: int, python_level: int) -> Any:
    """Begins to record what this process does, and returns what ``end_session`` takes.

    Of devices it records those whose backend runs already. ``jax.profiler.start_trace`` is refused
    meanwhile.

    Args:
        host_level: 1 for annotations, 2 and 3 for ever more of XLA.
        python_level: 1 to record every call of a Python function, which is slow; 0 for none.

    Raises:
        RuntimeError: If this process is recorded already.
    """
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = host_level
    options.python_tracer_level = python_level
    with _profile_state.lock:
        if _profile_state.profile_session is not None:
            raise RuntimeError("a profile has been started")
        session = _profile_state.profile_session = _profiler.ProfilerSession(options)
    return session


def end_session(session: Any) -> bytes:
    """Ends a session and returns what was recorded, an ``XSpace`` for ``jax.profiler.ProfileData``.

    Raises:
        RuntimeError: If a profiler server of JAX's recorded this process at the same time.
    """
    with _profile_state.lock:
        if _profile_state.profile_session is session:
            _profile_state.reset()
        recorded: bytes = session.stop()
    return recorded
