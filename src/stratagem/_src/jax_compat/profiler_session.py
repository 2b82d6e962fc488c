"""Profiler sessions of JAX that start no backend and write no files, unlike ``jax.profiler``.

If JAX has changed, they are those of ``jax.profiler`` in a temporary directory.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax

__all__ = ["begin_session", "end_session"]

_profiler: Any
_profile_state: Any
try:
    from jax._src.lib import _profiler
    from jax._src.profiler import _profile_state

    _ = _profiler.ProfilerSession, _profile_state.lock, _profile_state.profile_session
except (ImportError, AttributeError):
    _profiler = _profile_state = None


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
    if _profile_state is None:
        directory = Path(tempfile.mkdtemp(prefix="stratagem-profile-"))
        jax.profiler.start_trace(directory, profiler_options=options)
        return directory
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
    if _profile_state is None:
        try:
            jax.profiler.stop_trace()
            [file] = session.rglob("*.xplane.pb")
            return bytes(file.read_bytes())
        finally:
            shutil.rmtree(session)
    with _profile_state.lock:
        if _profile_state.profile_session is session:
            _profile_state.reset()
        recorded: bytes = session.stop()
    return recorded
