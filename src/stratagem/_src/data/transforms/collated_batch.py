"""``CollatedBatch``: batches of variable-size elements, which are read one by one and collated."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.data.checks import at_least
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream, UnaryStream
from stratagem._src.data.structure import describe, flatten, same_structure
from stratagem._src.data.transforms.batch import num_batches

__all__ = ["CollatedBatch", "columns"]


class CollatedBatch(Node):
    """Base class of batching transformations with their own collate function.

    Args:
        source: The plan that is batched.
        batch_size: Elements per batch.
        drop_remainder: Whether a last, smaller batch is dropped.
    """

    def __init__(self, source: Node, batch_size: int, drop_remainder: bool) -> None:
        self.inputs = (source,)
        self._batch_size = at_least(1, "batch_size", batch_size)
        self._drop_remainder = bool(drop_remainder)

    @property
    def _known_size(self) -> int | None:
        """The number of elements in every batch, if known."""
        return self._batch_size if self._drop_remainder else None

    def cardinality(self) -> int:
        """Returns the number of batches."""
        size = self.inputs[0].cardinality()
        return num_batches(size, (self._batch_size,), self._drop_remainder) if known(size) else size

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _CollatedBatchStream(self.inputs[0].open(run, epoch), self)

    def next_batch(self, source: Stream) -> Any:
        """Returns the next batch of a stream of elements."""
        elements = list(itertools.islice(source, self._batch_size))
        if not elements or (self._drop_remainder and len(elements) < self._batch_size):
            raise StopIteration
        return self.collate(elements)

    @abstractmethod
    def collate(self, elements: list[Any]) -> Any:
        """Returns the elements as one batch."""


def columns(elements: list[Any], like: PyTree) -> Iterator[tuple[Any, ...]]:
    """Yields the leaves of all elements, one column per leaf.

    Raises:
        InvalidArgumentError: If the structure of an element differs from that of ``like``.
    """
    for element in elements:
        if not same_structure(like, element):
            raise InvalidArgumentError(
                "The elements of a batch must have the same structure, got "
                f"{describe(like)} and {describe(element)}."
            )
    yield from zip(*(flatten(element) for element in elements), strict=True)


class _CollatedBatchStream(UnaryStream):
    def __init__(self, source: Stream, node: CollatedBatch) -> None:
        super().__init__(source)
        self._node = node

    @property
    def uniform(self) -> bool:
        return False

    def __next__(self) -> Any:
        return self._node.next_batch(self._source)
