"""``rebatch``: regroups the rows of batches into batches of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Node
from stratagem._src.data.structure import flatten, map_structure
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.data.transforms.batch import Batch
from stratagem._src.data.transforms.unbatch import Unbatch

__all__ = ["Rebatch"]


class Rebatch(Batch):
    """The rows of all elements in batches, with sizes that cycle through the given ones.

    A size of 0 yields an empty batch.
    """

    _min_size = 0

    def __init__(self, source: Node, sizes: int | Sequence[int], drop_remainder: bool) -> None:
        self._rows = Unbatch(source)
        super().__init__(self._rows, sizes, drop_remainder)
        if 0 in self.sizes:
            # A gather of no row numbers does not determine the structure of an empty batch.
            self.batch_levels = None

    def cardinality(self) -> int:
        """Returns the number of batches, which is unknown with sizes of 0."""
        if 0 not in self.sizes:
            return super().cardinality()
        return UNKNOWN_CARDINALITY if any(self.sizes) else INFINITE_CARDINALITY

    def _has_only_full_batches(self) -> bool:
        size = self.sizes[0]
        shapes = [spec.shape for spec in flatten(self._rows.inputs[0].element_spec)]
        given = [shape[0] if shape.rank else None for shape in shapes]
        return size > 0 and all(rows is not None and rows % size == 0 for rows in given)

    def _empty_batch(self) -> Any:
        return map_structure(_empty, self._rows.element_spec)


def _empty(row: TensorSpec) -> np.ndarray[Any, Any]:
    rest = [] if row.shape.rank is None else [size or 0 for size in row.shape]
    return np.zeros((0, *rest), row.dtype)
