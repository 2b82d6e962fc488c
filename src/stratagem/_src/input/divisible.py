"""Checks that a batch can be split between replicas: only arrays with one row per example can."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Element
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.ragged_tensor import RaggedTensor

__all__ = ["check_divisible", "empty_like", "nested_dataset_error"]


def check_divisible(batch: Element) -> None:
    """Checks that every leaf of a batch is an array with one row per example.

    Raises:
        InvalidArgumentError: If a leaf is a ``RaggedTensor`` or a dataset.
    """
    for part in structures.leaves_of(batch, lambda part: isinstance(part, RaggedTensor)):
        if isinstance(part, RaggedTensor):
            raise InvalidArgumentError(
                "A RaggedTensor cannot be split between replicas; it can only go to a single one. Use "
                "padded_batch or bucket_by_sequence_length instead of ragged_batch."
            )
        if isinstance(part, DatasetBase):
            raise nested_dataset_error()


def empty_like(batch: Element) -> Any:
    """Returns a batch with the same structure, dtypes and trailing dimensions, and no rows."""
    return structures.map_structure(
        lambda part: (
            part.without_rows() if isinstance(part, RaggedTensor) else np.asarray(part)[:0]
        ),
        batch,
        lambda part: isinstance(part, RaggedTensor),
    )


def nested_dataset_error() -> InvalidArgumentError:
    """Returns the error for elements that contain datasets."""
    return InvalidArgumentError(
        "The elements of a distributed dataset must contain arrays, but a window is a dataset. Use "
        "flat_map(lambda window: window.batch(size)) first."
    )
