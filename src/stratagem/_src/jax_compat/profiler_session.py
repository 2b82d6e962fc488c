"""Profiler sessions of JAX that start no backend and write no files, unlike ``jax.profiler``."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.lib import _profiler
from jax._src.profiler import _profile_state

__all__ = ["begin_session", "end_session"]


def begin_session(*, host_level: int, python_level: int) -> Any:
    """Starts to profile this process, and returns the session for ``end_session``.

    Devices are profiled if their backend is already running. ``jax.profiler.start_trace`` fails during a
    session.

    Args:
        host_level: 1 for annotations, 2 and 3 for more and more of XLA.
        python_level: 1 to record every call of a Python function, which is slow; 0 for none.

    Raises:
        RuntimeError: If this process is already being profiled.
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
    """Ends a session and returns the profile, a serialized ``XSpace`` for ``jax.profiler.ProfileData``.

    Raises:
        RuntimeError: If a profiler server of JAX profiled this process at the same time.
    """
    with _profile_state.lock:
        if _profile_state.profile_session is session:
            _profile_state.reset()
        recorded: bytes = session.stop()
    return recorded
