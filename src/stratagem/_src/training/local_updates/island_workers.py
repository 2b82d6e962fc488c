"""``IslandWorkers``: the workers of one island do the same at an outer step, as their leader says."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core import errors
from stratagem._src.core.errors import InvalidArgumentError, RemoteError, StratagemError
from stratagem._src.mesh.dispatch_queue import process_watch
from stratagem._src.process.background import Background
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.training.local_updates.island_client import Outcome

__all__ = ["IslandWorkers"]

_TOPIC = "islands"
# While the leader waits for other islands, its workers hear of it this often.
_SECONDS_BETWEEN_SIGNS = 2.0


class IslandWorkers:
    """Runs what the leader does with other islands in the background, and gives its outcome to all workers.

    Args:
        strategy: The island's strategy.

    Raises:
        InvalidArgumentError: If its workers may change in number.
    """

    def __init__(self, strategy: Strategy) -> None:
        extended = strategy.extended
        self._extended: MultiWorkerExtended | None = None
        if isinstance(extended, MultiWorkerExtended):
            if extended.is_elastic:
                raise InvalidArgumentError(
                    "The workers of an island must not change in number, got a strategy of an elastic job. "
                    "Use several islands of fixed size in its place: lost islands are done without."
                )
            if extended.worker_position().num_workers > 1:
                self._extended = extended
        self._background = Background("the outer steps of an island")

    @property
    def leads(self) -> bool:
        """Whether this worker talks to other islands."""
        return self._extended is None or self._extended.worker_position().index == 0

    def begin(self, call: Callable[[], Outcome]) -> concurrent.futures.Future[Outcome]:
        """Starts what only the leader does; returns what will hold its outcome."""
        future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        if self.leads:
            self._background.start(run, name="islands-outer-step")
        return future

    def agree(
        self, future: concurrent.futures.Future[Outcome], what: str, waits_for: Callable[[], str]
    ) -> Outcome:
        """Waits for the leader's outcome and returns it in all workers, with the same bits.

        Raises:
            Exception: What the leader's call raised, in all workers.
        """
        if self._extended is None:
            return future.result()
        while True:
            said: dict[str, Any] = {}
            if self.leads:
                said = self._said(future, waits_for)
            first = process_watch().exchange(_TOPIC, said, f"{what} of the islands")[0]
            if "waits_for" not in first:
                break
        if "error" in first:
            if self.leads:
                future.result()
            raise _rebuilt(first["type"], first["error"])
        arrays = self._shared(future.result().arrays if self.leads else (), first["arrays"])
        return Outcome(
            first["kind"], first["num_islands"], first["round"], first["num_steps"], arrays
        )

    def _said(
        self, future: concurrent.futures.Future[Outcome], waits_for: Callable[[], str]
    ) -> dict[str, Any]:
        # Not result(timeout): its TimeoutError is also what the call may raise, and the call may end
        # between that error and a look at done().
        finished, _ = concurrent.futures.wait([future], _SECONDS_BETWEEN_SIGNS)
        if not finished:
            return {"waits_for": waits_for()}
        try:
            outcome = future.result()
        except Exception as error:
            return {"type": type(error).__name__, "error": str(error)}
        return {
            "kind": outcome.kind,
            "num_islands": outcome.num_islands,
            "round": outcome.round,
            "num_steps": outcome.num_steps,
            "arrays": [[list(a.shape), a.dtype.name] for a in outcome.arrays],
        }

    def _shared(self, arrays: Any, layout: list[Any]) -> tuple[np.ndarray[Any, Any], ...]:
        assert self._extended is not None
        kinds = [(tuple(shape), np.dtype(name)) for shape, name in layout]
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in kinds]
        raw = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        raw = self._extended.broadcast(raw, sum(sizes), from_worker=0)
        shared, start = [], 0
        for (shape, dtype), size in zip(kinds, sizes, strict=True):
            count = size // dtype.itemsize
            shared.append(np.frombuffer(raw, dtype, count, start).reshape(shape))
            start += size
        return tuple(shared)


def _rebuilt(name: str, text: str) -> Exception:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, StratagemError):
        return kind(f"The leader of the island: {text}")
    return RemoteError(f"The leader of the island failed with {name}: {text}")
