"""Profiler sessions of JAX that start no backend and write no files, unlike ``jax.profiler``.

If JAX has changed, they are those of ``jax.profiler`` in a temporary directory.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax

__all__ = ["begin_session", "end_session", "planes_of"]

_profiler: Any
_profile_state: Any
try:
    from jax._src.lib import _profiler
    from jax._src.profiler import _profile_state

    # Since JAX 0.11 the session that JAX knows is an object of its own around that of XLA.
    _KNOWN = "session" if hasattr(_profile_state, "session") else "profile_session"
    _ = _profiler.ProfilerSession, _profile_state.lock, getattr(_profile_state, _KNOWN)
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
        if getattr(_profile_state, _KNOWN) is not None:
            raise RuntimeError("a profile has been started")
        session = _profiler.ProfilerSession(options)
        setattr(_profile_state, _KNOWN, _known_to_jax(session))
    return session


def _known_to_jax(session: Any) -> Any:
    """Returns what JAX takes for its own session, so that it starts no other one."""
    if _KNOWN == "profile_session":
        return session
    known: Any = jax.profiler.ProfileSession()  # type: ignore[attr-defined]
    known._raw_session, known._is_running = session, True
    return known


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
        known = getattr(_profile_state, _KNOWN)
        if getattr(known, "_raw_session", known) is session:
            _profile_state.reset()
        recorded: bytes = session.stop()
    return recorded


def planes_of(profile: bytes) -> list[Any]:
    """Returns the planes of a profile from ``end_session``."""
    planes = list(jax.profiler.ProfileData.from_serialized_xspace(profile).planes)
    with warnings.catch_warnings():
        # The first to read such details makes a type without a module, for which Python 3.12 warns. If
        # warnings are errors, that error would abort the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in planes:
            list(plane.stats)
    return planes
