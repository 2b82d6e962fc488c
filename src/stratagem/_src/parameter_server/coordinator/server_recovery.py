"""``ServerRecovery``: the report of a recovery from lost parameter servers."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["ServerRecovery"]


@dataclass(frozen=True)
class ServerRecovery:
    """Parameter servers were lost, restarted empty, and all variables were restored from a checkpoint.

    The work since the checkpoint is lost. It is counted in two ways: in functions that had returned, which
    is exact, and in updates of variables or shards that the servers had applied. The updates of a lost
    server are known up to its last heartbeat, about a second earlier. Functions that were running or queued
    when the server was lost are not included: they run (again) after the recovery.

    >>> import stratagem as sg
    >>> recovery = sg.distribute.coordinator.ServerRecovery(
    ...     servers=(1,), checkpoint="/data/ckpt-3", since=0.0, lost_at=9.0, seconds=2.5,
    ...     num_functions=20, num_updates=41)
    >>> str(recovery).partition(". ")[0]
    'Parameter servers /job:ps/task:1 were lost and are back after 2.5 s'
    >>> str(recovery).partition(". ")[2]
    'The work of 20 functions with 41 updates in the 9.0 s after /data/ckpt-3 was saved is lost.'

    Attributes:
        servers: The indices of the lost servers.
        checkpoint: The path of the checkpoint.
        since: When the checkpoint was saved, in seconds since the epoch; if it is older than this
            coordinator, when the coordinator started to count.
        lost_at: When the loss was detected, in seconds since the epoch.
        seconds: Duration until functions could run again.
        num_functions: Number of scheduled functions that had returned since then.
        num_updates: Number of updates that the servers had applied since then.
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
            f"Parameter servers {names} were lost and are back after {self.seconds:.1f} s. The work of "
            f"{self.num_functions} functions with {self.num_updates} updates in the "
            f"{self.lost_at - self.since:.1f} s after {self.checkpoint} was saved is lost."
        )


@dataclass(frozen=True)
class Progress:
    """The counts of functions and updates at a moment, in seconds since the epoch."""

    moment: float
    num_functions: int
    num_updates: tuple[int, ...]

    @classmethod
    def now(cls, num_functions: int, num_updates: tuple[int, ...]) -> Progress:
        """Returns the counts with the current time."""
        return cls(time.time(), num_functions, num_updates)
