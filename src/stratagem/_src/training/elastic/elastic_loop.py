"""``ElasticLoop``: loops that go on where they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.data.auto_shard import after_iterations, seed_shuffles
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import AutoShardPolicy, Options
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.elastic.loop_places import LoopPlaces, Opened
from stratagem._src.variables.variable import Variable

__all__ = ["ElasticLoop", "first_place"]

_MAX_SHOWN = 100


class ElasticLoop:
    """The loops of one run of an elastic function, which gets it as its first argument.

    When workers are lost or come, the function is called again, and its loops go on where they were: a
    loop that had come to its end has nothing left, and the one that was at work gives the next number or
    batch. There variables have the values from that place, whatever the function has done to them on
    the way to it.

    Loops are one inside the other, or follow each other in the body of the one around them, in the same
    order whenever the function is called.

    In a ``Checkpoint`` it is the place in the loops, so that a job which is started again goes on there:
    ``Checkpoint(model=model, loop=loop)``, restored before the first loop. The number or batch that is at
    work when it is saved counts as done. After a loss of workers the run goes on from its last boundary,
    which is later: there a restore leaves the loop as it is.

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
        self._goes_on = bool(place["loops"])
        self._restored: Callable[[], Iterable[Variable]] | None = None
        self._values: list[tuple[Variable, Any]] = []
        self._take(place)
        self._levels: list[Level] = []
        self._counted_as_done: Level | None = None
        self._iterators: list[DistributedIterator] = []

    def _take(self, place: Any) -> None:
        self._goal = place
        self._places = LoopPlaces(place["loops"], place.get("ended", 0))
        self._seed = int(place["seed"])
        self._step = int(place["step"])
        self._iterations = dict(place["iterations"])

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

    # --- for checkpoints --------------------------------------------------------------------------------

    def get_state(self) -> Any:
        """Returns where the program stands, as plain data; what is at work in the innermost loop is done.

        It is the same on all workers, however many there are.
        """
        if self._places.is_on_the_way:
            return copy.deepcopy(self._goal)
        place = self._place()
        if self._levels:
            innermost = self._counted_as_done = self._levels[-1]
            place["loops"][-1][1] = innermost.next_position()
            place["step"] += innermost.batches
        else:
            place["ended"] = self._places.num_ended
        return place

    def check_state(self, state: Any) -> None:
        """Checks that the loops can go on at a place.

        Raises:
            InvalidArgumentError: If it is not a place in loops.
            ContextError: If the first loop has begun.
        """
        match state:
            case {"loops": [*_], "seed": int(), "step": int(), "iterations": dict()}:
                pass
            case _:
                raise InvalidArgumentError(
                    f"A loop is restored from the place of a loop, got {str(state)[:_MAX_SHOWN]}. Give the "
                    "Checkpoint the objects under the names under which they were saved."
                )
        if self._places.has_begun and not self._goes_on:
            raise ContextError(
                "The place in the loops must be restored before the first of them begins. Call restore() "
                "at the start of the elastic function."
            )

    def set_state(self, state: Any) -> None:
        """Has the loops go on at a place, unless the run goes on from a later one."""
        self.check_state(state)
        if not self._goes_on:
            self._take(state)

    def note_restored(self, variables: Callable[[], Iterable[Variable]]) -> None:
        """Notes which variables have the values of the place at which the loops go on.

        The body of an outer loop may set them again on the way to that place, as it does to zero at the
        start of an epoch. There they get these values back.
        """
        if not self._goes_on:
            self._restored = variables

    def close(self) -> None:
        """Ends the threads that prepare batches."""
        for iterator in self._iterators:
            iterator.close()
        self._iterators.clear()

    # --- for the loops ----------------------------------------------------------------------------------

    def begin(self, level: Level, first: Any = None) -> Opened:
        """Begins a loop, a new one at the position ``first``."""
        if self._levels and self._counted_as_done is self._levels[-1]:
            raise ContextError(
                "A loop begins in a body in which the place of the loops was saved before, so that the "
                "checkpoint counts this number or batch as done, without that loop. Save after the last "
                "loop of the body, or inside of it."
            )
        if self._restored is not None and not self._places.has_begun:
            self._keep_restored()
        opened = self._places.open(first)
        if not opened.is_done:
            self._levels.append(level)
        return opened

    def come(self, depth: int, position: Any, *, batches: int = 0) -> None:
        """Comes to a boundary."""
        self._places.advance(depth, position)
        self._leave(depth + 1)
        self._counted_as_done = None
        self._step += batches
        self._reach(self._place())

    def arrive(self, opened: Opened) -> None:
        """Notes that a loop goes on, perhaps at the place that the run was to come to."""
        if not opened.is_there:
            return
        self._arrive()
        for variable, value in self._values:
            variable.assign(value)
        self._values.clear()

    def _keep_restored(self) -> None:
        assert self._restored is not None
        if self._places.is_on_the_way:
            self._values = [(v, v.value_on_host()) for v in self._restored()]
            # From here the run goes on after a loss: what it had at its boundary before is not this.
            self._reach(copy.deepcopy(self._goal))
        self._restored = None

    def begin_at(self, opened: Opened, position: Any) -> None:
        """Notes where a loop begins."""
        self._places.begin_at(opened.depth, position)

    def end(self, level: Level) -> None:
        """Ends a loop, which its body may have left before; nothing to do if one around it has gone on."""
        if any(level is known for known in self._levels):
            depth = next(d for d, known in enumerate(self._levels) if known is level)
            self._leave(depth)
            self._places.close(depth)

    def _leave(self, depth: int) -> None:
        """Forgets loops, of which some may have been left in the middle: their batch came, too."""
        self._step += sum(level.batches for level in self._levels[depth:])
        del self._levels[depth:]

    def _place(self) -> Any:
        place = {"step": self._step, "loops": self._places.place}
        return place | {"seed": self._seed, "iterations": dict(self._iterations)}

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


