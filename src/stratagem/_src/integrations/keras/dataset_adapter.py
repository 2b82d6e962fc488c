"""``DatasetAdapter``: feeds Keras with a dataset of this library, or a distributed dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stratagem._src.core.errors import CardinalityError, InvalidArgumentError
from stratagem._src.core.types import Element, PyTree
from stratagem._src.data.auto_shard import num_files
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.options import INFINITE_CARDINALITY, AutoShardPolicy
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.sharding import choose_policy
from stratagem._src.integrations.keras.trainer_internals import (
    DataAdapter,
    class_weight_to_sample_weights,
)
from stratagem._src.strategies.base import Strategy

__all__ = ["AdapterWithoutSizes", "DatasetAdapter", "is_dataset"]


def is_dataset(data: PyTree) -> bool:
    """Returns whether ``data`` is a dataset of this library."""
    return isinstance(data, (Dataset, DistributedDataset))


class AdapterWithoutSizes(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """Base of adapters that do not know the sizes of their batches, which Keras asks for."""

    @property
    def batch_size(self) -> None:
        """The number of examples of a batch, which is unknown."""
        return None

    @property
    def has_partial_batch(self) -> None:
        """Whether the last batch is smaller, which is unknown."""
        return None

    @property
    def partial_batch_size(self) -> None:
        """The number of examples of a smaller last batch, which is unknown."""
        return None


class DatasetAdapter(AdapterWithoutSizes):
    """Feeds Keras with the elements of a dataset: inputs, ``(x, y)`` or ``(x, y, sample_weight)``.

    Args:
        dataset: A dataset of global batches, or a distributed dataset.
        y: Must be ``None``: targets are part of the elements.
        sample_weight: Must be ``None`` as well.
        class_weight: The weight of each class, by which examples are weighted.
        steps_per_epoch: The number of elements of an epoch.
        strategy: The strategy between whose workers the dataset is sharded, by its auto-shard policy.
    """

    def __init__(
        self,
        dataset: Dataset | DistributedDataset,
        y: PyTree = None,
        sample_weight: PyTree = None,
        class_weight: dict[int, float] | None = None,
        steps_per_epoch: int | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise InvalidArgumentError(
                    f"{name} must not be given with a dataset. Yield elements "
                    "(x, y) or (x, y, sample_weight) instead."
                )
        self._class_weight = class_weight
        self._num_batches = _num_elements(dataset, steps_per_epoch)
        if (
            isinstance(dataset, Dataset)
            and strategy is not None
            and strategy.replica_group.spans_processes
        ):
            self._num_batches = _num_steps_of_workers(dataset, strategy)
            dataset = strategy.experimental_distribute_dataset(dataset)
        self._dataset = dataset

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Yields the elements."""
        for element in self._dataset:
            yield element if self._class_weight is None else self._weighted(element)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Yields the elements."""
        return self.get_numpy_iterator()

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch, if known."""
        return self._num_batches

    def _weighted(self, element: Element) -> Any:
        if not isinstance(element, tuple) or len(element) != 2:
            raise InvalidArgumentError(
                "class_weight needs a dataset whose elements are (x, y), got a "
                f"{type(element).__name__}"
                + (f" of {len(element)}." if isinstance(element, tuple) else ".")
            )
        x, y = element
        return x, y, class_weight_to_sample_weights(y, self._class_weight)


def _num_elements(dataset: Dataset | DistributedDataset, steps: int | None) -> int | None:
    if isinstance(dataset, DistributedDataset):
        try:
            return len(dataset)
        except CardinalityError:
            return None
    count = dataset.cardinality()
    if count == INFINITE_CARDINALITY and steps is None:
        raise InvalidArgumentError(
            "An epoch of an infinite dataset needs a number of batches. Pass "
            "fit(..., steps_per_epoch=...), evaluate(..., steps=...) or validation_steps=...."
        )
    return count if count >= 0 else None


def _num_steps_of_workers(dataset: Dataset, strategy: Strategy) -> int | None:
    """Returns the number of steps that workers take with a dataset, if its policy determines it."""
    num_workers = strategy.extended.worker_position().num_workers
    wanted = dataset.options().experimental_distribute.auto_shard_policy
    policy = choose_policy(wanted, num_files(dataset), num_workers)
    count = dataset.cardinality()
    return count if policy is AutoShardPolicy.DATA and count >= 0 else None
