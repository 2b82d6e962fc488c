"""Functions of ``tf.data.experimental``: for ``Dataset.apply``, and older names of methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratagem._src.core.types import ArrayLike
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.element_views import Cardinality
from stratagem._src.data.transforms.assert_cardinality import AssertCardinality

__all__ = ["assert_cardinality", "cardinality", "choose_from_datasets", "sample_from_datasets"]


def assert_cardinality(expected_cardinality: int) -> Callable[[Dataset], Dataset]:
    """Returns a function for ``apply`` that declares the number of elements of a dataset.

    >>> from stratagem.data import Dataset
    >>> from stratagem.data.experimental import assert_cardinality
    >>> evens = Dataset.range(10).filter(lambda x: x % 2 == 0)
    >>> len(evens.apply(assert_cardinality(5)))
    5

    Args:
        expected_cardinality: The number of elements, or ``INFINITE_CARDINALITY``. An iteration with a
            different number of elements raises.
    """
    return lambda dataset: Dataset(AssertCardinality(dataset.plan, expected_cardinality))


def cardinality(dataset: Dataset) -> Cardinality:
    """Returns the number of elements of a dataset: ``Dataset.cardinality``.

    >>> from stratagem.data import Dataset
    >>> from stratagem.data.experimental import cardinality
    >>> cardinality(Dataset.range(10).batch(4))
    3
    """
    return dataset.cardinality()


def choose_from_datasets(
    datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = False
) -> Dataset:
    """Returns elements from the datasets that ``choice_dataset`` selects: ``Dataset.choose_from_datasets``.

    >>> from stratagem.data import Dataset
    >>> from stratagem.data.experimental import choose_from_datasets
    >>> letters = [Dataset.from_tensors(letter).repeat() for letter in "ab"]
    >>> list(choose_from_datasets(letters, Dataset.range(2)))
    [b'a', b'b']
    """
    return Dataset.choose_from_datasets(datasets, choice_dataset, stop_on_empty_dataset)


def sample_from_datasets(
    datasets: Sequence[Dataset],
    weights: ArrayLike = None,
    seed: int | None = None,
    stop_on_empty_dataset: bool = False,
) -> Dataset:
    """Samples elements from several datasets at random: ``Dataset.sample_from_datasets``.

    >>> from stratagem.data import Dataset
    >>> from stratagem.data.experimental import sample_from_datasets
    >>> sorted(int(x) for x in sample_from_datasets([Dataset.range(2), Dataset.range(2, 4)], seed=1))
    [0, 1, 2, 3]
    """
    return Dataset.sample_from_datasets(datasets, weights, seed, stop_on_empty_dataset)
