"""``ServerRecovery``: what is known of parameter servers that were lost and are back."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["ServerRecovery"]


@dataclass(frozen=True)
class ServerRecovery:
    """Parameter servers were lost, came back empty, and all variables were set back to a checkpoint.

    What was computed after the checkpoint is lost. How much that is, is counted twice: in functions that
    had returned, which is exact, and in updates of variables or shards that the servers had carried out.
    Of a lost server these are known up to its last sign of life, about a second before. Functions that ran
    or waited when the server was lost are not among them: they run (again) after the recovery.

    >>> import stratagem as sg
    >>> recovery = sg.distribute.coordinator.ServerRecovery(
    ...     servers=(1,), checkpoint="/data/ckpt-3", since=0.0, lost_at=9.0, seconds=2.5,
    ...     num_functions=20, num_updates=41)
    >>> str(recovery).partition(". ")[0]
    'Parameter servers /job:ps/task:1 were lost and are back after 2.5 s'
    >>> str(recovery).partition(". ")[2]
    'What 20 functions with 41 updates did in the 9.0 s after /data/ckpt-3 was saved is lost.'

    Attributes:
        servers: The numbers of the servers that were lost.
        checkpoint: The path of the checkpoint.
        since: When it was saved, in seconds since the epoch; when this coordinator began to count, if it
            was saved before that.
        lost_at: When it was noticed that the servers were lost, in seconds since the epoch.
        seconds: How long it took until functions could run again.
        num_functions: How many scheduled functions had returned since then.
        num_updates: How many updates servers had carried out since then.
    """

    servers: tuple[int, ...]
    checkpoint: str
    since: float
    lost_at: float
    seconds: float
    num_functions: int
    num_updates: int

    def __str__(self) -> str:
        names = ", ".join(f"/job:ps/task:{server}" for server in self.servers)
        return (
            f"Parameter servers {names} were lost and are back after {self.seconds:.1f} s. What "
            f"{self.num_functions} functions with {self.num_updates} updates did in the "
            f"{self.lost_at - self.since:.1f} s after {self.checkpoint} was saved is lost."
        )


@dataclass(frozen=True)
class Progress:
    """How far the work was at a moment, in seconds since the epoch."""

    moment: float
    num_functions: int
    num_updates: tuple[int, ...]

    @classmethod
    def now(cls, num_functions: int, num_updates: tuple[int, ...]) -> Progress:
        """Returns how far it is now."""
        return cls(time.time(), num_functions, num_updates)
