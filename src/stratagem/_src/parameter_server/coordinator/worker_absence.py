"""``WorkerAbsence``: for how long there has been no worker for what is scheduled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stratagem._src.core.errors import UnavailableError
from stratagem._src.transport import Identity

__all__ = ["WorkerAbsence"]


class _Sought(Protocol):
    """What is known of a worker that the coordinator looks for."""

    index: int
    address: str
    last_error: Exception | None

    @property
    def task(self) -> Identity: ...


class WorkerAbsence:
    """Says when somebody has waited for workers for too long. It has no clock of its own.

    >>> absence = WorkerAbsence(patience=5.0)
    >>> absence.error([frozenset({1})], 100.0, [])
    >>> print(absence.error([frozenset({1})], 105.0, []))
    Functions are scheduled for worker 1, but for 5 s it was not there.

    Args:
        patience: How many seconds to wait for a worker when there is none.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[frozenset[int] | None, float] = {}

    def error(
        self,
        missing: Iterable[frozenset[int] | None],
        now: float,
        workers: Iterable[_Sought],
    ) -> UnavailableError | None:
        """Returns an error if some workers are missing for too long, and begins to count anew.

        Args:
            missing: Groups of workers any of which would do and none of which is there; ``None`` if
                there is no worker at all.
            now: The time, in seconds.
            workers: All that are looked for.
        """
        self._since = {group: self._since.get(group, now) for group in missing}
        for group, start in self._since.items():
            if now - start >= self._patience:
                self._since = {}
                return self._describe(group, workers)
        return None

    def _describe(
        self, group: frozenset[int] | None, workers: Iterable[_Sought]
    ) -> UnavailableError:
        reasons = " ".join(
            str(worker.last_error or f"{worker.task} at {worker.address} has not answered yet.")
            for worker in workers
            if group is None or worker.index in group
        )
        if group is None:
            reasons = reasons or "The cluster resolver names no worker."
            return UnavailableError(
                f"There must be a worker to run what is scheduled, but for {self._patience:g} s there "
                f"was none. {reasons}"
            )
        names = " or ".join(map(str, sorted(group)))
        return UnavailableError(
            f"Functions are scheduled for worker {names}, but for {self._patience:g} s it was not "
            f"there. {reasons}".rstrip()
        )
