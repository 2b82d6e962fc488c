"""``NoWorkerTimeout``: the error when scheduled functions have had no worker for too long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stratagem._src.core.errors import UnavailableError
from stratagem._src.transport import Identity

__all__ = ["NoWorkerTimeout"]


class _Worker(Protocol):
    """The part of ``WorkerLink`` that the error message uses."""

    index: int
    address: str
    last_error: Exception | None

    @property
    def task(self) -> Identity: ...


class NoWorkerTimeout:
    """Tracks how long workers have been missing. It has no clock of its own.

    >>> timer = NoWorkerTimeout(timeout=5.0)
    >>> timer.error([frozenset({1})], 100.0, [])
    >>> print(timer.error([frozenset({1})], 105.0, []))
    Functions are scheduled for worker 1, which was not available for 5 s.

    Args:
        timeout: Seconds to wait for a worker when there is none.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[frozenset[int] | None, float] = {}

    def error(
        self,
        missing: Iterable[frozenset[int] | None],
        now: float,
        workers: Iterable[_Worker],
    ) -> UnavailableError | None:
        """Returns an error and restarts the timer if workers have been missing for too long.

        Args:
            missing: Groups of workers, any one of which would do, that have no connected worker; ``None``
                as a group if there is no worker at all.
            now: The time, in seconds.
            workers: All known workers.
        """
        self._since = {group: self._since.get(group, now) for group in missing}
        for group, start in self._since.items():
            if now - start >= self._timeout:
                self._since = {}
                return self._describe(group, workers)
        return None

    def _describe(
        self, group: frozenset[int] | None, workers: Iterable[_Worker]
    ) -> UnavailableError:
        reasons = " ".join(
            str(worker.last_error or f"{worker.task} at {worker.address} has not replied yet.")
            for worker in workers
            if group is None or worker.index in group
        )
        if group is None:
            reasons = reasons or "The cluster resolver reports no worker."
            return UnavailableError(
                f"Scheduled functions need a worker, but none was available for {self._timeout:g} s. "
                f"{reasons}"
            )
        names = " or ".join(map(str, sorted(group)))
        return UnavailableError(
            f"Functions are scheduled for worker {names}, which was not available for "
            f"{self._timeout:g} s. {reasons}".rstrip()
        )
