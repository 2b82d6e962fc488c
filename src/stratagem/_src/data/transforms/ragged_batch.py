"""``ragged_batch``: batches of variable-size elements as ragged tensors, without padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import DTypeLike
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.plan.node import Node
from stratagem._src.data.plan.rows import stack_elements
from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem._src.data.structure import flatten, map_structure, pack_like
from stratagem._src.data.tensor_spec import TensorSpec, as_dtype
from stratagem._src.data.transforms.collated_batch import CollatedBatch, columns

__all__ = ["RaggedBatch"]


class RaggedBatch(CollatedBatch):
    """Batches in which components of unknown size are a ``RaggedTensor``.

    Args:
        source: The plan that is batched.
        batch_size: Elements per batch.
        drop_remainder: Whether a last, smaller batch is dropped.
        row_splits_dtype: The dtype of the row splits.
    """

    def __init__(
        self, source: Node, batch_size: int, drop_remainder: bool, row_splits_dtype: DTypeLike
    ) -> None:
        super().__init__(source, batch_size, drop_remainder)
        self._splits_dtype = as_dtype(row_splits_dtype)
        if self._splits_dtype not in (np.int32, np.int64):
            raise InvalidArgumentError(
                f"row_splits_dtype must be int32 or int64, got {row_splits_dtype!r}."
            )

    def _compute_spec(self) -> Any:
        size = self._known_size

        def batched(spec: TensorSpec | DatasetSpec) -> Any:
            rank = _ragged_rank(spec)
            if not rank or isinstance(spec, DatasetSpec):
                return spec.batched(size)
            ends = [None if level or size is None else size + 1 for level in range(rank)]
            splits = tuple(TensorSpec([end], self._splits_dtype) for end in ends)
            return RaggedTensor(TensorSpec([None, *spec.shape[rank:]], spec.dtype), splits)

        return map_structure(batched, self.inputs[0].element_spec)

    def collate(self, elements: list[Any]) -> Any:
        """Returns the elements as one batch."""
        specs = self.inputs[0].element_spec
        batch = [
            RaggedTensor.from_rows(list(column), rank, self._splits_dtype)
            if (rank := _ragged_rank(spec))
            else stack_elements(list(column))
            for column, spec in zip(columns(elements, specs), flatten(specs), strict=True)
        ]
        return pack_like(specs, batch)


def _ragged_rank(spec: TensorSpec | DatasetSpec) -> int:
    """Returns the number of ragged dimensions of a batch; 0 if it is an array."""
    if isinstance(spec, DatasetSpec) or spec.shape.is_fully_defined():
        return 0
    if spec.shape.rank is None:
        raise InvalidArgumentError(
            f"ragged_batch needs the rank of every component, got {spec}. Pass from_generator an "
            "output_signature with shapes, such as TensorSpec([None], 'int32')."
        )
    return 1 + max(axis for axis, size in enumerate(spec.shape) if size is None)
