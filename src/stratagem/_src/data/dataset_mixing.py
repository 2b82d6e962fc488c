"""The methods of ``Dataset`` that mix the elements of several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike
from stratagem._src.data.dataset_base import DatasetBase, plan_of
from stratagem._src.data.plan.node import Node
from stratagem._src.data.transforms.directed_interleave import DirectedInterleave
from stratagem._src.data.transforms.sampled_choices import SampledChoices, cumulative_weights
from stratagem._src.data.transforms.take_skip import Take

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetMixing"]


class DatasetMixing(DatasetBase):
    """Constructors from other datasets."""

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        weights: ArrayLike = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Samples elements from several datasets at random.

        >>> from stratagem.data import Dataset
        >>> evens, odds = Dataset.range(0, 1000, 2), Dataset.range(1, 1000, 2)
        >>> mixed = Dataset.sample_from_datasets([evens, odds], weights=[0.9, 0.1], seed=1)
        >>> sum(int(x) % 2 for x in mixed.take(100)) < 25
        True

        Args:
            datasets: The datasets.
            weights: The probability of each dataset, uniform by default; or a dataset of such weights, one
                for each choice.
            seed: Makes the choices reproducible.
            stop_on_empty_dataset: Whether to stop when the first dataset is exhausted, so that the
                weights hold to the end; otherwise the others continue.
            rerandomize_each_iteration: Whether each iteration and each epoch makes different choices; by
                default they are the same.

        Raises:
            InvalidArgumentError: If ``datasets`` is empty, or the weights do not match it.
        """
        plans = _plans(datasets)
        if isinstance(weights, DatasetBase):
            weights_or_plan: Any = weights.plan
        else:
            weights_or_plan = (
                np.ones(len(plans)) if weights is None else np.asarray(weights, np.float64)
            )
            plans, weights_or_plan = _with_positive_weights(plans, weights_or_plan)
            if len(plans) == 1:
                return cls._from_plan(plans[0], None)
        choices = SampledChoices(len(plans), weights_or_plan, seed, rerandomize_each_iteration)
        plan = DirectedInterleave(choices, plans, stop_on_empty_dataset, "sample_from_datasets")
        return cls._from_plan(plan, None)

    @classmethod
    def choose_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        choice_dataset: Dataset,
        stop_on_empty_dataset: bool = True,
    ) -> Dataset:
        """Returns elements from the datasets that ``choice_dataset`` selects, one per choice.

        >>> from stratagem.data import Dataset
        >>> letters = [Dataset.from_tensors(letter).repeat() for letter in "abc"]
        >>> list(Dataset.choose_from_datasets(letters, Dataset.range(3).repeat(2)))
        [b'a', b'b', b'c', b'a', b'b', b'c']

        Args:
            datasets: The datasets.
            choice_dataset: Yields indices into ``datasets``. It is not sharded: workers that shard by file
                all make all of its choices.
            stop_on_empty_dataset: Whether to stop when an exhausted dataset is chosen; otherwise that
                choice is skipped.

        Raises:
            InvalidArgumentError: If ``datasets`` is empty.
        """
        choices = plan_of(choice_dataset, "choice_dataset")
        plan = DirectedInterleave(
            choices, _plans(datasets), stop_on_empty_dataset, "choose_from_datasets"
        )
        return cls._from_plan(plan, None)


def _plans(datasets: Sequence[Any]) -> list[Node]:
    plans = [plan_of(dataset, "Each of datasets") for dataset in datasets]
    if not plans:
        raise InvalidArgumentError("datasets must have at least one dataset, got none.")
    return plans


def _with_positive_weights(plans: list[Node], weights: ArrayLike) -> tuple[list[Node], Any]:
    """Returns the plans with positive weights; the others are never chosen and would never be exhausted."""
    cumulative_weights(np.where(weights == 0, 1, weights), len(plans))
    kept = np.flatnonzero(weights)
    if not len(kept):
        return [Take(plans[0], 0)], np.ones(1)
    return [plans[index] for index in kept], weights[kept]
