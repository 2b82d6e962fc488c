"""Adapters for everything that can be distributed: our datasets, other libraries' datasets, iterables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.owned_memory import OwnedResults, owned
from stratagem._src.core.types import Dataset as DatasetLike
from stratagem._src.core.types import IteratorState, Leaf
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.plan.aligned_arrays import copy_of
from stratagem._src.input.repeatable_order import check_repeatable

__all__ = ["Source", "SourceIterator", "as_source"]


class SourceIterator(Protocol):
    """An iterator with a state."""

    def __iter__(self) -> Self:
        """Returns itself."""

    def __next__(self) -> Any:
        """Returns the next element."""

    def get_state(self) -> Any:
        """Returns a small JSON-able value for the position of the iterator."""


class Source(Protocol):
    """Something that can be iterated over from any saved state."""

    def open(self, state: IteratorState) -> SourceIterator:
        """Returns an iterator that starts at ``state``, or at the beginning for ``None``."""

    def num_elements(self) -> int | None:
        """Returns the number of elements, or ``None`` if it is unknown or infinite."""

    def check_repeatable(self) -> None:
        """Checks that a state which is saved leads back to the same elements.

        Raises:
            UnsupportedError: If the source is known to yield others each time.
        """


class _DatasetSource:
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def open(self, state: IteratorState) -> DatasetIterator:
        iterator = DatasetIterator(self.dataset.plan)
        if state is not None:
            iterator.set_state(state)
        return iterator

    def num_elements(self) -> int | None:
        count = self.dataset.cardinality()
        return count if count >= 0 else None

    def check_repeatable(self) -> None:
        """Does nothing: its state records the order."""


class _IterableSource:
    """Any iterable. Its state is the number of elements read; resuming reads and drops these again."""

    def __init__(
        self, make: Callable[[], Iterable[Any]], what: str, count: int | None, dataset: DatasetLike
    ) -> None:
        self._make = make
        self._dataset = dataset
        self._what = what
        self._count = count

    def open(self, state: IteratorState) -> _CountingIterator:
        iterator = _CountingIterator(self._make)
        skipped = sum(1 for _ in itertools.islice(iterator, state or 0))
        if skipped < (state or 0):
            raise InvalidArgumentError(
                f"The state says that {state} elements of {self._what} were read, but it has only "
                f"{skipped}."
            )
        return iterator

    def num_elements(self) -> int | None:
        return self._count

    def check_repeatable(self) -> None:
        check_repeatable(self._dataset)


class _CountingIterator:
    """Counts elements. ``iter`` waits for the first draw: in a loader it may draw from a generator."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._iterator: Iterator[Any] | None = None
        self._count = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        # A data loader may reuse the buffer of this batch for the next one while JAX still reads it.
        element = _owned_results.take(self._next)
        return structures.map_structure(_to_numpy, element)

    def _next(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._make())
        element = next(self._iterator)
        self._count += 1
        return element

    def get_state(self) -> int:
        return self._count


def as_source(dataset: DatasetLike) -> Source:
    """Returns a source for the user's input: a dataset of any library, an array, or an iterable.

    ``tf.data``, Grain and PyTorch objects are recognised by their methods, without importing those
    libraries. An array is one batch.

    Raises:
        InvalidArgumentError: If it cannot be iterated over.
    """
    if isinstance(dataset, Dataset):
        return _DatasetSource(dataset)
    what = f"a {type(dataset).__module__}.{type(dataset).__qualname__}"
    if hasattr(dataset, "as_numpy_iterator"):
        return _IterableSource(dataset.as_numpy_iterator, what, _length(dataset), dataset)
    if isinstance(dataset, (np.ndarray, jax.Array)):
        batch = owned(dataset, copy_of) if isinstance(dataset, np.ndarray) else dataset
        return _IterableSource(lambda: [batch], "an array", 1, batch)
    if isinstance(dataset, Iterator):
        return _once(dataset, what)
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise InvalidArgumentError(
            "A dataset to distribute must be a stratagem.data.Dataset, a dataset of tf.data, Grain or "
            f"PyTorch, or an iterable of batches, got {what}."
        )
    return _IterableSource(lambda: dataset, what, _length(dataset), dataset)


def _once(iterator: Iterator[Any], what: str) -> Source:
    taken = False

    def make() -> Iterator[Any]:
        nonlocal taken
        if taken:
            raise InvalidArgumentError(
                f"{what} is an iterator, which can be read only once. Give a dataset, a list, or use "
                "Dataset.from_generator(function)."
            )
        taken = True
        return iterator

    return _IterableSource(make, what, None, iterator)


def _length(dataset: DatasetLike) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _to_numpy(leaf: Leaf) -> Any:
    """Returns an array of another library as a NumPy array that owns its memory."""
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array, int, float, bool, bytes)):
        return leaf
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu().numpy()
    return owned(np.asarray(leaf), copy_of) if hasattr(leaf, "__array__") else leaf


_owned_results = OwnedResults(structures.leaves_of, structures.map_structure, copy_of)
