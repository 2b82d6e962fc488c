"""``DeferredDataset``: a distributed dataset that is made where it is first used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.input.input_options import InputOptions

__all__ = ["DeferredDataset"]


class DeferredDataset(DistributedDataset):
    """What a ``ParameterServerStrategy`` distributes in the coordinator, most often for its workers.

    Sent to a worker, with ``create_per_worker_dataset`` or as an argument, it is made there, for the
    replicas of that worker. In the coordinator it is made when it is first asked for elements.

    Args:
        distribute: Makes it of the other three arguments; a function that can be pickled.
        strategy: The strategy, which is the worker's own on a worker.
        source: A dataset, or a function that makes it.
        options: See ``InputOptions``.
    """

    def __init__(
        self,
        distribute: Callable[..., DistributedDataset],
        strategy: StrategyProtocol,
        source: Any,
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

    def __iter__(self) -> DistributedIterator:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    @property
    def element_spec(self) -> Any:
        """The structure of specs of an element; ``None`` where the source does not tell."""
        return self._made.element_spec
