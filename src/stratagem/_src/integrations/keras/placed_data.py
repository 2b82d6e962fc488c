"""``PlacedData``: a Keras data adapter that yields global arrays over a strategy's replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.integrations.keras.batch_placement import place_batch
from stratagem._src.integrations.keras.callbacks import is_leader
from stratagem._src.integrations.keras.data_consistency import BatchComparison, check_equal_arrays
from stratagem._src.integrations.keras.dataset_adapter import DatasetAdapter
from stratagem._src.integrations.keras.keras_internals import KerasAdapter
from stratagem._src.integrations.keras.trainer_internals import (
    ArrayDataAdapter,
    DataAdapter,
    PyDatasetAdapter,
    arrays_of,
    is_shuffled,
)
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.strategies.base import Strategy

__all__ = ["PlacedData", "in_leader_order"]

RandomState: TypeAlias = Any
"""The tuple that ``numpy.random.get_state`` returns."""


class PlacedData(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """Places the batches of another adapter on the replicas.

    Args:
        adapter: The adapter that yields the batches.
        strategy: The strategy with the replicas.
        divide: Whether rows may be divided between the replicas.
    """

    def __init__(self, adapter: KerasAdapter, strategy: Strategy, *, divide: bool) -> None:
        self._adapter = adapter
        self._strategy = strategy
        self._divide = divide
        # Other adapters may reuse the memory for the next batch, while a program still reads this one.
        self._copies = not isinstance(adapter, ArrayDataAdapter)
        self._comparison: BatchComparison | None = None
        if not strategy.replica_group.spans_processes:
            return
        if isinstance(adapter, PyDatasetAdapter) and is_shuffled(adapter):
            raise InvalidArgumentError(
                "Keras shuffles a PyDataset differently on every worker, so that they would "
                "not train on the same batches. Pass shuffle=False, and shuffle in the dataset with the "
                "same seed on all workers."
            )
        if isinstance(adapter, ArrayDataAdapter):
            check_equal_arrays(arrays_of(adapter))
        elif not isinstance(adapter, DatasetAdapter):  # the dataset divides and compares those
            self._comparison = BatchComparison()

    def get_jax_iterator(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        if self._comparison is not None:
            self._comparison.restart()
        batches = self._adapter.get_jax_iterator()
        if self._strategy.replica_group.spans_processes and is_shuffled(self._adapter):
            batches = in_leader_order(batches, is_leader=is_leader(self._strategy))
        for batch in batches:
            if self._comparison is not None:
                self._comparison.add(batch)
            if self._copies:
                batch = jax.tree.map(_own_memory, batch)
            yield place_batch(batch, self._strategy, divide=self._divide)

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch, if known."""
        count: int | None = self._adapter.num_batches
        return count

    @property
    def batch_size(self) -> int | None:
        """The number of examples of a batch, if known."""
        size: int | None = self._adapter.batch_size
        return size

    @property
    def has_partial_batch(self) -> bool | None:
        """Whether the last batch is smaller, if known."""
        has: bool | None = self._adapter.has_partial_batch
        return has

    @property
    def partial_batch_size(self) -> int | None:
        """The number of examples of the last batch if it is smaller."""
        size: int | None = self._adapter.partial_batch_size
        return size

    def on_epoch_begin(self) -> None:
        """Notifies the wrapped adapter that an epoch begins."""
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Compares the batches of the epoch, and notifies the wrapped adapter that it has ended."""
        if self._comparison is not None:
            self._comparison.finish()
        self._adapter.on_epoch_end()


def _own_memory(leaf: Leaf) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def in_leader_order(batches: Iterator[Any], *, is_leader: bool) -> Iterator[Any]:
    """Yields batches that are shuffled by NumPy's global random state, in the leader's order.

    The global random state of a worker advances as in a single process, as long as it equals the leader's:
    workers with the same seed draw the same numbers afterwards. A state that differs from the leader's
    stays unchanged, because the order is not drawn from it.

    Args:
        batches: Draws from NumPy's global random state for each batch.
        is_leader: Whether this worker is the leader.
    """
    mine = _encoded(np.random.get_state()) if is_leader else None
    every = process_monitor().all_gather_object("keras order", mine, "order of an epoch of Keras")
    state = _decoded(every[0])
    while True:
        own = np.random.get_state()
        equals_leader = _equal(own, state)
        np.random.set_state(state)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            state = np.random.get_state()
            if not equals_leader:
                np.random.set_state(own)
        yield batch


def _equal(one: RandomState, other: RandomState) -> bool:
    # The position changes with each draw: it distinguishes most states without comparing the keys.
    return bool(one[2:] == other[2:] and np.array_equal(one[1], other[1]))


def _encoded(state: PyTree) -> list[Any]:
    kind, keys, *rest = state
    return [kind, keys.tobytes().hex(), *rest]


def _decoded(encoded: list[Any]) -> Any:
    kind, keys, *rest = encoded
    return (kind, np.frombuffer(bytes.fromhex(keys), np.uint32), *rest)
