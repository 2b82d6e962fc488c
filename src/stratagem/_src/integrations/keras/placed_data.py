"""Data for Keras that come as global arrays over a strategy's replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.integrations.keras.batch_placement import place_batch
from stratagem._src.integrations.keras.dataset_adapter import DatasetAdapter
from stratagem._src.integrations.keras.equal_data import BatchComparison, check_equal_arrays
from stratagem._src.integrations.keras.trainer_internals import (
    ArrayDataAdapter,
    DataAdapter,
    PyDatasetAdapter,
    arrays_of,
    is_shuffled,
)
from stratagem._src.integrations.keras.worker_callbacks import leads
from stratagem._src.integrations.keras.worker_order import in_leaders_order
from stratagem._src.strategies.base import Strategy

__all__ = ["PlacedData"]


class PlacedData(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """What another adapter gives, placed on the replicas.

    Args:
        adapter: Feeds Keras with data.
        strategy: The replicas.
        divide: Whether rows may be divided between them.
    """

    def __init__(self, adapter: Any, strategy: Strategy, *, divide: bool) -> None:
        self._adapter = adapter
        self._strategy = strategy
        self._divide = divide
        # Others may fill the same memory with the next batch, while a program still reads this one.
        self._copies = not isinstance(adapter, ArrayDataAdapter)
        self._comparison: BatchComparison | None = None
        if not strategy.replica_group.spans_processes:
            return
        if isinstance(adapter, PyDatasetAdapter) and is_shuffled(adapter):
            raise InvalidArgumentError(
                "Keras puts a PyDataset into another random order on every worker, so that they would "
                "not train on the same batches. Pass shuffle=False, and shuffle in the dataset with a "
                "seed that all workers have."
            )
        if isinstance(adapter, ArrayDataAdapter):
            check_equal_arrays(arrays_of(adapter))
        elif not isinstance(
            adapter, DatasetAdapter
        ):  # those are divided, and compared, as datasets
            self._comparison = BatchComparison()

    def get_jax_iterator(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        if self._comparison is not None:
            self._comparison.restart()
        batches = self._adapter.get_jax_iterator()
        if self._strategy.replica_group.spans_processes and is_shuffled(self._adapter):
            batches = in_leaders_order(batches, leads=leads(self._strategy))
        for batch in batches:
            if self._comparison is not None:
                self._comparison.add(batch)
            if self._copies:
                batch = jax.tree.map(_own_memory, batch)
            yield place_batch(batch, self._strategy, divide=self._divide)

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has, if that is known."""
        count: int | None = self._adapter.num_batches
        return count

    @property
    def batch_size(self) -> int | None:
        """How many examples a batch has, if that is known."""
        size: int | None = self._adapter.batch_size
        return size

    @property
    def has_partial_batch(self) -> bool | None:
        """Whether the last batch is smaller, if that is known."""
        has: bool | None = self._adapter.has_partial_batch
        return has

    @property
    def partial_batch_size(self) -> int | None:
        """How many examples the last batch has if it is smaller."""
        size: int | None = self._adapter.partial_batch_size
        return size

    def on_epoch_begin(self) -> None:
        """Tells the other adapter that an epoch begins."""
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the other adapter that an epoch has ended, and compares its batches."""
        if self._comparison is not None:
            self._comparison.finish()
        self._adapter.on_epoch_end()


def _own_memory(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
