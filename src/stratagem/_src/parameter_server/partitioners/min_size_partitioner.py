"""``MinSizePartitioner``: the most shards over a minimum shard size."""

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

__all__ = ["MinSizePartitioner"]


class MinSizePartitioner(Partitioner):
    """Splits a variable into as many shards as possible of about ``min_shard_bytes`` each.

    There is one shard per ``min_shard_bytes``, rounded up, but at most ``max_shards`` and at most one per
    row. As in TensorFlow, a variable that does not divide evenly gets shards slightly below the minimum.

    >>> from stratagem.distribute.partitioners import MinSizePartitioner
    >>> MinSizePartitioner(min_shard_bytes=24, max_shards=4)((10, 3), "float32")
    [4, 1]
    >>> MinSizePartitioner(min_shard_bytes=24, max_shards=8)((10, 3), "float32")
    [5, 1]

    Args:
        min_shard_bytes: Minimum size of a shard.
        max_shards: Maximum number of shards.
        bytes_per_string: Assumed size of a string element.

    Raises:
        PartitionError: If an argument is not positive.
    """

    def __init__(
        self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        check_positive(
            min_shard_bytes=min_shard_bytes,
            max_shards=max_shards,
            bytes_per_string=bytes_per_string,
        )
        self._min_shard_bytes = min_shard_bytes
        self._max_shards = max_shards
        self._bytes_per_string = bytes_per_string

    def __call__(self, shape: Iterable[int | None], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Returns the number of shards along each axis."""
        sizes, axis = known_shape(shape, axis)
        total_bytes = math.prod(sizes) * bytes_per_element(dtype, self._bytes_per_string)
        started = -(-total_bytes // self._min_shard_bytes)
        num_shards = max(1, min(sizes[axis], self._max_shards, started))
        return shards_along(axis, num_shards, len(sizes))
