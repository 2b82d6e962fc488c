"""Which datasets and iterations of several workers belong together."""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.input.input_facts import Facts
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.mesh.dispatch_queue import ProcessWatch, process_watch

__all__ = ["Beginning", "Pairing", "pair_datasets"]

_numbers: weakref.WeakKeyDictionary[ProcessWatch, itertools.count[int]]
_numbers = weakref.WeakKeyDictionary()


class Beginning(NamedTuple):
    """An iteration that has begun.

    Attributes:
        topic: The same for this iteration on all workers.
        what: What it is called in messages.
        end: To be called when its first step is there, or will not come.
        watch: Over the workers that take part in it.
    """

    topic: str
    what: str
    end: Callable[[], None]
    watch: ProcessWatch


class Pairing:
    """The iterations over one dataset, which all workers begin in the same order.

    Those over other datasets do not count, nor do iterators that nobody draws from.

    Args:
        number: Of the dataset; the same on all workers.
        made_by: What made it, for messages.
        seed: The same on all workers.
        watch: Over the workers. They may form anew, and then have nothing more to do with it.
    """

    def __init__(self, number: int, made_by: str, seed: int, watch: ProcessWatch) -> None:
        self.seed = seed
        self._watch = watch
        self._number = number
        self._made_by = made_by
        self._begun = itertools.count()

    def begin(self) -> Beginning:
        """Begins an iteration, whose first step this thread is going to wait for."""
        number = next(self._begun)
        dataset = f"the dataset that {self._made_by} made as number {self._number}"
        return Beginning(
            f"input {self._number}/{number}",
            f"iteration {number} over {dataset}",
            self._watch.begin_input(dataset, number),
            self._watch,
        )


def pair_datasets(made_by: str, facts: Facts, position: WorkerPosition) -> Pairing:
    """Pairs a dataset that is made now with those that the other workers make.

    Args:
        made_by: The name of the function that makes it.
        facts: What must be equal in all workers; the first that differs is shown.
        position: This worker.

    Raises:
        ReplicaMismatchError: If the workers make different datasets.
    """
    watch = process_watch()
    number = next(_numbers.setdefault(watch, itertools.count()))
    mine = {
        "facts": [["dataset", number], ["made by", made_by], *map(list, facts.items())],
        "seed": secrets.randbits(32) if position.index == 0 else None,
    }
    every = watch.exchange("datasets", mine, f"{made_by} of dataset {number}")
    _check_equal(made_by, number, [dict(one["facts"]) for one in every])
    return Pairing(number, made_by, every[0]["seed"], watch)


def _check_equal(made_by: str, number: int, every: Sequence[Facts]) -> None:
    for what in every[0]:
        # Another function has other facts, and was found before these.
        said = [facts.get(what) for facts in every]
        values = [value for value in said if value is not None]
        if any(value != values[0] for value in values):
            raise ReplicaMismatchError(
                "All workers must distribute the same datasets in the same order, because each keeps its "
                "share of every global batch: rows would be lost or repeated. Of dataset "
                f"{number}, made by {made_by}, the {what} differs: "
                + "; ".join(
                    f"process {process} has {'an unknown one' if value is None else value}"
                    for process, value in enumerate(said)
                )
                + ". Make the same dataset, batched by the same global batch size, on every worker; for "
                "data that differ between workers use distribute_datasets_from_function() or "
                "AutoShardPolicy.OFF."
            )
