"""``MaxSizePartitioner``: the fewest shards under a maximum shard size."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stratagem._src.core.types import DTypeLike
from stratagem._src.parameter_server.partitioners.partitioner import Partitioner
from stratagem._src.parameter_server.partitioners.variable_size import (
    bytes_per_element,
    check_positive,
    known_shape,
    shards_along,
)

__all__ = ["MaxSizePartitioner"]


class MaxSizePartitioner(Partitioner):
    """Splits a variable into as few shards as possible of at most ``max_shard_bytes`` each.

    A shard is larger if ``max_shards`` is reached, or if a single row is larger.

    >>> from stratagem.distribute.partitioners import MaxSizePartitioner
    >>> MaxSizePartitioner(max_shard_bytes=4)((6, 1), "float32")
    [6, 1]
    >>> MaxSizePartitioner(max_shard_bytes=4, max_shards=2)((6, 1), "float32")
    [2, 1]
    >>> MaxSizePartitioner(max_shard_bytes=1024)((6, 1), "float32")
    [1, 1]

    Args:
        max_shard_bytes: Maximum size of a shard.
        max_shards: Maximum number of shards; ``None`` for no limit.
        bytes_per_string: Assumed size of a string element.

    Raises:
        PartitionError: If an argument is not positive.
    """

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        check_positive(max_shard_bytes=max_shard_bytes, bytes_per_string=bytes_per_string)
        if max_shards is not None:
            check_positive(max_shards=max_shards)
        self._max_shard_bytes = max_shard_bytes
        self._max_shards = max_shards
        self._bytes_per_string = bytes_per_string

    def __call__(self, shape: Iterable[int | None], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Returns the number of shards along each axis."""
        sizes, axis = known_shape(shape, axis)
        num_rows = sizes[axis]
        row_bytes = math.prod(sizes[:axis] + sizes[axis + 1 :]) * bytes_per_element(
            dtype, self._bytes_per_string
        )
        rows_per_shard = max(1, self._max_shard_bytes // max(1, row_bytes))
        num_shards = max(1, -(-num_rows // rows_per_shard))
        if self._max_shards is not None:
            num_shards = min(self._max_shards, num_shards)
        return shards_along(axis, num_shards, len(sizes))
