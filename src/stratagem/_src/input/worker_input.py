"""The per-step batches of one worker in host memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element, IteratorState, Leaf, PyTree
from stratagem._src.input.divisible import check_divisible, empty_like
from stratagem._src.input.sources import Source, SourceIterator
from stratagem._src.input.splitting import (
    Rows,
    WorkerPosition,
    split_rows,
    worker_share,
)

__all__ = ["HostStep", "HostSteps", "WorkerInput", "per_replica_steps", "split_steps", "take_rows"]


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


HostSteps = Generator[HostStep, None, None]

WorkerInput = Callable[[Any], tuple[Any, HostSteps]]
"""Opens the input at a state, or at the beginning for ``None``; returns that state and the steps."""


def split_steps(
    source: Source, position: WorkerPosition, *, replicated_source: bool
) -> WorkerInput:
    """Returns the steps of a worker that reads a dataset of global batches.

    Args:
        source: Yields the batches.
        position: The worker.
        replicated_source: ``True`` if all workers read the same batches and each takes its share of
            every batch. ``False`` if the worker reads its own data: then one global batch lasts for
            ``num_workers`` steps.
    """

    def open_at(state: IteratorState) -> tuple[Any, HostSteps]:
        count, turn, source_state = state or (0, 0, None)
        iterator = source.open(source_state)
        return [count, turn, iterator.get_state()], steps(count, turn, iterator)

    def steps(count: int, turn: int, iterator: SourceIterator) -> HostSteps:
        if position.num_workers == position.num_replicas == 1:
            for number, element in enumerate(iterator, count + 1):
                yield HostStep([_undivided(element)], None, [number, 0, iterator.get_state()])
            return
        # A state is [step count, turn, state of the source]. In the middle of a batch it holds the
        # source's state before that batch, which is read again, and the turn to continue with.
        before = iterator.get_state()
        checked = False
        for batch in iterator:
            if not checked:
                check_divisible(batch)
                checked = True
            size = _batch_size(batch)
            turns = 1 if replicated_source else position.num_workers
            start, start_count = 0, count
            behind = iterator.get_state()
            for current in range(turns):
                shares = worker_share(size, position.num_workers, position.index, count)
                if replicated_source:
                    rows = shares
                elif current == turns - 1:
                    rows = (start, size)
                else:
                    rows = (start, start + shares[1] - shares[0])
                start = rows[1]
                count += 1
                last = current == turns - 1
                after = [count, 0, behind] if last else [start_count, current + 1, before]
                if current >= turn:
                    step = _split(batch, rows, position.num_replicas, after)
                    step.global_rows = size if replicated_source else None
                    yield step
            turn = 0
            before = behind

    return open_at


def per_replica_steps(
    sources: list[Source], num_replicas: int, *, static_shapes: bool
) -> WorkerInput:
    """Returns the steps of a worker that reads datasets of per-replica batches.

    One source feeds all replicas in round-robin order; several sources feed one replica each.

    Args:
        sources: Yield the batches.
        num_replicas: The number of replicas of this worker.
        static_shapes: Whether all batches must have the same shapes. Then an incomplete last step is
            dropped. Otherwise replicas without a batch get an empty one, so that no data is lost. Elements
            that are not batches have no empty form, so an incomplete step is dropped for these too.
    """

    def open_at(state: IteratorState) -> tuple[Any, HostSteps]:
        states = state or [None] * len(sources)
        iterators = [source.open(s) for source, s in zip(sources, states, strict=True)]
        return [iterator.get_state() for iterator in iterators], steps(iterators)

    def steps(iterators: list[SourceIterator]) -> HostSteps:
        while True:
            batches = [
                next(iterators[replica % len(iterators)], None) for replica in range(num_replicas)
            ]
            example = next((batch for batch in batches if batch is not None), None)
            if example is None:
                return
            is_incomplete = any(batch is None for batch in batches)
            if is_incomplete and (static_shapes or not _has_rows(example)):
                return
            empty = None
            for replica, batch in enumerate(batches):
                if batch is None:
                    empty = empty_like(example) if empty is None else empty
                    batches[replica] = empty
            yield HostStep(batches, None, [iterator.get_state() for iterator in iterators])

    return open_at


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
