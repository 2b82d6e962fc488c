"""``Dataset``: a lazy input pipeline."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import CardinalityError, InvalidArgumentError
from stratagem._src.core.missing_names import missing_method
from stratagem._src.core.types import PyTree
from stratagem._src.data.checks import as_name
from stratagem._src.data.conversion import owned_results, to_element
from stratagem._src.data.dataset_base import not_a_dataset
from stratagem._src.data.dataset_batching import DatasetBatching
from stratagem._src.data.dataset_functions import DatasetFunctions
from stratagem._src.data.dataset_grouping import DatasetGrouping
from stratagem._src.data.dataset_mixing import DatasetMixing
from stratagem._src.data.dataset_order import DatasetOrder
from stratagem._src.data.dataset_saving import DatasetSaving
from stratagem._src.data.dataset_sources import DatasetSources
from stratagem._src.data.element_views import Cardinality, ElementIterator
from stratagem._src.data.iterator import DatasetIterator
from stratagem._src.data.options import INFINITE_CARDINALITY, Options
from stratagem._src.data.plan.node import Node, known
from stratagem._src.data.plan.rows import copy_element
from stratagem._src.data.structure import describe, same_structure
from stratagem._src.data.transforms.cache import Cache
from stratagem._src.data.transforms.prefetch import Prefetch
from stratagem._src.data.transforms.with_options import WithOptions

__all__ = ["Dataset"]


class Dataset(
    DatasetSources,
    DatasetFunctions,
    DatasetBatching,
    DatasetOrder,
    DatasetGrouping,
    DatasetMixing,
    DatasetSaving,
):
    """A lazy sequence of elements, each an array or a nest of arrays.

    A dataset is a plan: every method returns a new dataset, and nothing is read before the dataset is
    iterated over. Elements contain NumPy arrays, some of them read-only, NumPy scalars and, for
    strings, ``bytes``.

    Every method takes a ``name``, which ``repr`` shows.

    JAX equivalent: none; batches go to devices with ``jax.device_put``. On CPU that may alias the
    memory of a batch instead of copying it, so write to a batch before that call, not after.

    >>> from stratagem.data import Dataset
    >>> dataset = Dataset.range(10).map(lambda x: x * 2).batch(4)
    >>> [batch.tolist() for batch in dataset]
    [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    """

    def __init__(self, plan: Node, name: str | None = None) -> None:
        if not isinstance(plan, Node):
            raise InvalidArgumentError(
                "A Dataset is created by its methods, such as Dataset.from_tensor_slices(arrays), got "
                f"{plan!r}."
            )
        self.plan = plan
        self._name = as_name(name)

    @staticmethod
    def _from_plan(plan: Node, name: str | None) -> Dataset:
        return Dataset(plan, name)

    if not TYPE_CHECKING:  # with __getattr__ a type checker would accept every name

        def __getattr__(self, name):
            raise missing_method(self, name)

    def __iter__(self) -> DatasetIterator:
        return ElementIterator(self.plan)

    def __len__(self) -> int:
        size = self.cardinality()
        if not known(size):
            kind = "infinite" if size == INFINITE_CARDINALITY else "unknown"
            raise CardinalityError(f"The length of {self!r} is {kind}. Use cardinality().")
        return size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}:"
        return f"<Dataset{name} {self.plan.describe()}>"

    @property
    def element_spec(self) -> Any:
        """The nest of ``TensorSpec`` of an element.

        After ``map``, ``flat_map`` and ``interleave`` it is inferred by calling their function on the
        first element.

        >>> Dataset.range(10).batch(4).element_spec
        TensorSpec(shape=(None,), dtype=int64, name=None)
        """
        return self.plan.element_spec

    def cardinality(self) -> Cardinality:
        """Returns the number of elements, ``INFINITE_CARDINALITY`` or ``UNKNOWN_CARDINALITY``.

        >>> Dataset.range(10).batch(4).cardinality()
        3
        """
        return Cardinality(self.plan.cardinality())

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over the elements as NumPy arrays.

        >>> list(Dataset.range(3).as_numpy_iterator())
        [np.int64(0), np.int64(1), np.int64(2)]
        """
        return DatasetIterator(self.plan)

    def options(self) -> Options:
        """Returns the options of this dataset, merged with those of its inputs.

        >>> Dataset.range(3).options().deterministic is None
        True
        """
        return self.plan.options()

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """Returns the same elements with options that override earlier ones.

        >>> from stratagem.data import Options
        >>> options = Options(deterministic=True)
        >>> Dataset.range(3).with_options(options).options().deterministic
        True
        """
        return Dataset(WithOptions(self.plan, options), name)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Returns ``transformation_func(self)``.

        >>> list(Dataset.range(10).apply(lambda dataset: dataset.take(2)))
        [np.int64(0), np.int64(1)]

        Raises:
            InvalidArgumentError: If the result is not a dataset.
        """
        result = transformation_func(self)
        if not isinstance(result, Dataset):
            raise InvalidArgumentError(not_a_dataset("transformation_func", result))
        return result

    def cache(self, filename: str = "", name: str | None = None) -> Dataset:
        """Returns the same elements, cached in memory or in a file.

        The first complete iteration fills the cache. Cached arrays are read-only.

        >>> dataset = Dataset.range(3).cache()
        >>> [int(x) for x in dataset] == [int(x) for x in dataset]
        True

        Args:
            filename: A file that stores the elements, for this process and later ones.
            name: Shown by ``repr``.
        """
        return Dataset(Cache(self.plan, filename), name)

    def prefetch(self, buffer_size: int | None, name: str | None = None) -> Dataset:
        """Returns the same elements, and prepares the next ``buffer_size`` in a background thread.

        The thread ends with its iterator. An exception in it is raised in place of its element.

        >>> [int(x) for x in Dataset.range(3).prefetch(2)]
        [0, 1, 2]

        Args:
            buffer_size: How many elements to prefetch; 0 for none, ``AUTOTUNE`` or ``None`` to choose.
            name: Shown by ``repr``.
        """
        return Dataset(Prefetch(self.plan, buffer_size), name)

    def get_single_element(self, name: str | None = None) -> Any:
        """Returns the only element.

        >>> Dataset.range(5).batch(5).get_single_element().tolist()
        [0, 1, 2, 3, 4]

        Raises:
            InvalidArgumentError: If the dataset is empty or has more than one element.
        """
        as_name(name)
        iterator = iter(self)
        elements = list(itertools.islice(iterator, 2))
        iterator.close()
        if len(elements) != 1:
            number = "more than one" if elements else "none"
            raise InvalidArgumentError(
                f"get_single_element needs a dataset of one element, but this one has {number}."
            )
        return elements[0]

    def reduce(
        self,
        initial_state: PyTree,
        reduce_func: Callable[[Any, Any], Any],
        name: str | None = None,
    ) -> Any:
        """Folds ``state = reduce_func(state, element)`` over all elements and returns the last state.

        >>> int(Dataset.range(5).reduce(0, lambda state, x: state + x))
        10

        Raises:
            InvalidArgumentError: If the structure of the state changes.
        """
        as_name(name)
        # reduce_func may update its state in place, and may return a buffer that it reuses.
        state = copy_element(to_element(initial_state))
        for element in self:
            new_state = to_element(
                owned_results.take(functools.partial(reduce_func, state, element), (state, element))
            )
            if not same_structure(state, new_state):
                raise InvalidArgumentError(
                    f"reduce_func must return a state like the initial one, {describe(state)}, got "
                    f"{describe(new_state)}."
                )
            state = new_state
        return state
