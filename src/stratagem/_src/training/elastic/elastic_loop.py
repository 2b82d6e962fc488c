"""``ElasticLoop``: loops that resume where they were."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import jax

from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.core.types import IteratorState, PyTree
from stratagem._src.data.auto_shard import after_iterations, seed_shuffles
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import AutoShardPolicy, Options
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.elastic.loop_tracker import LoopEntry, LoopTracker
from stratagem._src.variables.variable import Variable

__all__ = ["ElasticLoop", "first_place", "in_open_loop", "warn_of_missing_loop"]

_MAX_SHOWN = 100
_log = logging.getLogger("stratagem")


class ElasticLoop:
    """The loops of one run of an elastic function, which gets it as its first argument.

    When workers are lost or join, the function is called again, and its loops resume where they were: a
    finished loop yields nothing, and the active one yields its next number or batch. There variables have
    the values from that place, regardless of what the function did to them on the way.

    Loops must be nested, or follow each other in the body of the enclosing loop, in the same order in every
    call of the function.

    In a ``Checkpoint`` it saves the position in the loops, so that a restarted job resumes there:
    ``Checkpoint(model=model, loop=loop)``, restored before the first loop. The number or batch that is
    active when it is saved counts as done. After a loss of workers the run resumes from its last boundary,
    which is later than the checkpoint: then a restore does not change the loop.

    Args:
        strategy: Distributes datasets.
        place: Where to resume.
        reach: Called at each boundary with its place.
        arrive: Called when the loops reach the place at which the run resumes.
    """

    def __init__(
        self,
        strategy: Strategy,
        place: IteratorState,
        reach: Callable[[Any], None],
        arrive: Callable[[], None],
    ) -> None:
        self._strategy = strategy
        self._reach = reach
        self._arrive = arrive
        self._resumes = bool(place["loops"])
        self._restored: Callable[[], Iterable[Variable]] | None = None
        self._values: list[tuple[Variable, Any]] = []
        self._take(place)
        self._levels: list[Level] = []
        self._counted_as_done: Level | None = None
        self._iterators: list[DistributedIterator] = []

    def _take(self, place: IteratorState) -> None:
        self._goal = place
        self._places = LoopTracker(place["loops"], place.get("ended", 0))
        self._seed = int(place["seed"])
        self._step = int(place["step"])
        self._iterations = dict(place["iterations"])

    @property
    def step(self) -> int:
        """Number of batches before this one, in all loops."""
        return self._step

    def range(self, *args: int) -> Iterator[int]:
        """Like Python's ``range``, but resumes where it was: for epochs and for steps.

        Every number starts at a boundary: the work for the previous one does not run again. A range that
        resumes continues at the number that it had reached, regardless of its start argument:
        ``loop.range(int(epochs_done), 100)`` may count finished epochs in a variable.
        """
        return _Range(self, range(*args))

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Yields the batches of a dataset, each sharded over the current replicas.

        Every batch starts at a boundary. It has the same examples for any number of workers, and none is
        skipped or repeated: if workers are lost during a batch, its effects are rolled back and the
        remaining workers compute it again.

        Args:
            dataset: A ``Dataset`` of global batches, or an iterable of them that can be read again.
                Every worker reads all of it and keeps its share, because the share changes.

        Raises:
            InvalidArgumentError: If it is already distributed, or sharded by file.
        """
        return _Batches(self, _check_dataset(dataset))

    # --- for checkpoints --------------------------------------------------------------------------------

    def get_state(self) -> Any:
        """Returns the place in the loops as plain data; the innermost loop's active item counts as done.

        It is the same on all workers, for any number of them.
        """
        if self._places.is_replaying:
            return copy.deepcopy(self._goal)
        place = self._place()
        if self._levels:
            innermost = self._counted_as_done = self._levels[-1]
            place["loops"][-1][1] = innermost.next_position()
            place["step"] += innermost.batches
        else:
            place["ended"] = self._places.num_ended
        return place

    def check_state(self, state: PyTree) -> None:
        """Checks that the loops can resume at a place.

        Raises:
            InvalidArgumentError: If it is not a place in loops.
            ContextError: If the first loop has started.
        """
        match state:
            case {"loops": [*_], "seed": int(), "step": int(), "iterations": dict()}:
                pass
            case _:
                raise InvalidArgumentError(
                    f"A loop must be restored from the saved state of a loop, got "
                    f"{str(state)[:_MAX_SHOWN]}. Give the Checkpoint the objects under the names under "
                    "which they were saved."
                )
        if self._places.has_begun and not self._resumes:
            raise ContextError(
                "The place in the loops must be restored before the first loop starts. Call restore() at "
                "the start of the elastic function."
            )

    def set_state(self, state: PyTree) -> None:
        """Makes the loops resume at a place, unless the run resumes from a later one."""
        self.check_state(state)
        if not self._resumes:
            self._take(state)

    def note_restored(self, variables: Callable[[], Iterable[Variable]]) -> None:
        """Records which variables were restored with the place at which the loops resume.

        The body of an outer loop may change them on the way to that place, for example reset them at the
        start of an epoch. At that place they get the restored values back.
        """
        if not self._resumes:
            self._restored = variables

    def close(self) -> None:
        """Ends the threads that prepare batches."""
        for iterator in self._iterators:
            iterator.close()
        self._iterators.clear()

    # --- for the loops ----------------------------------------------------------------------------------

    def begin(self, level: Level, first: IteratorState = None) -> LoopEntry:
        """Starts or resumes a loop; a new one starts at the position ``first``."""
        if self._levels and self._counted_as_done is self._levels[-1]:
            raise ContextError(
                "A loop starts in a body that has already saved the place in the loops, so the checkpoint "
                "counts this number or batch as done without that loop. Save after the last loop of the "
                "body, or inside it."
            )
        if self._restored is not None and not self._places.has_begun:
            self._keep_restored()
        opened = self._places.open(first)
        if not opened.is_done:
            self._levels.append(level)
            _open_loops.add(self)
        return opened

    def come(self, depth: int, position: IteratorState, *, batches: int = 0) -> None:
        """Advances a loop to its next boundary."""
        self._places.advance(depth, position)
        self._leave(depth + 1)
        self._counted_as_done = None
        self._step += batches
        self._reach(self._place())

    def arrive(self, opened: LoopEntry) -> None:
        """Restores variables if the loops have reached the place at which the run resumes."""
        if not opened.is_there:
            return
        self._arrive()
        for variable, value in self._values:
            variable.assign(value)
        self._values.clear()

    def _keep_restored(self) -> None:
        assert self._restored is not None
        if self._places.is_replaying:
            self._values = [(v, v.value_on_host()) for v in self._restored()]
            # A boundary: if workers are lost later, the run resumes with the restored values and not with
            # those of the boundary before.
            self._reach(copy.deepcopy(self._goal))
        self._restored = None

    def begin_at(self, opened: LoopEntry, position: IteratorState) -> None:
        """Sets the initial position of a loop."""
        self._places.begin_at(opened.depth, position)

    def end(self, level: Level) -> None:
        """Closes a loop, perhaps after a ``break``; a no-op if an enclosing loop has already advanced."""
        if any(level is known for known in self._levels):
            depth = next(d for d, known in enumerate(self._levels) if known is level)
            self._leave(depth)
            self._places.close(depth)

    def _leave(self, depth: int) -> None:
        """Drops loops from ``depth`` on. Some may have ended with ``break``: their batch counts too."""
        self._step += sum(level.batches for level in self._levels[depth:])
        del self._levels[depth:]
        if not self._levels:
            _open_loops.discard(self)

    def _place(self) -> Any:
        # In batch 21 of the third epoch, where each epoch has 100 batches of training and then 5 of
        # evaluation:
        #     {"step": 230, "loops": [[0, 2], [0, state of the iterator]], "seed": 17,
        #      "iterations": {"0/0": 3, "0/1": 2}}
        # The first loop of the function is at number 2; in its body the first loop is at a batch. The
        # training data has been read three times so far, and the evaluation data twice.
        place = {"step": self._step, "loops": self._places.place}
        return place | {"seed": self._seed, "iterations": dict(self._iterations)}

    def distribute(self, dataset: Any, state: PyTree) -> DistributedIterator:
        """Returns an iterator over a distributed dataset.

        Its order depends on the run's seed, on the loop, and on how often that loop has started. It does
        not depend on how often this process has read the dataset: a replacement worker must see the same
        order.

        Args:
            dataset: The dataset.
            state: Where the iteration resumes; ``None`` for a new one.
        """
        if isinstance(dataset, Dataset):
            which, seeded = self._places.path, seed_shuffles(dataset, self._seed)
            number = self._iterations.get(which, 0)
            if state is None:
                self._iterations[which] = number + 1
            dataset = _sharded_by_batch(after_iterations(seeded, number))
        iterator = iter(self._strategy.experimental_distribute_dataset(dataset))
        self._iterators.append(iterator)
        if state is not None:
            iterator.set_state(state)
        return iterator


