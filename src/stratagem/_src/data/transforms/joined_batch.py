"""``JoinedBatch``: batches of elements that are read one by one, and differ in their sizes."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.checks import at_least
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream, UnaryStream
from stratagem._src.data.structure import describe, flatten, same_structure
from stratagem._src.data.transforms.batch import num_batches

__all__ = ["JoinedBatch", "columns"]


class JoinedBatch(Node):
    """Base of steps that say how the elements of a batch become one.

    Args:
        source: The plan that is batched.
        batch_size: Elements per batch.
        drop_remainder: Whether a last, smaller batch is left out.
    """

    def __init__(self, source: Node, batch_size: int, drop_remainder: bool) -> None:
        self.inputs = (source,)
        self._batch_size = at_least(1, "batch_size", batch_size)
        self._drop_remainder = bool(drop_remainder)

    @property
    def _known_size(self) -> int | None:
        """How many elements every batch has, if that is known."""
        return self._batch_size if self._drop_remainder else None

    def cardinality(self) -> int:
        """Returns the number of batches."""
        size = self.inputs[0].cardinality()
        return num_batches(size, (self._batch_size,), self._drop_remainder) if known(size) else size

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _JoinedBatchStream(self.inputs[0].open(run, epoch), self)

    def next_batch(self, source: Stream) -> Any:
        """Returns the next batch of a stream of elements."""
        elements = list(itertools.islice(source, self._batch_size))
        if not elements or (self._drop_remainder and len(elements) < self._batch_size):
            raise StopIteration
        return self.join(elements)

    @abstractmethod
    def join(self, elements: list[Any]) -> Any:
        """Returns the elements as one batch."""


def columns(elements: list[Any], like: Any) -> Iterator[tuple[Any, ...]]:
    """Yields what the elements have in each place of their structure.

    Raises:
        InvalidArgumentError: If an element has another structure than ``like``.
    """
    for element in elements:
        if not same_structure(like, element):
            raise InvalidArgumentError(
                "The elements of a batch must have the same structure, got "
                f"{describe(like)} and {describe(element)}."
            )
    yield from zip(*(flatten(element) for element in elements), strict=True)


class _JoinedBatchStream(UnaryStream):
    def __init__(self, source: Stream, node: JoinedBatch) -> None:
        super().__init__(source)
        self._node = node

    @property
    def uniform(self) -> bool:
        return False

    def __next__(self) -> Any:
        return self._node.next_batch(self._source)
