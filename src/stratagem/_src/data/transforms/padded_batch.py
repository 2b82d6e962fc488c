"""``padded_batch``: batches of variable-size elements, padded to a common shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.data.conversion import to_leaf
from stratagem._src.data.plan.node import Node
from stratagem._src.data.structure import flatten, pack_like
from stratagem._src.data.tensor_spec import STRING, TensorSpec
from stratagem._src.data.transforms.collated_batch import CollatedBatch, columns

__all__ = ["PaddedBatch"]


class PaddedBatch(CollatedBatch):
    """Batches whose rows are padded at the end of each dimension.

    Args:
        source: The plan that is batched.
        batch_size: Rows per batch.
        padded_shapes: A nest of shapes; an unknown dimension is padded to the longest of its batch.
            ``None`` pads every dimension to the longest.
        padding_values: A nest of scalars, or one for all; zero and the empty string by default.
        drop_remainder: Whether a last, smaller batch is dropped.
    """

    def __init__(
        self,
        source: Node,
        batch_size: int,
        padded_shapes: PyTree,
        padding_values: PyTree,
        drop_remainder: bool,
    ) -> None:
        super().__init__(source, batch_size, drop_remainder)
        self._padded_shapes = padded_shapes
        self._padding_values = padding_values

    def shapes_of(self, like: PyTree) -> list[TensorShape | None]:
        """Returns the padded shape of each component; ``None`` pads to the longest."""
        leaves = flatten(like)
        if self._padded_shapes is None:
            return [None] * len(leaves)
        shapes = _flatten_along("padded_shapes", self._padded_shapes, like)
        return [TensorShape([None if d == -1 else d for d in shape]) for shape in shapes]

    def _paddings(self, like: PyTree) -> list[Any]:
        leaves = flatten(like)
        values = self._padding_values
        if isinstance(values, tuple | Mapping):
            return _flatten_along("padding_values", values, like)
        return [values] * len(leaves)

    def _compute_spec(self) -> Any:
        below = self.inputs[0].element_spec
        specs = [
            TensorSpec([None] * len(spec.shape) if shape is None else shape, spec.dtype)
            for spec, shape in zip(flatten(below), self.shapes_of(below), strict=True)
        ]
        return pack_like(below, [spec.batched(self._known_size) for spec in specs])

    def collate(self, elements: list[Any]) -> Any:
        """Returns the elements as one padded batch."""
        like = elements[0]
        shapes, paddings = self.shapes_of(like), self._paddings(like)
        batch = [
            _pad_column(column, shape, padding)
            for column, shape, padding in zip(
                columns(elements, like), shapes, paddings, strict=True
            )
        ]
        return pack_like(like, batch)


def _flatten_along(name: str, values: PyTree, like: PyTree) -> list[Any]:
    """Flattens a nest of shapes or values along the structure of an element, as a shape may be a tuple."""
    if isinstance(like, tuple):
        if not isinstance(values, tuple) or len(values) != len(like):
            raise InvalidArgumentError(
                f"{name} must have one entry per component ({len(like)}), got {values!r}."
            )
        pairs = zip(values, like, strict=True)
        return [leaf for value, part in pairs for leaf in _flatten_along(name, value, part)]
    if isinstance(like, Mapping):
        if not isinstance(values, Mapping) or values.keys() != like.keys():
            raise InvalidArgumentError(f"{name} must have the keys {sorted(like)}, got {values!r}.")
        return [
            leaf for key in sorted(like) for leaf in _flatten_along(name, values[key], like[key])
        ]
    return [] if like is None else [values]


def _pad_column(
    column: tuple[Any, ...], shape: TensorShape | None, padding: ArrayLike
) -> np.ndarray[Any, Any]:
    is_string = isinstance(column[0], bytes) or column[0].dtype == STRING
    dtype = STRING if is_string else column[0].dtype
    arrays = [np.asarray(leaf, dtype) for leaf in column]
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise InvalidArgumentError(
            f"padded_batch pads sizes, not ranks: got elements of the ranks {sorted(ranks)}."
        )
    longest = np.max([array.shape for array in arrays], axis=0).astype(int).tolist()
    if shape is not None:
        longest = _target(shape, longest)
    if padding is None:
        padding = b"" if is_string else 0
    result = np.full((len(arrays), *longest), to_leaf(padding), dtype)
    for position, array in enumerate(arrays):
        place: Any = (position, *(slice(size) for size in array.shape))
        result[place] = array
    return result


def _target(shape: TensorShape, longest: list[int]) -> list[int]:
    fits = len(shape) == len(longest) and all(
        size is None or size >= needed for size, needed in zip(shape, longest, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"padded_shapes must be at least as large as the elements, got {shape} for an element "
            f"of shape {tuple(longest)}."
        )
    return [needed if size is None else size for size, needed in zip(shape, longest, strict=True)]