def first_place(seed: int) -> Any:
    """Returns the place at which a run starts.

    Args:
        seed: Seed for datasets that have none; the same on all workers.
    """
    return {"step": 0, "loops": [], "seed": seed, "iterations": {}}


_open_loops: weakref.WeakSet[ElasticLoop] = weakref.WeakSet()
_warned_of: list[str] = []


def in_open_loop() -> bool:
    """Returns whether the program is in a loop of an elastic function."""
    return bool(_open_loops)


def warn_of_missing_loop(saved: PyTree) -> None:
    """Warns once if a checkpoint is saved inside an elastic loop and does not contain the loop.

    Args:
        saved: The objects of the checkpoint.
    """
    if not _open_loops or _warned_of:
        return
    if not any(isinstance(leaf, ElasticLoop) for leaf in jax.tree.leaves(saved)):
        _warned_of.append("a checkpoint without the loop")
        _log.warning(
            "A Checkpoint is saved in an elastic loop, but does not contain the loop: a job that is "
            "restarted from it repeats epochs. Write Checkpoint(..., loop=loop), with the first argument "
            "of the elastic function."
        )


class Level:
    """An open loop of an ``ElasticLoop``.

    Attributes:
        next_position: Returns the position after the active item.
        batches: Number of active batches, 0 or 1.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.next_position: Callable[[], Any] = lambda: None


class _Range:
    def __init__(self, loop: ElasticLoop, numbers: range) -> None:
        self._loop = loop
        self._numbers = numbers
        self._level = Level()
        self._opened: LoopEntry | None = None
        self._next = numbers.start

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        loop = self._loop
        # The first call starts or resumes the loop; each later one first passes a boundary.
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
        # A for statement drops its iterator when it ends or breaks: what follows is not in the loop.
        self._loop.end(self._level)


class _Batches:
    def __init__(self, loop: ElasticLoop, dataset: Any) -> None:
        self._loop = loop
        self._dataset = dataset
        self._level = Level()
        self._opened: LoopEntry | None = None
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
            # Record the initial state too: a new iteration might have another order.
            self._loop.begin_at(opened, self._iterator.get_state())
        self._loop.arrive(opened)


def _check_dataset(dataset: Any) -> Any:
    if isinstance(dataset, (DistributedDataset, DistributedIterator)):
        raise InvalidArgumentError(
            "An elastic run shards its datasets itself, over the current workers, got a "
            f"{type(dataset).__name__}. Pass the original dataset."
        )
    if isinstance(dataset, Iterator):
        raise InvalidArgumentError(
            "An elastic run reads its datasets again when workers are lost, got an iterator, which can be "
            "read only once. Pass a Dataset or a list, or use Dataset.from_generator(function)."
        )
    if isinstance(dataset, Dataset):
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
            raise InvalidArgumentError(
                "An elastic run shards each batch over the workers, because it is unknown how much of its "
                f"own files a lost worker has read, got AutoShardPolicy.{policy.name}. Use DATA or AUTO."
            )
    return dataset


def _sharded_by_batch(dataset: Dataset) -> Dataset:
    options: Options = copy.deepcopy(dataset.options())
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    return dataset.with_options(options)
