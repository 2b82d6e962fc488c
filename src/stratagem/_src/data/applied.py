"""Transformations that tf.data has as functions to ``apply``."""

from __future__ import annotations

from collections.abc import Callable

from stratagem._src.data.dataset import Dataset
from stratagem._src.data.transforms.assert_cardinality import AssertCardinality

__all__ = ["assert_cardinality"]


def assert_cardinality(expected_cardinality: int) -> Callable[[Dataset], Dataset]:
    """Returns a function for ``apply`` that says how many elements a dataset has.

    >>> from stratagem.data import Dataset
    >>> from stratagem.data.experimental import assert_cardinality
    >>> evens = Dataset.range(10).filter(lambda x: x % 2 == 0)
    >>> len(evens.apply(assert_cardinality(5)))
    5

    Args:
        expected_cardinality: The number of elements, or ``INFINITE_CARDINALITY``. An iteration that
            finds another one raises.
    """
    return lambda dataset: Dataset(AssertCardinality(dataset.plan, expected_cardinality))
