"""``CollectiveCommit``: workers that save or restore together all succeed or all fail."""

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

__all__ = ["CollectiveCommit", "spans_workers"]

_TOPIC = "checkpoints"
_HEARTBEAT_INTERVAL_SECONDS = 5.0


class CollectiveCommit:
    """Runs steps on all workers that share variables; if one worker fails, all raise.

    A process without shared variables, or whose cluster has failed, runs the steps alone.

    It first waits for a pending save, whose own collectives must come before.

    Args:
        variables: The variables that are saved or restored.
        what: What all workers do, for messages.
        together: Whether other objects that all workers share are saved or restored too.
    """

    def __init__(self, variables: Iterable[Variable], what: str, *, together: bool = False) -> None:
        wait_for_saves()
        together = together or any(map(spans_workers, variables))
        cluster = joined_cluster() if together else None
        # A survivor of a failed cluster can still save its own values.
        usable = cluster is not None and not cluster.watch.has_failed
        self._cluster: JoinedCluster | None = cluster if usable else None
        self._what = what
        self._last_heartbeat = time.monotonic()
        self._in_background = False

    def detach_unless_all_arrive(self, prefix: str) -> None:
        """Waits until all workers make this call; if one does not come, this worker continues alone.

        Args:
            prefix: The path to save to. Workers that save to another path do not count.
        """
        cluster = self._cluster
        if cluster is not None and not cluster.watch.all_arrive(
            f"{self._what} {prefix}", self._what
        ):
            self._cluster = None

    @property
    def worker(self) -> int:
        """The index of this worker."""
        return 0 if self._cluster is None else self._cluster.process_id

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return 1 if self._cluster is None else len(self._cluster.workers)

    @property
    def is_superseded(self) -> bool:
        """Whether the cluster has re-formed since, without lost workers."""
        return self._cluster is not None and joined_cluster() is not self._cluster

    def run_in_background(self) -> None:
        """Declares that later steps run in a background thread, concurrently with programs."""
        self._in_background = True

    def run_on_all(self, do: Callable[[], Any]) -> list[Any]:
        """Calls ``do`` on every worker and returns all results; raises on all workers if one raises.

        Args:
            do: Returns plain data. This worker raises its error; the others raise one that describes it.
        """
        if self._cluster is None:
            return [do()]
        error: Exception | None = None
        try:
            result = {"value": do()}
        except Exception as failure:
            error, result = failure, {"error": _describe_error(failure)}
        results = self._all_gather(result)
        while any("busy" in part for part in results):
            results = self._all_gather(result)
        if error is not None:
            raise error
        for name, part in zip(self._cluster.workers, results, strict=True):
            if "error" in part:
                kind, text = part["error"]
                raise _rebuild_error(kind, f"{name} failed while {self._what}: {text}")
        return [part["value"] for part in results]

    def send_heartbeat(self) -> None:
        """Tells the workers that wait in ``run_on_all`` that this one is still busy, at most every 5 s."""
        if (
            self._cluster is None
            or time.monotonic() - self._last_heartbeat < _HEARTBEAT_INTERVAL_SECONDS
        ):
            return
        self._all_gather({"busy": True})

    def _all_gather(self, value: object) -> Sequence[Any]:
        assert self._cluster is not None
        in_sequence = not self._in_background
        results = self._cluster.watch.all_gather_object(
            _TOPIC, value, self._what, in_sequence=in_sequence
        )
        self._last_heartbeat = time.monotonic()
        return results


def spans_workers(variable: Variable) -> bool:
    """Returns whether the variable is shared with other workers."""
    return isinstance(variable, DistributedVariable) and variable.group.spans_processes


def _describe_error(error: Exception) -> tuple[str, str]:
    kind = type(error).__name__
    return kind, str(error) if isinstance(error, StratagemError) else f"{kind}: {error}"


def _rebuild_error(kind: str, text: str) -> StratagemError:
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, StratagemError):
        return found(text)
    return RemoteError(text)
