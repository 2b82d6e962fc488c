"""Splits the rows of a batch between workers and replicas: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerPosition", "split_rows", "worker_share"]

Rows = tuple[int, int]
"""A half-open range of rows: the first, and one past the last."""


@dataclass(frozen=True, slots=True)
class WorkerPosition:
    """The position of a worker among all workers that read the same input.

    Args:
        num_workers: The number of workers.
        index: The index of this worker.
        num_replicas: The number of replicas of this worker.
    """

    num_workers: int = 1
    index: int = 0
    num_replicas: int = 1


def split_rows(rows: Rows, num_replicas: int) -> list[Rows]:
    """Returns each replica's shard of a range of rows.

    A shard has ``ceil(rows / num_replicas)`` rows; the last ones have fewer, or none.

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
    """Returns the rows of a global batch that belong to a worker.

    The shares of all workers cover the batch. If it does not divide evenly, the workers that get one
    extra row rotate with ``step``, so that in the long run all workers get equally many.

    >>> [worker_share(7, 2, worker, step=0) for worker in (0, 1)]
    [(0, 4), (4, 7)]
    >>> [worker_share(7, 2, worker, step=1) for worker in (0, 1)]
    [(0, 3), (3, 7)]
    """
    base, extra = divmod(batch_size, num_workers)
    favoured = {(step * extra + k) % num_workers for k in range(extra)}
    start = index * base + sum(worker in favoured for worker in range(index))
    return start, start + base + (index in favoured)
