"""``WorkerDefinitions``: a worker's functions, datasets and variables, each instantiated on first use."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from stratagem._src.core.errors import UnavailableError
from stratagem._src.core.types import Dataset
from stratagem._src.current_strategy import context
from stratagem._src.input.distributed_dataset import (
    DistributedDataset,
    distribute_from_function,
)
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.parameter_server.coordinator.per_worker_variable import WorkerLocalVariable
from stratagem._src.parameter_server.protocol.serialization import unpack
from stratagem._src.parameter_server.protocol.worker_messages import Define

__all__ = ["WorkerDefinitions"]

_ARRIVAL_TIMEOUT_SECONDS = 30.0


class WorkerDefinitions:
    """The definitions of one session, by number."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._added = threading.Condition()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, define: Define) -> None:
        """Adds a definition."""
        with self._added:
            self._entries[define.number] = _Entry(define)
            self._added.notify_all()

    def forget(self, numbers: Iterable[int]) -> None:
        """Drops definitions and their instances."""
        for number in numbers:
            self._entries.pop(number, None)

    def get(self, number: int) -> Any:
        """Returns the instance of a definition, created on the first call."""
        entry = self._entries.get(number) or self._wait_for(number)
        if not entry.is_made:
            with entry.lock:
                if not entry.is_made:
                    entry.made = self._make(entry.define)
                    entry.is_made = True
        return entry.made

    def _wait_for(self, number: int) -> _Entry:
        # Two requests of the coordinator may overtake each other, so a closure can arrive before its
        # definition.
        with self._added:
            arrived = self._added.wait_for(
                lambda: number in self._entries, _ARRIVAL_TIMEOUT_SECONDS
            )
        if not arrived:
            raise UnavailableError(
                f"Definition {number} did not arrive from the coordinator within "
                f"{_ARRIVAL_TIMEOUT_SECONDS:g} s of a function that refers to it."
            )
        return self._entries[number]

    def _make(self, define: Define) -> Any:
        referred = [self.get(reference.definition) for reference in define.references]
        made = unpack(define.payload, referred)
        if define.kind == "variable":
            return WorkerLocalVariable(context.get_strategy(), **made)
        if define.kind == "dataset":
            return made() if callable(made) else made
        return _iterate(made) if define.kind == "iterator" else made


class _Entry:
    __slots__ = ("define", "is_made", "lock", "made")

    def __init__(self, define: Define) -> None:
        self.define = define
        self.lock = threading.RLock()
        self.is_made = False
        self.made: Any = None


def _iterate(dataset: Dataset) -> DistributedIterator:
    """Returns an iterator that compiled functions and several threads can draw from."""
    if isinstance(dataset, DistributedDataset):
        return iter(dataset)
    one_device = ReplicaGroup.of(resolve_devices()[:1])
    return iter(distribute_from_function(lambda _: dataset, one_device, None, WorkerPosition(), 1))
