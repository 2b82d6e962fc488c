"""``WorkerAgreement``: workers that save or restore together come to the same end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stratagem._src.checkpoint.async_save import wait_for_saves
from stratagem._src.control_plane.join import JoinedCluster, joined_cluster
from stratagem._src.core import errors
from stratagem._src.core.errors import RemoteError, StratagemError
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.variable import Variable

__all__ = ["WorkerAgreement", "spans_workers"]

_TOPIC = "checkpoints"
_SECONDS_BETWEEN_SIGNS = 5.0


class WorkerAgreement:
    """What the workers that have the same variables tell each other while all do the same.

    Alone, as a process is whose variables are its own or whose cluster has failed, it tells nobody.

    A save that is still being written is waited for: its workers have to agree first.

    Args:
        variables: The variables that it is about.
        what: What all workers do, for messages.
        together: Whether it is about something else, too, that all workers have.
    """

    def __init__(self, variables: Iterable[Variable], what: str, *, together: bool = False) -> None:
        wait_for_saves()
        together = together or any(map(spans_workers, variables))
        joined = joined_cluster() if together else None
        # A survivor of a cluster that has failed can still save what it has.
        usable = joined is not None and not joined.watch.has_failed
        self._joined: JoinedCluster | None = joined if usable else None
        self._what = what
        self._last_sign = time.monotonic()
        self._in_background = False

    def be_alone_unless_all_come(self, prefix: str) -> None:
        """Finds out whether the other workers do the same at this place; else this one does it alone.

        Args:
            prefix: Where it is about to save. Workers that save elsewhere do not do the same.
        """
        joined = self._joined
        if joined is not None and not joined.watch.all_come(f"{self._what} {prefix}", self._what):
            self._joined = None

    @property
    def worker(self) -> int:
        """The number of this worker."""
        return 0 if self._joined is None else self._joined.process_id

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return 1 if self._joined is None else len(self._joined.workers)

    @property
    def is_of_the_past(self) -> bool:
        """Whether the workers have formed anew since, without those that were lost."""
        return self._joined is not None and joined_cluster() is not self._joined

    def go_on_in_background(self) -> None:
        """Says that from now on a thread of its own settles things, while programs run."""
        self._in_background = True

    def settle(self, do: Callable[[], Any]) -> list[Any]:
        """Does something on every worker and returns what each returned; raises on all if one does.

        Args:
            do: Returns plain data. Its error is raised on this worker, and one that tells of it on the
                others.
        """
        if self._joined is None:
            return [do()]
        error: Exception | None = None
        try:
            told = {"value": do()}
        except Exception as failure:
            error, told = failure, {"error": _described(failure)}
        every = self._exchange(told)
        while any("busy" in part for part in every):
            every = self._exchange(told)
        if error is not None:
            raise error
        for name, part in zip(self._joined.workers, every, strict=True):
            if "error" in part:
                kind, text = part["error"]
                raise _rebuilt(kind, f"{name} has stopped {self._what}: {text}")
        return [part["value"] for part in every]

    def show_sign(self) -> None:
        """Lets the others, who wait in ``settle``, know that this worker is still at it."""
        if self._joined is None or time.monotonic() - self._last_sign < _SECONDS_BETWEEN_SIGNS:
            return
        self._exchange({"busy": True})

    def _exchange(self, value: Any) -> Sequence[Any]:
        assert self._joined is not None
        in_sequence = not self._in_background
        every = self._joined.watch.exchange(_TOPIC, value, self._what, in_sequence=in_sequence)
        self._last_sign = time.monotonic()
        return every


def spans_workers(variable: Variable) -> bool:
    """Returns whether other workers have the variable too."""
    return isinstance(variable, DistributedVariable) and variable.group.spans_processes


def _described(error: Exception) -> tuple[str, str]:
    kind = type(error).__name__
    return kind, str(error) if isinstance(error, StratagemError) else f"{kind}: {error}"


def _rebuilt(kind: str, text: str) -> StratagemError:
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, StratagemError):
        return found(text)
    return RemoteError(text)
