"""``TerminationConfig``: how a program hears that it is to end, and what it does then."""

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
    """How a ``PreemptionCheckpointHandler`` hears that a worker is to end, and what all do then.

    By default SIGTERM is the notice, as Kubernetes, Slurm and ``stratagem run`` send it. In a Slurm job
    so are SIGUSR1 and SIGUSR2, which ``--signal`` sends some time before, unless the program handles
    them itself. All workers then save, and leave with exit code 42, which makes ``stratagem run
    --max-restarts`` start the job again.

    Args:
        termination_watcher_fn: Called about every second, in a thread; returns whether this worker is to
            end. It takes the place of signals.
        exit_fn: Called when all have saved, such as ``lambda: sys.exit(0)``. If it returns, training
            goes on. Default: ``sys.exit(42)``.
        grace_period: Seconds between the notice and the end. All workers save at once, go on training,
            and save again and leave shortly before it is over. Default 0: they save once and leave.
        save_fn: Called to save instead of the ``CheckpointManager``'s ``save``, with the arguments of
            ``save_checkpoint_if_preempted``.
        signals: The signals that are a notice, if not those above.

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
                f"grace_period must be a number of seconds, 0 or more, got {grace_period!r}."
            )
        if signals is not None and termination_watcher_fn is not None:
            raise InvalidArgumentError(
                "termination_watcher_fn takes the place of signals, got both. Leave one of them out."
            )
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        self.grace_period = grace_period
        self.save_fn = save_fn
        self.signals = signals

    def leave(self) -> None:
        """Does what is to be done when all have saved."""
        (self.exit_fn or _exit_for_restart)()

    def signals_to_watch(self) -> list[int]:
        """Returns the signals that are a notice; none if a function is asked instead."""
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
