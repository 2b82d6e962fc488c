"""The batches that one worker reads, step by step, on the host."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.input.divisible import refuse_undividable, without_rows
from stratagem._src.input.sources import Source, SourceIterator
from stratagem._src.input.splitting import (
    Rows,
    WorkerPosition,
    split_rows,
    worker_share,
)

__all__ = ["HostStep", "HostSteps", "WorkerInput", "dealt_steps", "split_steps", "take_rows"]


class HostStep:
    """What the replicas of one worker get in one step, in the host's memory.

    Args:
        parts: One element for each replica.
        whole: The parts in one piece, if they are equal in size and lie next to each other.
        state: Where the worker's input stands after this step.
        uneven: Whether the parts differ in size from those of another worker.
        global_rows: The rows of the global batch that all workers read and keep their shares of; ``None``
            if this worker's input is its own.
    """

    __slots__ = ("global_rows", "parts", "state", "uneven", "whole")

    def __init__(
        self,
        parts: list[Any] | None,
        whole: Any,
        state: Any,
        *,
        uneven: bool = False,
        global_rows: int | None = None,
    ) -> None:
        self.parts = parts
        self.whole = whole
        self.state = state
        self.uneven = uneven
        self.global_rows = global_rows


HostSteps = Generator[HostStep, None, None]

WorkerInput = Callable[[Any], tuple[Any, HostSteps]]
"""Opens the input at a state, or at the beginning; returns the state there and the steps."""


def split_steps(source: Source, position: WorkerPosition, *, whole_batches: bool) -> WorkerInput:
    """Returns the steps of a dataset of global batches.

    Args:
        source: Gives the batches.
        position: The worker.
        whole_batches: Whether every worker gets every batch from its source, to take its share of
            each (``True``); or each source is the worker's own, so that a batch is enough for as
            many steps as there are workers (``False``).
    """

    def open_at(state: Any) -> tuple[Any, HostSteps]:
        count, turn, source_state = state or (0, 0, None)
        iterator = source.open(source_state)
        return [count, turn, iterator.get_state()], steps(count, turn, iterator)

    def steps(count: int, turn: int, iterator: SourceIterator) -> HostSteps:
        if position.num_workers == position.num_replicas == 1:
            for number, element in enumerate(iterator, count + 1):
                yield HostStep([_undivided(element)], None, [number, 0, iterator.get_state()])
            return
        before = iterator.get_state()
        checked = False
        for batch in iterator:
            if not checked:
                refuse_undividable(batch)
                checked = True
            size = _batch_size(batch)
            turns = 1 if whole_batches else position.num_workers
            start, start_count = 0, count
            behind = iterator.get_state()
            for current in range(turns):
                shares = worker_share(size, position.num_workers, position.index, count)
                if whole_batches:
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
                    step.global_rows = size if whole_batches else None
                    yield step
            turn = 0
            before = behind

    return open_at


def dealt_steps(sources: list[Source], num_replicas: int, *, all_full: bool) -> WorkerInput:
    """Returns the steps of datasets of per-replica batches.

    One source deals its batches to the replicas in turn; several sources feed one replica each.

    Args:
        sources: Give the batches.
        num_replicas: Of this worker.
        all_full: Whether all batches are of one size, so that there is no step in which a replica
            has none. Otherwise such a replica gets an empty one, so that no other is lost; it ends
            the steps too if elements are not batches, of which there is no empty one.
    """

    def open_at(state: Any) -> tuple[Any, HostSteps]:
        states = state or [None] * len(sources)
        iterators = [source.open(s) for source, s in zip(sources, states, strict=True)]
        return [iterator.get_state() for iterator in iterators], steps(iterators)

    def steps(iterators: list[SourceIterator]) -> HostSteps:
        while True:
            parts = [
                next(iterators[replica % len(iterators)], None) for replica in range(num_replicas)
            ]
            given = next((part for part in parts if part is not None), None)
            if given is None:
                return
            if any(part is None for part in parts) and (all_full or not _has_rows(given)):
                return
            empty = None
            for replica, part in enumerate(parts):
                if part is None:
                    empty = without_rows(given) if empty is None else empty
                    parts[replica] = empty
            yield HostStep(parts, None, [iterator.get_state() for iterator in iterators])

    return open_at


def _split(batch: Any, rows: Rows, num_replicas: int, state: Any) -> HostStep:
    first, end = rows
    ranges = split_rows(rows, num_replicas)
    if num_replicas == 1:
        return HostStep([take_rows(batch, rows)], None, state)
    if (end - first) % num_replicas == 0 and end > first:
        return HostStep(None, take_rows(batch, rows), state)
    return HostStep([take_rows(batch, part) for part in ranges], None, state)


def _undivided(element: Any) -> Any:
    """Returns an element for the only replica there is, which need not be a batch."""
    if not structures.leaves_of(element):
        raise _without_arrays()
    return structures.map_structure(
        lambda leaf: np.asarray(leaf) if np.ndim(leaf) else leaf, element
    )


def _has_rows(element: Any) -> bool:
    return all(np.ndim(leaf) for leaf in structures.leaves_of(element))


def take_rows(batch: Any, rows: Rows) -> Any:
    """Returns a range of the rows of every array in a batch."""
    first, end = rows

    def cut(leaf: Any) -> Any:
        array = np.asarray(leaf)
        if array.ndim == 0:
            raise _unbatched(batch)
        return array if first == 0 and end == array.shape[0] else array[first:end]

    return structures.map_structure(cut, batch)


def _batch_size(batch: Any) -> int:
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
    return InvalidArgumentError("A dataset to distribute must have arrays in its elements.")


def _unbatched(batch: Any) -> InvalidArgumentError:
    shapes = [np.shape(leaf) for leaf in structures.leaves_of(batch)]
    return InvalidArgumentError(
        "A dataset to distribute must be batched by the global batch size, so that each array has a "
        f"row for each example, got elements of shapes {shapes}. Call .batch(global_batch_size) first."
    )
