"""The rows of each shard of a variable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import PartitionError

__all__ = ["num_shards_along_axis_0", "shard_offsets", "shard_sizes"]


def num_shards_along_axis_0(partitions: Any, shape: Sequence[int]) -> int:
    """Returns the number of shards of a variable from the result of its partitioner.

    One shard means that the variable is not split; a scalar never is.

    >>> from stratagem._src.parameter_server.partitioners import num_shards_along_axis_0
    >>> num_shards_along_axis_0([4, 1], (10, 3)), num_shards_along_axis_0([4], (10, 3))
    (4, 4)
    >>> num_shards_along_axis_0((20, 1), (10, 3)), num_shards_along_axis_0([], ())
    (10, 1)

    Args:
        partitions: A list or tuple: the number of shards along axis 0, then 1 for each other axis, which
            may be omitted.
        shape: The shape of the variable.

    Raises:
        PartitionError: If ``partitions`` is anything else.
    """
    if not shape:
        return 1
    counts = list(partitions) if isinstance(partitions, Sequence | np.ndarray) else []
    are_integers = all(isinstance(count, int | np.integer) for count in counts)
    if not counts or not are_integers or counts[0] < 1:
        raise PartitionError(
            "A partitioner must return a list of integers: the number of shards along axis 0, at least "
            f"one, and 1 for the other axes, got {partitions!r} for the shape {list(shape)}."
        )
    if any(count != 1 for count in counts[1:]):
        raise PartitionError(
            f"Only axis 0 of a variable can be split, got {counts} for the shape "
            f"{list(shape)}. The partitioner must return 1 for every other axis."
        )
    return max(1, min(int(counts[0]), shape[0]))


def shard_sizes(num_rows: int, num_shards: int) -> list[int]:
    """Returns the number of rows of each shard: as even as possible, larger shards first.

    With more shards than rows, there is one shard per row.

    >>> from stratagem._src.parameter_server.partitioners import shard_sizes
    >>> shard_sizes(10, 4), shard_sizes(2, 5)
    ([3, 3, 2, 2], [1, 1])

    Raises:
        PartitionError: If ``num_rows`` is negative or ``num_shards`` is not positive.
    """
    if num_rows < 0 or num_shards < 1:
        raise PartitionError(
            f"Shards need num_rows >= 0 and num_shards >= 1, got {num_rows} and {num_shards}."
        )
    num_shards = max(1, min(num_shards, num_rows))
    rows, larger = divmod(num_rows, num_shards)
    return [rows + 1] * larger + [rows] * (num_shards - larger)


def shard_offsets(num_rows: int, num_shards: int) -> list[int]:
    """Returns the first row of each shard.

    >>> from stratagem._src.parameter_server.partitioners import shard_offsets
    >>> shard_offsets(10, 4)
    [0, 3, 6, 8]
    """
    return list(itertools.accumulate(shard_sizes(num_rows, num_shards)[:-1], initial=0))
