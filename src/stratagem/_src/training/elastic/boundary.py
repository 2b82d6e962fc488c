"""The boundary from which workers resume after a re-rendezvous: the most advanced one of any worker."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.training.elastic.variable_snapshot import VariableSnapshot

__all__ = ["Boundary", "agree_on_boundary"]

_TOPIC = "boundary"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place between two steps, and the values of variables there.

    Attributes:
        number: Number of boundaries up to this one; 0 for a worker that has not reached one.
        place: The position of the program in its loops, as plain data.
        values: The values of variables.
    """

    number: int
    place: Any
    values: VariableSnapshot


def agree_on_boundary(extended: MultiWorkerExtended, mine: Boundary) -> Boundary:
    """Agrees on the boundary from which all workers resume, and restores its values in their variables.

    Raises:
        ReplicaMismatchError: If the workers have different variables.
        UnavailableError: If another worker is lost meanwhile; then nothing has changed.
    """
    if not extended.replica_group.spans_processes:
        mine.values.restore()
        return mine
    gc.collect()  # unreachable variables that are not collected yet differ between workers
    arrays = mine.values.arrays()
    said = {
        "number": mine.number,
        "place": mine.place,
        "variables": [[list(array.shape), array.dtype.name] for array in arrays],
    }
    every = process_monitor().all_gather_object(_TOPIC, said, "resuming at a common boundary")
    # Workers may have stopped at boundaries 41 and 42: the loss came between. All resume from 42. A worker
    # that has just joined is at 0 and has no variables yet, or not all.
    source = max(
        range(len(every)),
        key=lambda worker: (every[worker]["number"], len(every[worker]["variables"]), -worker),
    )
    theirs = every[source]
    _check_same_variables(every, source)
    # If all workers are at the same boundary, each restores its own copy: no broadcast is needed.
    if all(one["number"] == theirs["number"] for one in every) and all(
        len(one["variables"]) == len(theirs["variables"]) for one in every
    ):
        mine.values.restore()
        return mine
    received = _broadcast(extended, arrays, theirs["variables"], source)
    count = len(mine.values.variables)
    values = VariableSnapshot(mine.values.variables, received[:count], (), received[count:])
    extended.expect(received[count:])
    values.restore()
    return Boundary(theirs["number"], theirs["place"], values)


def _broadcast(
    extended: MultiWorkerExtended,
    arrays: list[np.ndarray[Any, Any]],
    described: list[Any],
    source: int,
) -> list[np.ndarray[Any, Any]]:
    dtypes = [np.dtype(_dtype(name)) for _, name in described]
    shapes = [tuple(shape) for shape, _ in described]
    sizes = [
        int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    gives = extended.worker_position().index == source
    raw = b"".join(array.tobytes() for array in arrays) if gives else b""
    raw = extended.broadcast(raw, sum(sizes), from_worker=source)
    received, start = [], 0
    for shape, dtype, size in zip(shapes, dtypes, sizes, strict=True):
        received.append(np.ndarray(shape, dtype, raw[start : start + size]).copy())
        start += size
    return received


def _dtype(name: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, name, name)


def _check_same_variables(every: list[Any], source: int) -> None:
    theirs = every[source]["variables"]
    for worker, one in enumerate(every):
        if one["variables"] != theirs[: len(one["variables"])]:
            raise ReplicaMismatchError(
                "Every worker must create the same variables in the same order, but process "
                f"{worker} has {_described(one['variables'])}, and process {source} "
                f"{_described(theirs)}."
            )


def _described(variables: list[Any]) -> str:
    return ", ".join(f"{dtype}{shape}" for shape, dtype in variables) or "none"
