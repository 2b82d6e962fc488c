"""``ElasticLoop``: loops that go on where they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.auto_shard import after_iterations, seed_shuffles
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import AutoShardPolicy, Options
from stratagem._src.distributed_input.distributed_dataset import DistributedDataset
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.elastic.loop_places import LoopPlaces, Opened

__all__ = ["ElasticLoop", "first_place"]


class ElasticLoop:
    """The loops of one run of an elastic function, which gets it as its first argument.

    When workers are lost or come, the function is called again, and its loops go on where they were: a
    loop that had come to its end has nothing left, and the one that was at work gives the next number or
    batch. There variables have the values from that place, whatever the function has done to them on
    the way to it.

    Loops are one inside the other, or follow each other in the body of the one around them, in the same
    order whenever the function is called.

    Args:
        strategy: Distributes datasets.
        place: Where it goes on.
        reach: Called at each boundary, with the place there.
        arrive: Called when the place is reached at which the run goes on.
    """

    def __init__(
        self,
        strategy: Strategy,
        place: Any,
        reach: Callable[[Any], None],
        arrive: Callable[[], None],
    ) -> None:
        self._strategy = strategy
        self._reach = reach
        self._arrive = arrive
        self._places = LoopPlaces(place["loops"])
        self._seed = int(place["seed"])
        self._step = int(place["step"])
        self._iterations = dict(place["iterations"])
        self._iterators: list[DistributedIterator] = []

    @property
    def step(self) -> int:
        """How many batches came before this one, in all loops."""
        return self._step

    def range(self, *args: int) -> Iterator[int]:
        """Like Python's ``range``, going on where it was: for epochs, and for steps.

        Every number begins at a boundary: what was done for the one before is not done again. A range that
        goes on does so at the number that it had come to, wherever it would begin now:
        ``loop.range(int(epochs_done), 100)`` may count what is done in a variable.
        """
        return _Range(self, range(*args))

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Gives the batches of a dataset, divided between the replicas that there are at the time.

        Every batch begins at a boundary. It has the same examples however many workers there are, and
        none is left out or given twice: a batch that was at work when workers were lost is computed
        again by those that are left, and what it had done is forgotten.

        Args:
            dataset: A ``Dataset`` of global batches, or an iterable of them that can be read again.
                Every worker reads all of it and keeps its share, because the share changes.

        Raises:
            InvalidArgumentError: If it is distributed already, or divided by file.
        """
        return _Batches(self, _check_dataset(dataset))

    def close(self) -> None:
        """Ends the threads that prepare batches."""
        for iterator in self._iterators:
            iterator.close()
        self._iterators.clear()

    # --- for the loops ----------------------------------------------------------------------------------

    def begin(self, first: Any = None) -> Opened:
        """Begins a loop, a new one at the position ``first``."""
        return self._places.open(first)

    def come(self, depth: int, position: Any, *, batches: int = 0) -> None:
        """Comes to a boundary."""
        self._places.advance(depth, position)
        self._step += batches
        place = {"step": self._step, "loops": self._places.place}
        self._reach(place | {"seed": self._seed, "iterations": dict(self._iterations)})

    def arrive(self, opened: Opened) -> None:
        """Notes that a loop goes on, perhaps at the place that the run was to come to."""
        if opened.is_there:
            self._arrive()

    def end(self, depth: int) -> None:
        """Ends a loop."""
        self._places.close(depth)

    def distribute(self, dataset: Any, state: Any) -> DistributedIterator:
        """Returns an iteration over a dataset.

        Its order depends on the run's seed, on the loop, and on how often that began before: not on how
        often this process has read the dataset.

        Args:
            dataset: The dataset.
            state: Where the iteration goes on; ``None`` for a new one.
        """
        if isinstance(dataset, Dataset):
            which, seeded = self._places.path, seed_shuffles(dataset, self._seed)
            number = self._iterations.get(which, 0)
            if state is None:
                self._iterations[which] = number + 1
            dataset = _divided_by_batch(after_iterations(seeded, number))
        iterator = iter(self._strategy.experimental_distribute_dataset(dataset))
        self._iterators.append(iterator)
        if state is not None:
            iterator.set_state(state)
        return iterator


def first_place(seed: int) -> Any:
    """Returns where a run begins.

    Args:
        seed: For the order of datasets that have none; the same on all workers.
    """
    return {"step": 0, "loops": [], "seed": seed, "iterations": {}}


class _Range:
    def __init__(self, loop: ElasticLoop, numbers: range) -> None:
        self._loop = loop
        self._numbers = numbers
        self._opened: Opened | None = None
        self._next = numbers.start

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        loop = self._loop
        if self._opened is None:
            self._opened = opened = loop.begin(self._numbers.start)
            if opened.is_done:
                raise StopIteration
            self._next = opened.position
            loop.arrive(opened)
        elif self._opened.is_done:
            raise StopIteration
        else:
            self._next += self._numbers.step
            loop.come(self._opened.depth, self._next)
        if not range(self._next, self._numbers.stop, self._numbers.step):
            loop.end(self._opened.depth)
            self._opened = self._opened._replace(is_done=True)
            raise StopIteration
        return self._next


class _Batches:
    def __init__(self, loop: ElasticLoop, dataset: Any) -> None:
        self._loop = loop
        self._dataset = dataset
        self._opened: Opened | None = None
        self._iterator: DistributedIterator | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        loop = self._loop
        if self._opened is None:
            self._begin()
        elif not self._opened.is_done:
            loop.come(self._opened.depth, self._drawn_from.get_state(), batches=1)
        assert self._opened is not None
        if self._opened.is_done:
            raise StopIteration
        try:
            return next(self._drawn_from)
        except StopIteration:
            self._drawn_from.close()
            loop.end(self._opened.depth)
            self._opened = self._opened._replace(is_done=True)
            raise

    @property
    def _drawn_from(self) -> DistributedIterator:
        assert self._iterator is not None
        return self._iterator

    def _begin(self) -> None:
        self._opened = opened = self._loop.begin()
        if opened.is_done:
            return
        self._iterator = self._loop.distribute(self._dataset, opened.position)
        self._loop.arrive(opened)


def _check_dataset(dataset: Any) -> Any:
    if isinstance(dataset, (DistributedDataset, DistributedIterator)):
        raise InvalidArgumentError(
            "An elastic run divides its datasets itself, between the workers that there are at the time, "
            f"got a {type(dataset).__name__}. Give the dataset that it was made of."
        )
    if isinstance(dataset, Iterator):
        raise InvalidArgumentError(
            "An elastic run reads its datasets again when workers are lost, got an iterator, which can be "
            "read only once. Give a Dataset, a list, or use Dataset.from_generator(function)."
        )
    if isinstance(dataset, Dataset):
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
            raise InvalidArgumentError(
                "An elastic run divides each batch between the workers, because what a lost worker has "
                f"read of its own files is not known, got AutoShardPolicy.{policy.name}. Use DATA or AUTO."
            )
    return dataset


def _divided_by_batch(dataset: Dataset) -> Dataset:
    options: Options = copy.deepcopy(dataset.options())
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    return dataset.with_options(options)
