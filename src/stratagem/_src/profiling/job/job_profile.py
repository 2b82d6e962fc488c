"""``start``, ``stop`` and ``Profile``: profile all processes of a job."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from pathlib import Path
from typing import Self

from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import ProfileError
from stratagem._src.parameter_server.coordinator.cluster_coordinator import coordinated_tasks
from stratagem._src.profiling.job.remote_profiles import RemoteProfiles
from stratagem._src.profiling.job.worker_profiles import name_of, write_together
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem._src.profiling.task.recording import ProfileRecording
from stratagem._src.profiling.task.timeline import RUNS, merge_run

__all__ = ["Profile", "start", "stop"]

_logger = logging.getLogger("stratagem")
_lock = threading.Lock()
_running: _JobProfile | None = None


class _JobProfile:
    """A running profile of this process, and of the workers and servers of its coordinator."""

    def __init__(self, logdir: Path, options: ProfilerOptions) -> None:
        self._logdir = logdir
        self._own = ProfileRecording(options)
        tasks = coordinated_tasks()
        self._task = "coordinator" if tasks else "process"
        try:
            self._remote = RemoteProfiles(tasks, options)
        except BaseException:
            self._own.end(self._task)
            raise

    def discard(self) -> None:
        """Ends the profile without writing it."""
        self._own.end(self._task)
        self._remote.collect()

    def save(self, *, together: bool) -> Path | None:
        """Ends the profile, writes the records, and merges them into one timeline.

        Args:
            together: Whether the other synchronous workers do so at the same time.

        Returns:
            The file of the timeline, in the leader; otherwise ``None``.
        """
        joined = joined_cluster()
        if joined is not None:
            self._task = name_of(joined, joined.process_id)
        profiles = [self._own.end(self._task), *self._remote.collect()]
        folder = self._logdir / RUNS
        if joined is None or len(joined.workers) == 1 or not together:
            run = folder / _new_run(folder)
            origin = min(profile.began_ns for profile in profiles)
            for profile in profiles:
                profile.from_origin(origin).write(run)
            return merge_run(run)
        run, troubles = write_together(profiles[0], lambda: _new_run(folder), folder, joined)
        if joined.process_id:
            return None
        for trouble in troubles:
            _logger.warning("%s", trouble)
        merged = merge_run(run)
        missing = [
            name
            for name in (name_of(joined, worker) for worker in range(len(joined.workers)))
            if not (run / f"{name.replace(' ', '_')}.xplane.pb").exists()
        ]
        if missing:
            _logger.warning(
                "%s lacks %s, whose files are not in %s. Use a directory that all workers share, or copy "
                "the files there and run: stratagem timeline %s",
                merged,
                ", ".join(missing),
                run,
                run,
            )
        return merged


def _new_run(folder: Path) -> str:
    """Returns a new name for a run."""
    now = time.strftime("%Y_%m_%d_%H_%M_%S")
    names = itertools.chain([now], (f"{now}_{number}" for number in itertools.count(2)))
    return next(name for name in names if not (folder / name).exists())


def start(logdir: str | os.PathLike[str], options: ProfilerOptions | None = None) -> None:
    """Starts profiling the processes of this job.

    Every synchronous worker calls it, at the same step; a coordinator also profiles its workers and
    parameter servers.

    >>> import os, tempfile
    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> logdir = tempfile.mkdtemp()
    >>> sg.profiler.start(logdir)
    >>> with sg.profiler.Trace("train", step_num=0):
    ...     total = jnp.ones(8).sum()
    >>> sg.profiler.stop().name.endswith(".trace.json.gz")
    True
    >>> sorted(os.listdir(logdir))[-1]
    'plugins'

    Args:
        logdir: The directory for ``stop``; all workers must share it, like a checkpoint directory.
        options: The tracer levels.

    Raises:
        ProfileError: If this process is profiled already.

    Differs from tf.distribute: other processes are profiled as well.
    """
    global _running
    with _lock:
        _running = _JobProfile(Path(logdir), options or ProfilerOptions())


def stop(save: bool = True) -> Path | None:
    """Stops the profile, and writes it for TensorBoard and Perfetto.

    In the directory of ``start``, ``plugins/profile/<run>`` has a record of every task, where TensorBoard's
    profile plugin finds it, and ``<run>.trace.json.gz`` has all of them on one timeline, for
    https://ui.perfetto.dev or ``chrome://tracing``.

    >>> import tempfile
    >>> import stratagem as sg
    >>> sg.profiler.start(tempfile.mkdtemp())
    >>> sg.profiler.stop(save=False)  # nothing worth keeping

    Args:
        save: Whether to write the profile.

    Returns:
        The file of the timeline; ``None`` in workers other than the leader.

    Raises:
        ProfileError: If no profile is running.
        OSError: If the profile cannot be written.
    """
    return _end(save=save, together=True)


def _end(*, save: bool, together: bool) -> Path | None:
    global _running
    with _lock:
        running, _running = _running, None
    if running is None:
        raise ProfileError("No profile is running. Call sg.profiler.start first.")
    if save:
        return running.save(together=together)
    running.discard()
    return None


class Profile:
    """Profiles a block, like ``start`` and ``stop`` around it.

    If the block raises, a worker writes its own profile and does not wait for others.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> with sg.profiler.Profile(tempfile.mkdtemp()) as profile:
    ...     total = jnp.ones(8).sum()
    >>> profile.timeline.exists()
    True

    Args:
        logdir: See ``start``.
        options: See ``start``.

    Attributes:
        timeline: The result of ``stop``, after the block.
    """

    def __init__(
        self, logdir: str | os.PathLike[str], options: ProfilerOptions | None = None
    ) -> None:
        self._logdir = logdir
        self._options = options
        self.timeline: Path | None = None

    def __enter__(self) -> Self:
        start(self._logdir, self._options)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.timeline = _end(save=True, together=error is None)
