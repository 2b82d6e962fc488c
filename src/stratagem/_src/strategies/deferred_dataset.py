"""``DeferredDataset``: a distributed dataset that is created where it is first used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stratagem._src.core.types import Dataset
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.input.input_context import InputContext
from stratagem._src.input.input_options import InputOptions

__all__ = ["DeferredDataset"]


class DeferredDataset(DistributedDataset):
    """A dataset that a ``ParameterServerStrategy`` distributes in the coordinator, usually for its workers.

    When it is sent to a worker, with ``create_per_worker_dataset`` or as an argument, it is created there
    for the replicas of that worker. In the coordinator it is created at first use.

    Args:
        distribute: Creates it from the other three arguments; a picklable function.
        strategy: The strategy; on a worker, the worker's own.
        source: A dataset, or a function that creates it.
        options: See ``InputOptions``.
    """

    def __init__(
        self,
        distribute: Callable[..., DistributedDataset],
        strategy: StrategyProtocol,
        source: Dataset,
        options: InputOptions | None,
    ) -> None:
        self.strategy = strategy
        self._recipe = distribute, (strategy, source, options)

    @functools.cached_property
    def _made(self) -> DistributedDataset:
        distribute, arguments = self._recipe
        return distribute(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._recipe

    def undistributed(self) -> Any:
        """Returns the dataset that is distributed, or one that the function creates for one replica."""
        _, (_, source, _) = self._recipe
        return source(InputContext()) if callable(source) else source

    def __iter__(self) -> DistributedIterator:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    @property
    def element_spec(self) -> Any:
        """The structure of an element's specs; ``None`` if the source does not provide it."""
        return self._made.element_spec
