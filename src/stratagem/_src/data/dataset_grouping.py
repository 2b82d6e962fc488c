"""The methods of ``Dataset`` that group elements: into windows, by a key, by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.data.dataset_base import DatasetBase, plan_of
from stratagem._src.data.plan.node import Node
from stratagem._src.data.transforms.group_by_window import GroupByWindow
from stratagem._src.data.transforms.length_buckets import LengthBuckets
from stratagem._src.data.transforms.window import Window

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetGrouping"]


class DatasetGrouping(DatasetBase):
    """Transformations that group elements."""

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns sliding windows of consecutive elements, each a dataset.

        If elements have several components, a window is a nest with one dataset per component. Use
        ``flat_map`` to get the elements of the windows. Consume windows as they come: each one holds its
        elements in memory.

        >>> from stratagem.data import Dataset
        >>> windows = Dataset.range(5).window(3, shift=1, drop_remainder=True)
        >>> [batch.tolist() for batch in windows.flat_map(lambda window: window.batch(3))]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]

        Args:
            size: Elements per window.
            shift: The distance between the starts of two windows; ``size`` by default.
            stride: The distance between two elements of a window in this dataset.
            drop_remainder: Whether incomplete windows at the end are dropped.
            name: Shown by ``repr``.
        """
        plan = Window(self.plan, size, shift, stride, drop_remainder, self._nested)
        return self._from_plan(plan, name)

    def _nested(self, plan: Node) -> Dataset:
        return self._from_plan(plan, None)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Dataset], Dataset],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Groups elements by key and applies ``reduce_func`` to each group of ``window_size`` elements.

        At the end of the data the incomplete groups follow, in the order of their keys. An iterator is
        restored by calling ``key_func`` again for elements in incomplete groups, so it must return the
        same keys each time.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.range(7).group_by_window(
        ...     lambda x: x % 2, lambda key, group: group.batch(3), window_size=3)
        >>> [batch.tolist() for batch in dataset]
        [[0, 2, 4], [1, 3, 5], [6]]

        Args:
            key_func: Returns the key of an element, an integer.
            reduce_func: Returns a dataset for a key, an ``np.int64``, and the dataset of a group.
            window_size: The number of elements in a group.
            window_size_func: Returns the window size for a key.
            name: Shown by ``repr``.

        Raises:
            InvalidArgumentError: Unless exactly one of ``window_size`` and ``window_size_func`` is given.
        """
        if (window_size is None) == (window_size_func is None):
            raise InvalidArgumentError(
                "group_by_window needs either window_size or window_size_func, got "
                f"{window_size!r} and {window_size_func!r}."
            )
        if not callable(reduce_func):
            raise InvalidArgumentError(f"reduce_func must be callable, got {reduce_func!r}.")

        def reduce_group(key: ArrayLike, group: Node) -> Node:
            return plan_of(reduce_func(key, self._from_plan(group, None)), "reduce_func")

        def constant_size(key: ArrayLike) -> Any:
            return window_size

        sizes = constant_size if window_size_func is None else window_size_func
        return self._from_plan(GroupByWindow(self.plan, key_func, reduce_group, sizes), name)

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: PyTree = None,
        padding_values: PyTree = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Returns padded batches of elements of similar lengths.

        Compiled steps see few different shapes if ``pad_to_bucket_boundary`` is set.

        >>> from stratagem.data import Dataset
        >>> dataset = Dataset.range(1, 6).map(lambda n: [int(n)] * int(n))
        >>> bucketed = dataset.bucket_by_sequence_length(
        ...     lambda x: len(x), bucket_boundaries=[3], bucket_batch_sizes=[2, 3])
        >>> [batch.shape for batch in bucketed]
        [(2, 2), (3, 5)]

        Args:
            element_length_func: Returns the length of an element.
            bucket_boundaries: The minimum length of each bucket except the first.
            bucket_batch_sizes: The batch size of each bucket: one more entry than there are boundaries.
            padded_shapes: As for ``padded_batch``.
            padding_values: As for ``padded_batch``.
            pad_to_bucket_boundary: Whether unknown sizes are padded to the maximum length of the bucket
                instead of the batch. Then every element must be shorter than the last boundary.
            no_padding: Whether batches are not padded, because all elements have the same shape.
            drop_remainder: Whether incomplete batches at the end are dropped.
            name: Shown by ``repr``.
        """
        buckets = LengthBuckets(
            element_length_func,
            bucket_boundaries,
            bucket_batch_sizes,
            padded_shapes,
            padding_values,
            pad_to_bucket_boundary,
            no_padding,
            drop_remainder,
        )
        plan = GroupByWindow(self.plan, buckets.bucket_of, buckets.batched, buckets.batch_size)
        return self._from_plan(plan, name)