class Level:
    """A loop that is open, as its ``ElasticLoop`` knows it.

    Attributes:
        next_position: Returns the position after what is at work.
        batches: How many batches are at work.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.next_position: Callable[[], Any] = lambda: None


class _Range:
    def __init__(self, loop: ElasticLoop, numbers: range) -> None:
        self._loop = loop
        self._numbers = numbers
        self._level = Level()
        self._opened: Opened | None = None
        self._next = numbers.start

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        loop = self._loop
        if self._opened is None:
            self._opened = opened = loop.begin(self._level, self._numbers.start)
            if opened.is_done:
                raise StopIteration
            self._next = opened.position
            loop.arrive(opened)
        elif self._opened.is_done:
            raise StopIteration
        else:
            self._next += self._numbers.step
            loop.come(self._opened.depth, self._next)
        after = self._next + self._numbers.step
        self._level.next_position = lambda: after
        if not range(self._next, self._numbers.stop, self._numbers.step):
            loop.end(self._level)
            self._opened = self._opened._replace(is_done=True)
            raise StopIteration
        return self._next

    def __del__(self) -> None:
        # A for statement lets go of its iterator when its body is left: what follows is not in the loop.
        self._loop.end(self._level)


class _Batches:
    def __init__(self, loop: ElasticLoop, dataset: Any) -> None:
        self._loop = loop
        self._dataset = dataset
        self._level = Level()
        self._opened: Opened | None = None
        self._iterator: DistributedIterator | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        loop = self._loop
        if self._opened is None:
            self._begin()
        elif not self._opened.is_done:
            self._level.batches = 0
            loop.come(self._opened.depth, self._drawn_from.get_state(), batches=1)
        assert self._opened is not None
        if self._opened.is_done:
            raise StopIteration
        try:
            batch = next(self._drawn_from)
        except StopIteration:
            self._drawn_from.close()
            loop.end(self._level)
            self._opened = self._opened._replace(is_done=True)
            raise
        self._level.batches = 1
        return batch

    def __del__(self) -> None:
        self._loop.end(self._level)

    @property
    def _drawn_from(self) -> DistributedIterator:
        assert self._iterator is not None
        return self._iterator

    def _begin(self) -> None:
        self._opened = opened = self._loop.begin(self._level)
        if opened.is_done:
            return
        self._iterator = self._loop.distribute(self._dataset, opened.position)
        self._level.next_position = self._iterator.get_state
        if opened.position is None:
            # Its beginning is a place, too: a new iteration might have another order.
            self._loop.begin_at(opened, self._iterator.get_state())
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
