"""The methods of ``Dataset`` that mix the elements of several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.plan.node import Node
from stratagem._src.data.planned_elements import PlannedElements, plan_of
from stratagem._src.data.transforms.directed_interleave import DirectedInterleave
from stratagem._src.data.transforms.sampled_choices import SampledChoices, cumulative
from stratagem._src.data.transforms.take_skip import Take

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetMixing"]


class DatasetMixing(PlannedElements):
    """Constructors from other datasets."""

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Returns elements of datasets that are chosen at random, each from the next of its dataset.

        >>> from stratagem.data import Dataset
        >>> evens, odds = Dataset.range(0, 1000, 2), Dataset.range(1, 1000, 2)
        >>> mixed = Dataset.sample_from_datasets([evens, odds], weights=[0.9, 0.1], seed=1)
        >>> sum(int(x) % 2 for x in mixed.take(100)) < 25
        True

        Args:
            datasets: The datasets.
            weights: How likely each of them is chosen, all as likely by default; or a dataset of such
                weights, for one choice each.
            seed: Makes the choices reproducible.
            stop_on_empty_dataset: Whether all ends with the first dataset that does, so that the
                weights hold to the end; else the others go on.
            rerandomize_each_iteration: Whether each iteration and each epoch makes other choices; they
                make the same by default.

        Raises:
            InvalidArgumentError: If there are no datasets, or the weights do not fit them.
        """
        plans = _plans(datasets)
        if isinstance(weights, PlannedElements):
            weighing: Any = weights.plan
        else:
            weighing = np.ones(len(plans)) if weights is None else np.asarray(weights, np.float64)
            plans, weighing = _chosen_at_all(plans, weighing)
            if len(plans) == 1:
                return cls._of(plans[0], None)
        choices = SampledChoices(len(plans), weighing, seed, rerandomize_each_iteration)
        plan = DirectedInterleave(choices, plans, stop_on_empty_dataset, "sample_from_datasets")
        return cls._of(plan, None)

    @classmethod
    def choose_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        choice_dataset: Dataset,
        stop_on_empty_dataset: bool = True,
    ) -> Dataset:
        """Returns elements of datasets, each from the dataset that ``choice_dataset`` says.

        >>> from stratagem.data import Dataset
        >>> letters = [Dataset.from_tensors(letter).repeat() for letter in "abc"]
        >>> list(Dataset.choose_from_datasets(letters, Dataset.range(3).repeat(2)))
        [b'a', b'b', b'c', b'a', b'b', b'c']

        Args:
            datasets: The datasets.
            choice_dataset: Gives their numbers, from 0 on. Workers that divide the files of a dataset
                between them all have all of its choices.
            stop_on_empty_dataset: Whether all ends when a dataset is chosen that has ended; else that
                choice is passed over.

        Raises:
            InvalidArgumentError: If there are no datasets.
        """
        choices = plan_of(choice_dataset, "choice_dataset")
        plan = DirectedInterleave(
            choices, _plans(datasets), stop_on_empty_dataset, "choose_from_datasets"
        )
        return cls._of(plan, None)


def _plans(datasets: Sequence[Any]) -> list[Node]:
    plans = [plan_of(dataset, "Each of datasets") for dataset in datasets]
    if not plans:
        raise InvalidArgumentError("datasets must have at least one dataset, got none.")
    return plans


def _chosen_at_all(plans: list[Node], weights: Any) -> tuple[list[Node], Any]:
    """Returns the plans with weights above 0, which must not be waited for in vain."""
    cumulative(np.where(weights == 0, 1, weights), len(plans))
    kept = np.flatnonzero(weights)
    if not len(kept):
        return [Take(plans[0], 0)], np.ones(1)
    return [plans[index] for index in kept], weights[kept]
