"""``PreemptionCheckpointHandler``: all workers save at the same step when one is to end."""

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
    BoundaryLine,
    ClusterLine,
    CommonBoundary,
    LonelyLine,
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
# The last steps and saves may take longer than those before.
_RESERVE = 2.0


class PreemptionCheckpointHandler:
    """Saves a checkpoint on all workers at the same step when one of them is told to end.

    Making it restores the latest checkpoint, if there is one. A signal or another notice (see
    ``TerminationConfig``) to any worker reaches all of them within milliseconds. They agree on the first
    step that none of them has begun, save when they come to it, and leave as ``TerminationConfig`` says.
    Nothing is exchanged until there is a notice. Started again, the program goes on with the next step; a
    dataset's iterator in the checkpoint goes on with the next element, so the losses are those of a run
    that was not disturbed.

    It serves one process as well as workers in step (``MultiWorkerMirroredStrategy``); make the strategy
    first. All workers make it, and call it in the same steps. A notice is acted upon at the next step: a
    program that takes none is not ended by SIGTERM while the handler exists.

    Args:
        cluster_resolver: That of the strategy; ``None`` for one process.
        checkpoint_or_checkpoint_manager: What to save.
        checkpoint_dir: The directory for a ``Checkpoint``; one that nobody else saves to.
        termination_config: What is a notice, and what to do then.

    Raises:
        ValueError: If a ``Checkpoint`` comes without ``checkpoint_dir``, or something else is given.
        RuntimeError: If the cluster has several workers and this process has not joined it, or if signals
            are to be watched and this is not the main thread.

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
        line = _line_to_workers(cluster_resolver)
        self._manager = _manager_of(checkpoint_or_checkpoint_manager, checkpoint_dir)
        checkpoint = self._manager.checkpoint
        setattr(checkpoint, _COUNTER, 0)
        self._manager.restore_or_initialize()
        self._run_calls = int(getattr(checkpoint, _COUNTER))
        self._manager.before_saves(functools.partial(_note_run_calls, weakref.ref(self)))
        self._boundary = CommonBoundary(line, f"{_TOPIC} {next(_numbers)}")
        self._notices = PreemptionNotices(self._config, self._boundary.call)
        self._has_saved = False
        self._last_boundary: float | None = None
        self._longest_step = 0.0
        self._longest_save = 0.0
        weakref.finalize(self, _close, self._notices, self._boundary).atexit = False

    @property
    def total_run_calls(self) -> int:
        """How many steps were taken, those before the program was started again included."""
        return self._run_calls

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes a step and returns what the function returns; if all are to end, saves and leaves first.

        Args:
            distributed_train_function: One step, on all replicas.
            *args: Its arguments.
            **kwargs: Its keyword arguments.
        """
        self._come_to_boundary()
        result = distributed_train_function(*args, **kwargs)
        self._run_calls += 1
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Called after every step, instead of ``run``: saves and leaves if all are to end.

        Args:
            *args: For the ``CheckpointManager``'s ``save``, or for ``save_fn``.
            **kwargs: Likewise.
        """
        self._run_calls += 1
        self._come_to_boundary(*args, **kwargs)

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Makes the body of a ``with`` statement a step, as ``run`` does with a function."""
        self._come_to_boundary()
        yield
        self._run_calls += 1

    def _come_to_boundary(self, *args: Any, **kwargs: Any) -> None:
        self._notices.check()
        now = time.monotonic()
        if self._last_boundary is not None:
            self._longest_step = max(self._longest_step, now - self._last_boundary)
        if self._has_saved and self._must_leave(now):
            self._boundary.call("its grace period is over")
        if self._boundary.come():
            self._halt(*args, **kwargs)
        self._last_boundary = time.monotonic()

    def _must_leave(self, now: float) -> bool:
        moment = self._notices.moment
        if moment is None:
            return False  # another worker counts
        reserve = _RESERVE * (self._longest_step + self._longest_save)
        return now >= moment + (self._config.grace_period or 0.0) - reserve

    def _halt(self, *args: Any, **kwargs: Any) -> None:
        begun = time.monotonic()
        path = (self._config.save_fn or self._save)(*args, **kwargs)
        self._longest_save = max(self._longest_save, time.monotonic() - begun)
        _logger.warning("Saved %s after %d steps, because of a notice.", path, self._run_calls)
        if self._config.grace_period and not self._has_saved:
            self._has_saved = True
            return
        self._has_saved = False
        self._notices.forget()
        self._config.leave()

    def _save(self, *args: Any, **kwargs: Any) -> str | None:
        # Also between two intervals, and to the disk: the process is about to end.
        path = self._manager.save(*args, **{"check_interval": False, **kwargs})
        self._manager.sync()
        return path


def _close(notices: PreemptionNotices, boundary: CommonBoundary) -> None:
    notices.close()
    boundary.close()


def _line_to_workers(resolver: ClusterResolver | None) -> BoundaryLine:
    joined = joined_cluster()
    if joined is not None and len(joined.workers) > 1:
        return ClusterLine(joined.watch, "the agreement where to save before the end")
    if resolver is not None and _num_workers(resolver) > 1:
        raise ContextError(
            "The workers of a cluster must have joined before they can save together, but this process "
            "has not. Make the MultiWorkerMirroredStrategy before the PreemptionCheckpointHandler."
        )
    return LonelyLine()


def _num_workers(resolver: ClusterResolver) -> int:
    """Returns how many processes train in step; those of parameter servers do not."""
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
            "When a Checkpoint is given, checkpoint_dir must be given too: the directory that it is "
            "saved to. Or give a CheckpointManager, which knows its own."
        )
    return CheckpointManager(given, directory, max_to_keep=1)


def _note_run_calls(handler: weakref.ref[PreemptionCheckpointHandler]) -> None:
    """Puts the number of steps into what is about to be saved."""
    known = handler()
    if known is not None:
        setattr(known._manager.checkpoint, _COUNTER, known.total_run_calls)
