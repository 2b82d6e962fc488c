"""Per-worker datasets and iterators, which each worker creates for itself."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Self

from stratagem._src.core.errors import ContextError, InvalidArgumentError, OnWorkersOnlyError
from stratagem._src.data.dataset import Dataset
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.parameter_server.coordinator.per_worker import PerWorkerValues
from stratagem._src.parameter_server.protocol.definition import (
    DefinedOnWorker,
    Definition,
    Definitions,
)
from stratagem._src.strategies.deferred_dataset import DeferredDataset
from stratagem._src.variables import frames

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.cluster_coordinator import ClusterCoordinator

__all__ = ["PerWorkerDataset", "PerWorkerIterator"]


class PerWorkerDataset(DefinedOnWorker):
    """A dataset that each worker creates for itself; returned by ``create_per_worker_dataset``.

    ``iter`` returns the iterators. When a worker comes back after a failure, its dataset and iterators
    are created again there and start from the beginning. As an argument of a scheduled function, it is
    the dataset of the worker that runs the function.

    Args:
        coordinator: The coordinator of the workers.
        definitions: The coordinator's definitions.
        dataset: A function that returns a dataset, or a dataset.

    Raises:
        ValueError: If ``dataset`` is neither, or belongs to another strategy.
    """

    def __init__(
        self, coordinator: ClusterCoordinator, definitions: Definitions, dataset: object
    ) -> None:
        _check_dataset(dataset, coordinator)
        super().__init__(definitions.make("dataset", dataset))
        self._coordinator = coordinator
        self._definitions = definitions
        self._known_spec = dataset.element_spec if isinstance(dataset, Dataset) else None

    def __iter__(self) -> PerWorkerIterator:
        if frames.current_frame() is not None:
            raise ContextError(
                "iter() of a per-worker dataset must be called outside of functions, so that the "
                "workers can be told. Pass the iterator to a function: schedule(fn, args=(iterator,))."
            )
        return PerWorkerIterator(self._definitions.make("iterator", self))

    @functools.cached_property
    def element_spec(self) -> Any:
        """The structure of specs of an element; evaluated on a worker if it is not known here.

        Raises:
            NotImplementedError: If it is an iterable without specs.
            Exception: An error of creating the dataset, or of an earlier function, as from ``schedule``.
        """
        if self._known_spec is not None:
            return self._known_spec
        return self._coordinator.schedule(_element_spec_of, args=(self,)).fetch()

    def build(self) -> PerWorkerValues:
        """Creates the dataset on the connected workers now, without iterating over it.

        Returns:
            The dataset of each worker, to pass to ``schedule``; the function then calls ``iter``.
        """
        for worker in self._coordinator.present_workers:
            self._coordinator.schedule(_make, args=(self,), worker=worker)
        return PerWorkerValues([self] * len(self._coordinator.workers))


class PerWorkerIterator(DefinedOnWorker):
    """An iterator on each worker; pass it to ``schedule``, and call ``next`` in the function."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NoReturn:
        raise OnWorkersOnlyError(
            "next() of a per-worker iterator must be called on a worker, but this is the coordinator. "
            "Pass it to a function: schedule(fn, args=(iterator,))."
        )

    def get_next(self) -> NoReturn:
        """Raises ``NotImplementedError``: elements are on the workers."""
        self.__next__()


def _check_dataset(dataset: object, coordinator: ClusterCoordinator) -> None:
    if isinstance(dataset, DistributedDataset):
        if not isinstance(dataset, DeferredDataset) or dataset.strategy is not coordinator.strategy:
            raise InvalidArgumentError(
                "A distributed dataset must be created by the coordinator's own strategy to be sent to "
                "its workers, got one of another strategy. Use "
                "coordinator.strategy.experimental_distribute_dataset(dataset)."
            )
    elif not callable(dataset) and not isinstance(dataset, Iterable):
        raise InvalidArgumentError(
            "create_per_worker_dataset takes a function that returns a dataset, or a dataset, got "
            f"{dataset!r}."
        )


def _make(dataset: object) -> None:
    """Does nothing: the reference to the argument makes the worker create its dataset."""


def _element_spec_of(dataset: object) -> Any:
    spec = getattr(dataset, "element_spec", None)
    if spec is None:
        raise OnWorkersOnlyError(
            f"element_spec needs a Dataset, but the worker's dataset is a {type(dataset)}."
        )
    return spec
