"""Shape, axis and element size of a variable, as the partitioners need them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stratagem._src.core.errors import PartitionError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import DTypeLike

__all__ = ["bytes_per_element", "check_positive", "known_shape", "shards_along"]


def known_shape(shape: Iterable[int | None], axis: int) -> tuple[tuple[int, ...], int]:
    """Returns the shape as integers, and the axis as a non-negative index.

    Raises:
        PartitionError: If a dimension is unknown, or the axis is out of range.
    """
    given = TensorShape(shape)
    sizes = tuple(size for size in given if size is not None)
    if given.rank is None or len(sizes) != given.rank:
        raise PartitionError(f"A shape must be fully defined to be partitioned, got {given!r}.")
    if not -len(sizes) <= axis < len(sizes):
        raise PartitionError(
            f"axis must be one of the {len(sizes)} axes of the shape {list(sizes)}, got {axis}."
        )
    return sizes, axis % len(sizes)


def shards_along(axis: int, num_shards: int, rank: int) -> list[int]:
    """Returns the number of shards per axis: ``num_shards`` along one, 1 along the others."""
    return [num_shards if index == axis else 1 for index in range(rank)]


def bytes_per_element(dtype: DTypeLike, bytes_per_string: int) -> int:
    """Returns the size of one element in bytes; ``bytes_per_string`` for strings."""
    if dtype is str or dtype is bytes or dtype == "string":
        return bytes_per_string
    kind = np.dtype(dtype)
    return bytes_per_string if kind.kind in "USOT" else kind.itemsize


def check_positive(**settings: int) -> None:
    """Raises unless every setting is at least 1."""
    for name, value in settings.items():
        if value < 1:
            raise PartitionError(f"{name} must be positive, got {value}.")
