"""``IslandWorkers``: broadcasts the leader's outcome of an outer step to all workers of its island."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core import errors
from stratagem._src.core.errors import InvalidArgumentError, RemoteError, StratagemError
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.process.background import Background
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.training.local_updates.island_client import Outcome

__all__ = ["IslandWorkers"]

_TOPIC = "islands"
# While the leader waits for other islands, it tells its workers this often that it is alive.
_KEEPALIVE_SECONDS = 2.0


class IslandWorkers:
    """Runs the leader's calls to other islands in the background, and gives their outcome to all workers.

    Args:
        strategy: The island's strategy.

    Raises:
        InvalidArgumentError: If the number of workers may change.
    """

    def __init__(self, strategy: Strategy) -> None:
        extended = strategy.extended
        self._extended: MultiWorkerExtended | None = None
        if isinstance(extended, MultiWorkerExtended):
            if extended.is_elastic:
                raise InvalidArgumentError(
                    "The number of workers of an island must be fixed, got a strategy of an elastic job. "
                    "Use several islands of fixed size instead: training continues without lost islands."
                )
            if extended.worker_position().num_workers > 1:
                self._extended = extended
        self._background = Background("the outer steps of an island")

    @property
    def leads(self) -> bool:
        """Whether this worker talks to other islands."""
        return self._extended is None or self._extended.worker_position().index == 0

    def begin(self, call: Callable[[], Outcome]) -> concurrent.futures.Future[Outcome]:
        """Starts ``call`` in the leader's background thread; returns the future of its outcome."""
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
        """Waits for the leader's outcome and returns it, bit-identical, in all workers.

        Raises:
            Exception: The exception of the leader's call, in all workers.
        """
        if self._extended is None:
            return future.result()
        while True:
            said: dict[str, Any] = {}
            if self.leads:
                said = self._said(future, waits_for)
            first = process_monitor().all_gather_object(_TOPIC, said, f"{what} of the islands")[0]
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
        # Not result(timeout): the call itself may raise TimeoutError, and it may end between that error and
        # a check of done().
        finished, _ = concurrent.futures.wait([future], _KEEPALIVE_SECONDS)
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

    def _shared(self, arrays: Sequence[Any], layout: list[Any]) -> tuple[np.ndarray[Any, Any], ...]:
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
        return kind(f"From the leader of the island: {text}")
    return RemoteError(f"The leader of the island failed with {name}: {text}")
