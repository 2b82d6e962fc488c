"""The per-step batches of one worker in host memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element, IteratorState, Leaf, PyTree
from stratagem._src.input.divisible import check_divisible, empty_like
from stratagem._src.input.sources import Source
from stratagem._src.input.splitting import (
    Rows,
    WorkerPosition,
    split_rows,
    worker_share,
)

__all__ = ["HostStep", "HostSteps", "PerReplicaSteps", "SplitSteps", "WorkerInput", "take_rows"]


class HostStep:
    """The batches of one worker's replicas for one step, in host memory.

    Exactly one of ``replica_batches`` and ``local_batch`` is set.

    Args:
        replica_batches: One element per replica.
        local_batch: The batches of all replicas as one contiguous array, if they have equal sizes. It is
            placed on the devices with one transfer per leaf.
        state: The state of the worker's input after this step.
        uneven: Whether the batch sizes differ between replicas or from those of another worker.
        global_rows: The size of the global batch, if all workers read it and each keeps its share;
            ``None`` if this worker reads its own data.
    """

    __slots__ = ("global_rows", "local_batch", "replica_batches", "state", "uneven")

    def __init__(
        self,
        replica_batches: list[Any] | None,
        local_batch: PyTree,
        state: IteratorState,
        *,
        uneven: bool = False,
        global_rows: int | None = None,
    ) -> None:
        self.replica_batches = replica_batches
        self.local_batch = local_batch
        self.state = state
        self.uneven = uneven
        self.global_rows = global_rows


class HostSteps(Protocol):
    """An iterator over the steps of one worker that knows its state.

    Attributes:
        state: The state after the last step that was returned; from it the same steps follow again.
    """

    @property
    def state(self) -> IteratorState:
        """The state after the last step."""

    def __iter__(self) -> Iterator[HostStep]:
        """Returns itself."""

    def __next__(self) -> HostStep:
        """Returns the next step."""


WorkerInput = Callable[[IteratorState], HostSteps]
"""Opens the input of a worker at a state, or at the beginning for ``None``."""


class SplitSteps:
    """The steps of a worker that reads a dataset of global batches.

    The state is ``[count, turn, source]``: the number of steps and the state of the source before the
    current batch, and how many turns of this batch are done. In the middle of a batch, resuming reads the
    batch again and continues with that turn.

    Args:
        source: Yields the batches.
        position: The worker.
        replicated_source: ``True`` if all workers read the same batches and each takes its share of
            every batch, in one turn. ``False`` if the worker reads its own data: then one global batch
            lasts for ``num_workers`` turns.
        state: Where to start; ``None`` for the beginning.
    """

    def __init__(
        self,
        source: Source,
        position: WorkerPosition,
        replicated_source: bool,
        state: IteratorState = None,
    ) -> None:
        self._position = position
        self._replicated = replicated_source
        self._count: int
        self._turn: int
        self._count, self._turn, source_state = state or (0, 0, None)
        self._batches = source.open(source_state)
        self._before = self._batches.get_state()
        self._batch: _Batch | None = None
        self._is_checked = False

    @property
    def state(self) -> IteratorState:
        """The state after the last step."""
        return [self._count, self._turn, self._before]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HostStep:
        if self._position.num_workers == self._position.num_replicas == 1:
            element = _undivided(next(self._batches))
            self._end_batch(num_turns=1)
            return HostStep([element], None, self.state)
        if self._batch is None:
            self._batch = self._next_batch()
        batch, rows = self._batch, self._batch.turns[self._turn]
        self._turn += 1
        if self._turn == len(batch.turns):
            self._end_batch(len(batch.turns))
        step = _split(batch.element, rows, self._position.num_replicas, self.state)
        step.global_rows = batch.size if self._replicated else None
        return step

    def _next_batch(self) -> _Batch:
        while True:
            element = next(self._batches)
            if not self._is_checked:
                check_divisible(element)
                self._is_checked = True
            size = _batch_size(element)
            turns = self._turns(size)
            if self._turn < len(turns):
                return _Batch(element, size, turns)
            # Saved by more workers than there are now: they were through with this batch.
            self._end_batch(len(turns))

    def _turns(self, size: int) -> list[Rows]:
        """Returns the rows of a batch that this worker takes in each turn."""
        count, index = self._position.num_workers, self._position.index
        if self._replicated:
            return [worker_share(size, count, index, self._count)]
        turns: list[Rows] = []
        start = 0
        for turn in range(count):
            first, end = worker_share(size, count, index, self._count + turn)
            is_last = turn == count - 1
            turns.append((start, size if is_last else start + end - first))
            start = turns[-1][1]
        return turns

    def _end_batch(self, num_turns: int) -> None:
        self._count += num_turns
        self._turn = 0
        self._before = self._batches.get_state()
        self._batch = None


class _Batch(NamedTuple):
    """A global batch, and the rows of each turn."""

    element: Element
    size: int
    turns: list[Rows]


class PerReplicaSteps:
    """The steps of a worker that reads datasets of per-replica batches.

    One source feeds all replicas in round-robin order; several sources feed one replica each. The state is
    a list of the sources' states.

    Args:
        sources: Yield the batches.
        num_replicas: The number of replicas of this worker.
        static_shapes: Whether all batches must have the same shapes. Then an incomplete last step is
            dropped. Otherwise replicas without a batch get an empty one, so that no data is lost. Elements
            that are not batches have no empty form, so an incomplete step is dropped for these too.
        state: Where to start; ``None`` for the beginning.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        num_replicas: int,
        static_shapes: bool,
        state: IteratorState = None,
    ) -> None:
        states = state or [None] * len(sources)
        self._batches = [source.open(s) for source, s in zip(sources, states, strict=True)]
        self._num_replicas = num_replicas
        self._static_shapes = static_shapes
        self.state: IteratorState = [batches.get_state() for batches in self._batches]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> HostStep:
        sources = itertools.islice(itertools.cycle(self._batches), self._num_replicas)
        step = [next(source, None) for source in sources]
        present = [batch for batch in step if batch is not None]
        if not present:
            raise StopIteration
        if len(present) < len(step):
            if self._static_shapes or not _has_rows(present[0]):
                raise StopIteration
            empty = empty_like(present[0])
            step = [empty if batch is None else batch for batch in step]
        self.state = [batches.get_state() for batches in self._batches]
        return HostStep(step, None, self.state)


