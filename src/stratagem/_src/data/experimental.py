"""Transformations of ``tf.data.experimental``, for use with ``Dataset.apply``."""

from __future__ import annotations

from collections.abc import Callable

from stratagem._src.data.dataset import Dataset
from stratagem._src.data.transforms.assert_cardinality import AssertCardinality

__all__ = ["assert_cardinality"]


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
