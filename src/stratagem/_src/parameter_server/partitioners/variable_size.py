"""What the partitioners need to know of a variable: its axis, and its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.parameter_server.partitioners.errors import PartitionError

__all__ = ["bytes_per_element", "check_positive", "known_shape", "shards_along"]


def known_shape(shape: Iterable[int | None], axis: int) -> tuple[tuple[int, ...], int]:
    """Returns the shape as whole numbers, and the axis counted from the front.

    Raises:
        PartitionError: If a dimension is not known, or there is no such axis.
    """
    whole = TensorShape(shape)
    sizes = tuple(size for size in whole if size is not None)
    if whole.rank is None or len(sizes) != whole.rank:
        raise PartitionError(f"A shape must be fully defined to be partitioned, got {whole!r}.")
    if not -len(sizes) <= axis < len(sizes):
        raise PartitionError(
            f"axis must be one of the {len(sizes)} axes of the shape {list(sizes)}, got {axis}."
        )
    return sizes, axis % len(sizes)


def shards_along(axis: int, num_shards: int, rank: int) -> list[int]:
    """Returns the number of shards per axis: ``num_shards`` along one, 1 along the others."""
    return [num_shards if index == axis else 1 for index in range(rank)]


def bytes_per_element(dtype: Any, bytes_per_string: int) -> int:
    """Returns the size of one element, for strings the given estimate."""
    if dtype is str or dtype is bytes or dtype == "string":
        return bytes_per_string
    kind = np.dtype(dtype)
    return bytes_per_string if kind.kind in "USOT" else kind.itemsize


def check_positive(**settings: int) -> None:
    """Raises unless every setting is at least 1."""
    for name, value in settings.items():
        if value < 1:
            raise PartitionError(f"{name} must be positive, got {value}.")
