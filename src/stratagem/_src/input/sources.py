"""Everything that can be distributed: our datasets, and those that users have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.owned_memory import OwnedResults, owned
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.plan.aligned import copy_of

__all__ = ["Source", "SourceIterator", "as_source"]


class SourceIterator(Protocol):
    """An iteration whose place can be noted."""

    def __iter__(self) -> Self:
        """Returns itself."""

    def __next__(self) -> Any:
        """Returns the next element."""

    def get_state(self) -> Any:
        """Returns a small value that says where the iteration stands."""


class Source(Protocol):
    """Something that can be iterated over from any of its places."""

    def open(self, state: Any) -> SourceIterator:
        """Returns an iteration from ``state`` on, or from the beginning."""

    def num_elements(self) -> int | None:
        """Returns the number of elements, or ``None`` if it is not known or infinite."""


class _DatasetSource:
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def open(self, state: Any) -> DatasetIterator:
        iterator = DatasetIterator(self.dataset.plan)
        if state is not None:
            iterator.set_state(state)
        return iterator

    def num_elements(self) -> int | None:
        count = self.dataset.cardinality()
        return count if count >= 0 else None


class _IterableSource:
    """Any iterable; a place in it is how many elements came before, which are read again."""

    def __init__(self, make: Callable[[], Iterable[Any]], what: str, count: int | None) -> None:
        self._make = make
        self._what = what
        self._count = count

    def open(self, state: Any) -> _CountingIterator:
        iterator = _CountingIterator(iter(self._make()))
        skipped = sum(1 for _ in itertools.islice(iterator, state or 0))
        if skipped < (state or 0):
            raise InvalidArgumentError(
                f"The state says that {state} elements of {self._what} were read, but it has only "
                f"{skipped}."
            )
        return iterator

    def num_elements(self) -> int | None:
        return self._count


class _CountingIterator:
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._count = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        # A loader may fill the same memory with the next batch, while JAX still uses this one.
        element = _owned_results.take(self._next)
        return structures.map_structure(_to_numpy, element)

    def _next(self) -> Any:
        element = next(self._iterator)
        self._count += 1
        return element

    def get_state(self) -> int:
        return self._count


def as_source(dataset: Any) -> Source:
    """Returns a source of what the user gave: a dataset of some library, arrays, or an iterable.

    ``tf.data``, Grain and PyTorch objects are recognised by what they offer, without importing
    those libraries. An array is one batch.

    Raises:
        InvalidArgumentError: If it cannot be iterated over.
    """
    if isinstance(dataset, Dataset):
        return _DatasetSource(dataset)
    what = f"a {type(dataset).__module__}.{type(dataset).__qualname__}"
    if hasattr(dataset, "as_numpy_iterator"):
        return _IterableSource(dataset.as_numpy_iterator, what, _length(dataset))
    if isinstance(dataset, (np.ndarray, jax.Array)):
        batch = owned(dataset, copy_of) if isinstance(dataset, np.ndarray) else dataset
        return _IterableSource(lambda: [batch], "an array", 1)
    if isinstance(dataset, Iterator):
        return _once(dataset, what)
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        raise InvalidArgumentError(
            "A dataset to distribute must be a stratagem.data.Dataset, a dataset of tf.data, Grain or "
            f"PyTorch, or an iterable of batches, got {what}."
        )
    return _IterableSource(lambda: dataset, what, _length(dataset))


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

    return _IterableSource(make, what, None)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _to_numpy(leaf: Any) -> Any:
    """Returns arrays of other libraries as NumPy arrays of their own."""
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array, int, float, bool, bytes)):
        return leaf
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu().numpy()
    return owned(np.asarray(leaf), copy_of) if hasattr(leaf, "__array__") else leaf


_owned_results = OwnedResults(structures.leaves_of, structures.map_structure, copy_of)
