"""``bucket_by_sequence_length``: assigns elements to buckets by length, and batches each bucket."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.data.checks import as_integer, at_least
from stratagem._src.data.plan.node import Node
from stratagem._src.data.structure import flatten, pack_like
from stratagem._src.data.transforms.batch import Batch
from stratagem._src.data.transforms.element_function import ElementFunction
from stratagem._src.data.transforms.padded_batch import PaddedBatch

__all__ = ["LengthBuckets"]


class LengthBuckets:
    """Buckets of elements of similar lengths; see ``Dataset.bucket_by_sequence_length``."""

    def __init__(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: PyTree,
        padding_values: PyTree,
        pad_to_bucket_boundary: bool,
        no_padding: bool,
        drop_remainder: bool,
    ) -> None:
        self._length_func = ElementFunction(element_length_func, "element_length_func")
        self._boundaries = [as_integer("bucket_boundaries", b) for b in bucket_boundaries]
        self._sizes = [at_least(1, "bucket_batch_sizes", size) for size in bucket_batch_sizes]
        if len(self._sizes) != len(self._boundaries) + 1:
            raise InvalidArgumentError(
                "bucket_batch_sizes must have one more entry than bucket_boundaries, got "
                f"{len(self._sizes)} and {len(self._boundaries)}."
            )
        if sorted(set(self._boundaries)) != self._boundaries:
            raise InvalidArgumentError(f"bucket_boundaries must increase, got {self._boundaries}.")
        self._padded_shapes = padded_shapes
        self._padding_values = padding_values
        self._to_boundary = bool(pad_to_bucket_boundary)
        self._no_padding = bool(no_padding)
        self._drop_remainder = bool(drop_remainder)

    def bucket_of(self, *components: PyTree) -> Any:
        """Returns the bucket index of an element; takes its components as separate arguments."""
        element = components if len(components) > 1 else components[0]
        length = self._length_func(element)
        if getattr(length, "shape", None) != () or length.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"element_length_func must return one integer, got {length!r}."
            )
        bucket = bisect.bisect_right(self._boundaries, int(length))
        if self._to_boundary and bucket == len(self._boundaries):
            limit = self._boundaries[-1] if self._boundaries else None
            raise InvalidArgumentError(
                "With pad_to_bucket_boundary=True elements must be shorter than the last of "
                f"bucket_boundaries, {limit}, got one of length {int(length)}."
            )
        return np.int64(bucket)

    def batch_size(self, bucket: ArrayLike) -> Any:
        """Returns the batch size of a bucket."""
        return np.int64(self._sizes[int(bucket)])

    def batched(self, bucket: ArrayLike, group: Node) -> Node:
        """Returns the plan of the batches of a bucket."""
        size = self._sizes[int(bucket)]
        if self._no_padding:
            return Batch(group, size, self._drop_remainder)
        shapes = self._padded_shapes
        if self._to_boundary:
            shapes = self._filled(group, self._boundaries[int(bucket)] - 1)
        return PaddedBatch(group, size, shapes, self._padding_values, self._drop_remainder)

    def _filled(self, group: Node, longest: int) -> Any:
        """Returns the padded shapes, with unknown sizes set to the maximum length of a bucket."""
        specs = group.element_spec
        padded = PaddedBatch(group, 1, self._padded_shapes, None, drop_remainder=False)
        given: list[TensorShape | None] = padded.shapes_of(specs)
        filled = [
            [longest if size is None else size for size in (spec.shape if shape is None else shape)]
            for spec, shape in zip(flatten(specs), given, strict=True)
        ]
        return pack_like(specs, [TensorShape(shape) for shape in filled])
