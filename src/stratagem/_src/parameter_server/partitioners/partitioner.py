"""``Partitioner``: decides how many shards a variable gets."""

from __future__ import annotations

from collections.abc import Iterable

from stratagem._src.core.types import DTypeLike

__all__ = ["Partitioner"]


class Partitioner:
    """Base of every partitioner: a callable from shape and dtype to shards per axis.

    >>> from stratagem.distribute.partitioners import Partitioner
    >>> class HalvesOfMatrices(Partitioner):
    ...     def __call__(self, shape, dtype, axis=0):
    ...         return [2, 1] if len(shape) == 2 else [1] * len(shape)
    >>> HalvesOfMatrices()((10, 3), "float32")
    [2, 1]
    """

    def __call__(self, shape: Iterable[int | None], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Returns the number of shards along each axis.

        Args:
            shape: The shape of the variable, fully defined.
            dtype: The data type of the variable.
            axis: The axis to split along. Strategies omit it, and split along the first axis.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__.")
