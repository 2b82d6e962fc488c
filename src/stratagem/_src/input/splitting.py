"""Which rows of a batch go to which replica: arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerPosition", "split_rows", "worker_share"]

Rows = tuple[int, int]
"""A range of rows: first, and one past the last."""


@dataclass(frozen=True, slots=True)
class WorkerPosition:
    """Where a worker stands among all that read the same input.

    Args:
        num_workers: How many workers there are.
        index: Which one this is.
        num_replicas: How many replicas it has.
    """

    num_workers: int = 1
    index: int = 0
    num_replicas: int = 1


def split_rows(rows: Rows, num_replicas: int) -> list[Rows]:
    """Returns each replica's part of a range of rows.

    Every part but the last is as large as an even division rounded up; the last ones may be empty.

    >>> split_rows((0, 5), 3)
    [(0, 2), (2, 4), (4, 5)]
    >>> split_rows((0, 4), 3)
    [(0, 2), (2, 4), (4, 4)]
    """
    first, end = rows
    block = -(-(end - first) // num_replicas)
    return [
        (min(first + i * block, end), min(first + (i + 1) * block, end))
        for i in range(num_replicas)
    ]


def worker_share(batch_size: int, num_workers: int, index: int, step: int) -> Rows:
    """Returns the rows of a global batch that a worker takes.

    The shares of all workers cover the batch. Where it does not divide evenly, those that take one
    row more change with ``step``, so that over time all take the same amount.

    >>> [worker_share(7, 2, worker, step=0) for worker in (0, 1)]
    [(0, 4), (4, 7)]
    >>> [worker_share(7, 2, worker, step=1) for worker in (0, 1)]
    [(0, 3), (3, 7)]
    """
    base, extra = divmod(batch_size, num_workers)
    favoured = {(step * extra + k) % num_workers for k in range(extra)}
    start = index * base + sum(worker in favoured for worker in range(index))
    return start, start + base + (index in favoured)
