"""The methods of ``Dataset`` that batch and unbatch elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stratagem._src.core.types import DTypeLike, PyTree
from stratagem._src.data.checks import parallelism
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.transforms.batch import Batch
from stratagem._src.data.transforms.padded_batch import PaddedBatch
from stratagem._src.data.transforms.ragged_batch import RaggedBatch
from stratagem._src.data.transforms.rebatch import Rebatch
from stratagem._src.data.transforms.unbatch import Unbatch

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetBatching"]


class DatasetBatching(DatasetBase):
    """Transformations between elements and batches of them."""

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Returns batches of ``batch_size`` elements, stacked.

        >>> from stratagem.data import Dataset
        >>> [batch.tolist() for batch in Dataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]

        Args:
            batch_size: Elements per batch.
            drop_remainder: Whether a last, smaller batch is dropped.
            num_parallel_calls: How many batches are prefetched.
            deterministic: ``False`` allows another order, but the order is always kept.
            name: Shown by ``repr``.
        """
        batched = self._from_plan(Batch(self.plan, batch_size, drop_remainder), name)
        ahead = parallelism("num_parallel_calls", num_parallel_calls)
        return batched if ahead is None else batched.prefetch(ahead, name)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: PyTree = None,
        padding_values: PyTree = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns batches of variable-size elements, padded at the end of each dimension.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.range(1, 4).map(lambda n: [int(n)] * int(n)).padded_batch(3)
        >>> next(iter(dataset)).tolist()
        [[1, 0, 0], [2, 2, 0], [3, 3, 3]]

        Args:
            batch_size: Elements per batch.
            padded_shapes: A nest of shapes; ``None`` in a shape, or for all, pads to the longest.
            padding_values: A nest of scalars, or one for all; 0 and ``b""`` by default.
            drop_remainder: Whether a last, smaller batch is dropped.
            name: Shown by ``repr``.
        """
        return self._from_plan(
            PaddedBatch(self.plan, batch_size, padded_shapes, padding_values, drop_remainder), name
        )

    def ragged_batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        row_splits_dtype: DTypeLike = np.int64,
        name: str | None = None,
    ) -> Dataset:
        """Returns batches of variable-size elements as ragged tensors, without padding.

        Components of unknown size become a ``RaggedTensor``, the others an array.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.range(1, 4).map(lambda n: [int(n)] * int(n))
        >>> [batch.to_list() for batch in dataset.ragged_batch(2)]
        [[[1], [2, 2]], [[3, 3, 3]]]

        Args:
            batch_size: Elements per batch.
            drop_remainder: Whether a last, smaller batch is dropped.
            row_splits_dtype: The dtype of the row splits, int64 or int32.
            name: Shown by ``repr``.
        """
        plan = RaggedBatch(self.plan, batch_size, drop_remainder, row_splits_dtype)
        return self._from_plan(plan, name)

    def unbatch(self, name: str | None = None) -> Dataset:
        """Returns the rows of every element.

        >>> from stratagem.data import Dataset
        >>> list(Dataset.range(4).batch(3).unbatch())
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3)]
        """
        return self._from_plan(Unbatch(self.plan), name)

    def rebatch(
        self,
        batch_size: int | Sequence[int],
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns the rows of all elements, regrouped into batches of other sizes.

        >>> from stratagem.data import Dataset
        >>> [batch.tolist() for batch in Dataset.range(7).batch(4).rebatch([2, 1])]
        [[0, 1], [2], [3, 4], [5], [6]]

        Args:
            batch_size: Rows per batch, or a sequence of sizes to cycle through; a size of 0 yields an
                empty batch.
            drop_remainder: Whether a last, smaller batch is dropped.
            name: Shown by ``repr``.
        """
        return self._from_plan(Rebatch(self.plan, batch_size, drop_remainder), name)
