"""``TerminationConfig``: which events are preemption notices, and how a program reacts to them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["RESTART_EXIT_CODE", "TerminationConfig"]

RESTART_EXIT_CODE = 42
_SLURM_JOB = "SLURM_JOB_ID"


class TerminationConfig:
    """How a ``PreemptionCheckpointHandler`` detects a preemption, and how all workers react.

    By default SIGTERM is the notice, as Kubernetes, Slurm and ``stratagem run`` send it. In a Slurm job
    SIGUSR1 and SIGUSR2 are notices too, which ``--signal`` sends some time before the end, unless the
    program handles them itself. All workers then save a checkpoint and exit with code 42, which makes
    ``stratagem run --max-restarts`` restart the job.

    Args:
        termination_watcher_fn: Called about every second in a thread; returns whether this worker is being
            preempted. It replaces signals.
        exit_fn: Called when all workers have saved, such as ``lambda: sys.exit(0)``. If it returns,
            training continues. Default: ``sys.exit(42)``.
        grace_period: Seconds between the notice and the end of the process. All workers save immediately,
            continue to train, and save again and exit shortly before the end. Default 0: they save once and
            exit.
        save_fn: Called to save instead of the ``CheckpointManager``'s ``save``, with the arguments of
            ``save_checkpoint_if_preempted``.
        signals: The signals that are notices, instead of the default ones.

    Raises:
        ValueError: If a function is not callable, or ``grace_period`` is negative, or both signals and a
            function are given.

    Differs from tf.distribute: ``signals`` exists.

    >>> import signal, sys
    >>> import stratagem as sg
    >>> config = sg.distribute.experimental.TerminationConfig(
    ...     exit_fn=lambda: sys.exit(0), grace_period=30, signals=[signal.SIGUSR2])
    >>> config.grace_period
    30
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], Any] | None = None,
        exit_fn: Callable[[], Any] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., Any] | None = None,
        *,
        signals: Sequence[int] | None = None,
    ) -> None:
        functions = {
            "termination_watcher_fn": termination_watcher_fn,
            "exit_fn": exit_fn,
            "save_fn": save_fn,
        }
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise InvalidArgumentError(f"{name} must be a function or None, got {function!r}.")
        if grace_period is not None and not grace_period >= 0:
            raise InvalidArgumentError(
                f"grace_period must be a number of seconds, at least 0, got {grace_period!r}."
            )
        if signals is not None and termination_watcher_fn is not None:
            raise InvalidArgumentError(
                "termination_watcher_fn replaces signals, got both. Leave one of them out."
            )
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        self.grace_period = grace_period
        self.save_fn = save_fn
        self.signals = signals

    def leave(self) -> None:
        """Exits, or calls ``exit_fn``, after all workers have saved."""
        (self.exit_fn or _exit_for_restart)()

    def signals_to_watch(self) -> list[int]:
        """Returns the signals that are notices; none if there is a ``termination_watcher_fn``."""
        if self.termination_watcher_fn is not None:
            return []
        if self.signals is not None:
            return [signal.Signals(number) for number in self.signals]
        watched = [signal.SIGTERM]
        if _SLURM_JOB in os.environ:
            announcing = (signal.SIGUSR1, signal.SIGUSR2)
            watched += [n for n in announcing if signal.getsignal(n) is signal.SIG_DFL]
        return list(watched)


def _exit_for_restart() -> NoReturn:
    sys.exit(RESTART_EXIT_CODE)
