"""``ProfileRecording``: a running profile of this process."""

from __future__ import annotations

import contextlib

import jax

from stratagem._src.core.errors import ProfileError
from stratagem._src.jax_compat.profiler_session import begin_session, end_session
from stratagem._src.process.host_identity import boot_id
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.task_profile import TaskProfile
from stratagem._src.telemetry.measurement.recorder import annotate_with

__all__ = ["ProfileRecording"]


class ProfileRecording:
    """Records this process from its creation until ``end``, with spans of steps and input.

    Args:
        options: The tracer levels.

    Raises:
        ProfileError: If the process is profiled already, by this library or by JAX.
    """

    def __init__(self, options: ProfilerOptions) -> None:
        try:
            self._session = begin_session(
                host_level=options.host_tracer_level, python_level=options.python_tracer_level
            )
        except RuntimeError as error:
            raise ProfileError(
                f"A process can have one profile at a time, and this one has one already ({error}). Stop "
                "the other profile of sg.profiler or jax.profiler first."
            ) from None
        self._annotating = contextlib.ExitStack()
        annotate = annotate_with(jax.profiler.TraceAnnotation)
        self._recorder = self._annotating.enter_context(annotate)

    def end(self, task: str) -> TaskProfile:
        """Ends the recording and returns the profile of a task. Can be called once.

        Raises:
            ProfileError: If another profile of JAX's profiler interfered.
        """
        with self._annotating:
            try:
                record = end_session(self._session)
            except RuntimeError as error:
                raise ProfileError(f"JAX's profiler has no profile of {task}: {error}") from None
            finally:
                del self._session
        return TaskProfile(task, record, boot_id(), dict(self._recorder.replicas))
