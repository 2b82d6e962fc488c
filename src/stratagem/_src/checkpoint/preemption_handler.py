"""``PreemptionCheckpointHandler``: all workers save at the same step when one is preempted."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from stratagem._src.checkpoint.checkpoint import Checkpoint
from stratagem._src.checkpoint.manager import CheckpointManager
from stratagem._src.cluster.errors import UnknownAddressesError
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.control_plane.coordinated_stop import (
    BroadcastChannel,
    ClusterBroadcast,
    CoordinatedStop,
    LocalBroadcast,
)
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.training.preemption_notices import PreemptionNotices
from stratagem._src.training.termination_config import TerminationConfig

__all__ = ["PreemptionCheckpointHandler"]

_logger = logging.getLogger("stratagem")
_TOPIC = "preemption"
_numbers = itertools.count()
_COUNTER = "checkpointed_runs"
# The last steps and saves may take longer than earlier ones.
_RESERVE_FACTOR = 2.0


class PreemptionCheckpointHandler:
    """Saves a checkpoint on all workers at the same step when one of them is preempted.

    The constructor restores the latest checkpoint, if there is one. A signal or another preemption notice
    (see ``TerminationConfig``) to any worker is broadcast to all of them within milliseconds. They agree on
    the first step that none of them has started, save when they reach it, and exit as
    ``TerminationConfig`` specifies. There is no communication before a notice. When it is restarted, the
    program resumes with the next step, and a dataset iterator in the checkpoint with the next element, so
    the losses equal those of an uninterrupted run.

    It works for a single process and for synchronous data-parallel workers
    (``MultiWorkerMirroredStrategy``); create the strategy first. All workers create the handler, and call
    it in the same steps. A notice takes effect at the next step: while the handler exists, SIGTERM does not
    end a program that takes no steps.

    Args:
        cluster_resolver: The strategy's resolver; ``None`` for one process.
        checkpoint_or_checkpoint_manager: What to save.
        checkpoint_dir: The directory for a ``Checkpoint``; no other program may save to it.
        termination_config: Which events are notices, and what to do on one.

    Raises:
        ValueError: If a ``Checkpoint`` is passed without ``checkpoint_dir``, or an argument is of another
            type.
        RuntimeError: If the cluster has several workers and this process has not joined it, or if signals
            are handled and this is not the main thread.

    Differs from tf.distribute: works with all strategies and platforms; ``watch_preemption_scope`` is
    ``run`` for the body of a ``with`` statement.

    >>> import tempfile
    >>> import stratagem as sg
    >>> step = sg.Variable(0)
    >>> handler = sg.distribute.experimental.PreemptionCheckpointHandler(
    ...     None, sg.train.Checkpoint(step=step), tempfile.mkdtemp())
    >>> while handler.total_run_calls < 3:
    ...     _ = handler.run(step.assign_add, 1)
    >>> int(step)
    3
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: str | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        self._config = termination_config or TerminationConfig()
        if not isinstance(self._config, TerminationConfig):
            raise InvalidArgumentError(
                f"termination_config must be a TerminationConfig or None, got {self._config!r}."
            )
        channel = _broadcast_channel(cluster_resolver)
        self._manager = _manager_of(checkpoint_or_checkpoint_manager, checkpoint_dir)
        checkpoint = self._manager.checkpoint
        setattr(checkpoint, _COUNTER, 0)
        self._manager.restore_or_initialize()
        self._run_calls = int(getattr(checkpoint, _COUNTER))
        self._manager.before_saves(functools.partial(_store_run_calls, weakref.ref(self)))
        self._stop = CoordinatedStop(channel, f"{_TOPIC} {next(_numbers)}")
        self._notices = PreemptionNotices(self._config, self._stop.request)
        self._has_saved = False
        self._last_boundary: float | None = None
        self._max_step_seconds = 0.0
        self._max_save_seconds = 0.0
        weakref.finalize(self, _close, self._notices, self._stop).atexit = False

    @property
    def total_run_calls(self) -> int:
        """Number of steps taken, including those before a restart."""
        return self._run_calls

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs one step and returns its result; on a preemption notice, saves and exits before it.

        Args:
            distributed_train_function: One step, on all replicas.
            *args: Its arguments.
            **kwargs: Its keyword arguments.
        """
        self._at_step_boundary()
        result = distributed_train_function(*args, **kwargs)
        self._run_calls += 1
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Saves and exits on a preemption notice. Call it after every step, instead of ``run``.

        Args:
            *args: Arguments of ``CheckpointManager.save``, or of ``save_fn``.
            **kwargs: Keyword arguments of the same.
        """
        self._run_calls += 1
        self._at_step_boundary(*args, **kwargs)

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Makes the body of a ``with`` statement one step, as ``run`` does for a function."""
        self._at_step_boundary()
        yield
        self._run_calls += 1

    def _at_step_boundary(self, *args: Any, **kwargs: Any) -> None:
        self._notices.check()
        now = time.monotonic()
        if self._last_boundary is not None:
            self._max_step_seconds = max(self._max_step_seconds, now - self._last_boundary)
        if self._has_saved and self._must_leave(now):
            self._stop.request("its grace period has ended")
        if self._stop.reach_boundary():
            self._halt(*args, **kwargs)
        self._last_boundary = time.monotonic()

    def _must_leave(self, now: float) -> bool:
        moment = self._notices.moment
        if moment is None:
            return False  # another worker got the notice, and keeps the time
        reserve = _RESERVE_FACTOR * (self._max_step_seconds + self._max_save_seconds)
        return now >= moment + (self._config.grace_period or 0.0) - reserve

    def _halt(self, *args: Any, **kwargs: Any) -> None:
        begun = time.monotonic()
        path = (self._config.save_fn or self._save)(*args, **kwargs)
        self._max_save_seconds = max(self._max_save_seconds, time.monotonic() - begun)
        _logger.warning(
            "Saved %s after %d steps because of a preemption notice.", path, self._run_calls
        )
        if self._config.grace_period and not self._has_saved:
            self._has_saved = True
            return
        self._has_saved = False
        self._notices.forget()
        self._config.leave()

    def _save(self, *args: Any, **kwargs: Any) -> str | None:
        # Regardless of the interval, and synchronously: the process is about to exit.
        path = self._manager.save(*args, **{"check_interval": False, **kwargs})
        self._manager.sync()
        return path


def _close(notices: PreemptionNotices, boundary: CoordinatedStop) -> None:
    notices.close()
    boundary.close()


def _broadcast_channel(resolver: ClusterResolver | None) -> BroadcastChannel:
    joined = joined_cluster()
    if joined is not None and len(joined.workers) > 1:
        return ClusterBroadcast(
            joined.watch, "the agreement on the step to save at before preemption"
        )
    if resolver is not None and _num_workers(resolver) > 1:
        raise ContextError(
            "The workers of a cluster must have joined it before they can save together, but this process "
            "has not. Create the MultiWorkerMirroredStrategy before the PreemptionCheckpointHandler."
        )
    return LocalBroadcast()


def _num_workers(resolver: ClusterResolver) -> int:
    """Returns the number of synchronous data-parallel processes; 1 in a parameter-server cluster."""
    try:
        if "ps" in resolver.cluster_spec().jobs:
            return 1
    except UnknownAddressesError:
        return resolver.num_processes
    return resolver.num_processes


def _manager_of(given: Checkpoint | CheckpointManager, directory: str | None) -> CheckpointManager:
    if isinstance(given, CheckpointManager):
        return given
    if not isinstance(given, Checkpoint):
        raise InvalidArgumentError(
            "checkpoint_or_checkpoint_manager must be a Checkpoint or a CheckpointManager, got "
            f"{given!r}."
        )
    if not directory:
        raise InvalidArgumentError(
            "A Checkpoint needs checkpoint_dir, the directory to save it to, got none. Pass "
            "checkpoint_dir, or a CheckpointManager, which has its own."
        )
    return CheckpointManager(given, directory, max_to_keep=1)


def _store_run_calls(handler: weakref.ref[PreemptionCheckpointHandler]) -> None:
    """Stores the number of steps in the Checkpoint that is about to be saved."""
    known = handler()
    if known is not None:
        setattr(known._manager.checkpoint, _COUNTER, known.total_run_calls)
