"""``FixedShardsPartitioner``: always the same number of shards."""

from __future__ import annotations

from collections.abc import Iterable

from stratagem._src.core.types import DTypeLike
from stratagem._src.parameter_server.partitioners.partitioner import Partitioner
from stratagem._src.parameter_server.partitioners.variable_size import (
    check_positive,
    known_shape,
    shards_along,
)

__all__ = ["FixedShardsPartitioner"]


class FixedShardsPartitioner(Partitioner):
    """Splits every variable into the same number of shards, or one per row if it has fewer rows.

    >>> from stratagem.distribute.partitioners import FixedShardsPartitioner
    >>> partitioner = FixedShardsPartitioner(num_shards=2)
    >>> partitioner((10, 3), "float32", axis=0), partitioner((10, 3), "float32", axis=1)
    ([2, 1], [1, 2])

    Args:
        num_shards: The number of shards.

    Raises:
        PartitionError: If ``num_shards`` is not positive.
    """

    def __init__(self, num_shards: int) -> None:
        check_positive(num_shards=num_shards)
        self._num_shards = num_shards

    def __call__(self, shape: Iterable[int | None], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Returns the number of shards along each axis."""
        sizes, axis = known_shape(shape, axis)
        return shards_along(axis, max(1, min(self._num_shards, sizes[axis])), len(sizes))
