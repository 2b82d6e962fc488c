"""The data of ``fit`` on parameter servers: batches from the chief, or datasets that workers create."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.input_context import InputContext
from stratagem._src.integrations.keras.dataset_adapter import AdapterWithoutSizes
from stratagem._src.integrations.keras.dataset_creator import DatasetCreator
from stratagem._src.integrations.keras.keras_internals import KerasAdapter
from stratagem._src.integrations.keras.placed_data import PlacedData
from stratagem._src.parameter_server.coordinator.cluster_coordinator import ClusterCoordinator
from stratagem._src.parameter_server.coordinator.per_worker_dataset import (
    PerWorkerDataset,
    PerWorkerIterator,
)
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.deferred_dataset import DeferredDataset
from stratagem._src.values.per_replica import PerReplica

__all__ = [
    "ChiefBatches",
    "WorkerBatch",
    "WorkerData",
    "batch_on_chief",
    "coordinator_of",
    "one_replica",
    "worker_data_of",
]


def coordinator_of(strategy: Strategy) -> ClusterCoordinator:
    """Returns the coordinator of a strategy: that of the program, if it has created one."""
    known: ClusterCoordinator | None = getattr(strategy, "_cluster_coordinator", None)
    return ClusterCoordinator(strategy) if known is None else known  # type: ignore[arg-type]


def worker_data_of(
    x: PyTree, strategy: Strategy, steps: int | None, others: Iterable[PyTree]
) -> WorkerData | None:
    """Returns the adapter of data that workers create; ``None`` for data of the chief.

    Args:
        x: The data of a user.
        strategy: The strategy.
        steps: The number of batches of an epoch.
        others: What must not be given with such data.

    Raises:
        InvalidArgumentError: If the number of batches is missing.
    """
    if not isinstance(x, (DatasetCreator, DistributedDataset, PerWorkerDataset)):
        return None
    if steps is None:
        raise InvalidArgumentError(
            f"A {type(x).__name__} on parameter servers needs a number of batches, because each worker has "
            "its own. Pass fit(..., steps_per_epoch=...), evaluate(..., steps=...) or "
            "validation_steps=...."
        )
    if any(other is not None for other in others):
        raise InvalidArgumentError(
            "y, sample_weight and class_weight must not be given with a dataset of the workers. Yield "
            "elements (x, y) or (x, y, sample_weight) instead."
        )
    return WorkerData(x, strategy)


class WorkerData(AdapterWithoutSizes):
    """Lets each worker draw its batches from its own dataset.

    The iterators of the workers last for one call of ``fit``, over all epochs.

    Args:
        data: A ``DatasetCreator``, a distributed dataset or a per-worker dataset.
        strategy: The strategy.
    """

    def __init__(
        self, data: DatasetCreator | DistributedDataset | PerWorkerDataset, strategy: Strategy
    ) -> None:
        self._data = data
        self._strategy = strategy
        self._iterator: PerWorkerIterator | None = None

    def get_jax_iterator(self) -> Iterator[WorkerBatch]:
        """Yields a reference to the next batch, wherever it is drawn."""
        return itertools.repeat(WorkerBatch(self))

    def for_workers(self) -> PerWorkerIterator:
        """Returns the iterators of the workers."""
        if self._iterator is None:
            data = self._data
            if not isinstance(data, PerWorkerDataset):
                made = data.create(self._strategy) if isinstance(data, DatasetCreator) else data
                data = coordinator_of(self._strategy).create_per_worker_dataset(made)
            self._iterator = iter(data)
        return self._iterator

    def for_chief(self) -> Iterator[Any]:
        """Returns an iterator of the chief's own."""
        data = self._data
        if isinstance(data, PerWorkerDataset):
            raise InvalidArgumentError(
                "The chief cannot read a per-worker dataset, which is needed to build a model and to "
                "evaluate. Pass a DatasetCreator or a dataset."
            )
        if isinstance(data, DatasetCreator):
            return iter(data(InputContext()))
        return iter(data.undistributed() if isinstance(data, DeferredDataset) else data)

    @property
    def num_batches(self) -> None:
        """The number of batches of an epoch, which is unknown."""
        return None


class WorkerBatch:
    """The next batch of a worker's dataset, or of the chief's.

    Args:
        data: The adapter.
    """

    def __init__(self, data: WorkerData) -> None:
        self.data = data
        self._on_chief: Iterator[Any] | None = None

    def draw(self) -> Any:
        """Returns the chief's next batch.

        Raises:
            StopIteration: If there is none.
        """
        if self._on_chief is None:
            self._on_chief = self.data.for_chief()
        return one_replica(next(self._on_chief))


def batch_on_chief(batch: PyTree) -> Any:
    """Returns a batch of an adapter as arrays of the chief."""
    return batch.draw() if isinstance(batch, WorkerBatch) else batch


def one_replica(batch: PyTree) -> Any:
    """Returns a batch of one replica.

    Raises:
        UnsupportedError: If it is for several replicas.
    """
    for leaf in jax.tree.leaves(batch, is_leaf=_is_per_replica):
        if _is_per_replica(leaf) and len(leaf.values) > 1:
            raise UnsupportedError(
                "fit of Keras on parameter servers uses one device of each worker, got a batch for "
                f"{len(leaf.values)} replicas. Start one worker for each device, or write the loop with "
                "ClusterCoordinator.schedule() and strategy.run()."
            )
    return jax.tree.map(
        lambda leaf: leaf.values[0] if _is_per_replica(leaf) else leaf,
        batch,
        is_leaf=_is_per_replica,
    )


def _is_per_replica(leaf: Leaf) -> bool:
    return isinstance(leaf, PerReplica)


class ChiefBatches(PlacedData):
    """Yields batches as arrays of the host, which are sent to a worker each.

    Args:
        adapter: The adapter that yields the batches.
        strategy: The strategy.
    """

    def __init__(self, adapter: KerasAdapter, strategy: Strategy) -> None:
        super().__init__(adapter, strategy, divide=False)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        for batch in self._adapter.get_numpy_iterator():
            yield jax.tree.map(np.array, batch)
