"""What can be divided between replicas: arrays with a row for each example, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.planned_elements import PlannedElements
from stratagem._src.data.ragged_tensor import RaggedTensor

__all__ = ["datasets_in_elements", "refuse_undividable", "without_rows"]


def refuse_undividable(batch: Any) -> None:
    """Refuses a batch whose arrays have something else than a row for each example.

    Raises:
        InvalidArgumentError: If it has rows of different lengths, or datasets.
    """
    for part in structures.leaves_of(batch, lambda part: isinstance(part, RaggedTensor)):
        if isinstance(part, RaggedTensor):
            raise InvalidArgumentError(
                "The rows of a RaggedTensor cannot be divided between replicas, only go to one. Use "
                "padded_batch or bucket_by_sequence_length in place of ragged_batch."
            )
        if isinstance(part, PlannedElements):
            raise datasets_in_elements()


def without_rows(batch: Any) -> Any:
    """Returns a batch of the same kind that has no rows."""
    return structures.map_structure(
        lambda part: (
            part.without_rows() if isinstance(part, RaggedTensor) else np.asarray(part)[:0]
        ),
        batch,
        lambda part: isinstance(part, RaggedTensor),
    )


def datasets_in_elements() -> InvalidArgumentError:
    """Returns the error about elements that are datasets themselves."""
    return InvalidArgumentError(
        "A dataset to distribute must have arrays in its elements, and a window is a dataset. Use "
        "flat_map(lambda window: window.batch(size)) first."
    )