def _split(batch: Element, rows: Rows, num_replicas: int, state: IteratorState) -> HostStep:
    first, end = rows
    ranges = split_rows(rows, num_replicas)
    if num_replicas == 1:
        return HostStep([take_rows(batch, rows)], None, state)
    if (end - first) % num_replicas == 0 and end > first:
        return HostStep(None, take_rows(batch, rows), state)
    return HostStep([take_rows(batch, part) for part in ranges], None, state)


def _undivided(element: Element) -> Any:
    """Returns an element for the only replica; it need not be a batch."""
    if not structures.leaves_of(element):
        raise _without_arrays()
    return structures.map_structure(
        lambda leaf: np.asarray(leaf) if np.ndim(leaf) else leaf, element
    )


def _has_rows(element: Element) -> bool:
    return all(np.ndim(leaf) for leaf in structures.leaves_of(element))


def take_rows(batch: Element, rows: Rows) -> Any:
    """Returns a range of the rows of every array in a batch."""
    first, end = rows

    def cut(leaf: Leaf) -> Any:
        array = np.asarray(leaf)
        if array.ndim == 0:
            raise _unbatched(batch)
        return array if first == 0 and end == array.shape[0] else array[first:end]

    return structures.map_structure(cut, batch)


def _batch_size(batch: Element) -> int:
    leaves = structures.leaves_of(batch)
    if not leaves:
        raise _without_arrays()
    sizes = []
    for leaf in leaves:
        if np.ndim(leaf) == 0:
            raise _unbatched(batch)
        sizes.append(np.shape(leaf)[0])
    if len(set(sizes)) > 1:
        raise InvalidArgumentError(
            "The arrays of a batch must have the same number of rows, got "
            f"{[np.shape(leaf) for leaf in leaves]}."
        )
    return int(sizes[0])


def _without_arrays() -> InvalidArgumentError:
    return InvalidArgumentError("The elements of a distributed dataset must contain arrays.")


def _unbatched(batch: Element) -> InvalidArgumentError:
    shapes = [np.shape(leaf) for leaf in structures.leaves_of(batch)]
    return InvalidArgumentError(
        "A dataset to distribute must be batched by the global batch size, so that each array has a "
        f"row for each example, got elements of shapes {shapes}. Call .batch(global_batch_size) first."
    )
