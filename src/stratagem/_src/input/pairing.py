"""Pairs the datasets and iterations of one worker with those of the other workers.

Each worker numbers the datasets it distributes, and the iterations over each. Since all workers run the
same program, equal numbers mean the same dataset; what the workers know about it is compared to make sure.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.input.input_facts import Facts
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.mesh.process_monitor import ProcessMonitor, process_monitor

__all__ = ["Pairing", "StartedIteration", "pair_datasets"]

_numbers: weakref.WeakKeyDictionary[ProcessMonitor, itertools.count[int]]
_numbers = weakref.WeakKeyDictionary()


class StartedIteration(NamedTuple):
    """An iteration that has started.

    Attributes:
        topic: Identifies this iteration on all workers.
        what: The name of the iteration in messages.
        first_step_arrived: Call it when the first step has arrived, or will not arrive.
        monitor: Monitors the participating workers.
    """

    topic: str
    what: str
    first_step_arrived: Callable[[], None]
    monitor: ProcessMonitor


class Pairing:
    """Numbers the iterations over one dataset, which all workers start in the same order.

    Iterations over other datasets do not count, nor do iterators that are never drawn from.

    Args:
        number: The index of the dataset; the same on all workers.
        made_by: The function that created it, for messages.
        seed: A shuffle seed, the same on all workers.
        monitor: Monitors the workers. After an elastic re-forming there is a new one, and this pairing is
            no longer used.
    """

    def __init__(self, number: int, made_by: str, seed: int, monitor: ProcessMonitor) -> None:
        self.seed = seed
        self._monitor = monitor
        self._number = number
        self._made_by = made_by
        self._iterations = itertools.count()

    def start_iteration(self) -> StartedIteration:
        """Starts an iteration; the calling thread is going to wait for its first step."""
        number = next(self._iterations)
        dataset = f"dataset number {self._number}, created by {self._made_by}"
        return StartedIteration(
            f"input {self._number}/{number}",
            f"iteration {number} over {dataset}",
            self._monitor.begin_input(dataset, number),
            self._monitor,
        )


def pair_datasets(made_by: str, facts: Facts, position: WorkerPosition) -> Pairing:
    """Pairs a new dataset with the one that each of the other workers creates.

    Args:
        made_by: The name of the function that creates it.
        facts: What must be equal on all workers; the error shows the first fact that differs.
        position: This worker.

    Raises:
        ReplicaMismatchError: If the workers create different datasets.
    """
    monitor = process_monitor()
    number = next(_numbers.setdefault(monitor, itertools.count()))
    mine = {
        "facts": [["dataset", number], ["made by", made_by], *map(list, facts.items())],
        "seed": secrets.randbits(32) if position.index == 0 else None,
    }
    every = monitor.all_gather_object("datasets", mine, f"{made_by} of dataset {number}")
    _check_equal(made_by, number, [dict(one["facts"]) for one in every])
    return Pairing(number, made_by, every[0]["seed"], monitor)


def _check_equal(made_by: str, number: int, every: Sequence[Facts]) -> None:
    for what in every[0]:
        # A worker that calls another function sends other facts, so a fact may be missing. "made by" comes
        # before these and differs then.
        said = [facts.get(what) for facts in every]
        values = [value for value in said if value is not None]
        if any(value != values[0] for value in values):
            raise ReplicaMismatchError(
                "All workers must distribute the same datasets in the same order, because each keeps its "
                "share of every global batch; otherwise rows are lost or repeated. For dataset "
                f"{number}, created by {made_by}, the {what} differs: "
                + "; ".join(
                    f"process {process} has {'an unknown value' if value is None else value}"
                    for process, value in enumerate(said)
                )
                + ". Build the same dataset, with the same global batch size, on every worker; if workers "
                "read different data, use distribute_datasets_from_function() or AutoShardPolicy.OFF."
            )
