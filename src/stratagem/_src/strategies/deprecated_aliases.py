"""``DeprecatedAliases``: deprecated methods of strategies, kept for older programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError
from stratagem._src.core.types import Dataset, PyTree
from stratagem._src.input.input_options import InputOptions, InputReplicationMode

if TYPE_CHECKING:
    from stratagem._src.input.distributed_dataset import DistributedDataset
    from stratagem._src.input.input_context import InputContext
    from stratagem._src.strategies.extended import StrategyExtended
    from stratagem._src.variables.variable import Variable

__all__ = ["DeprecatedAliases"]


class _Strategy(Protocol):
    """The methods that the aliases call."""

    @property
    def extended(self) -> StrategyExtended:
        """The components of the strategy."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls ``fn`` in every replica."""

    def experimental_local_results(self, value: PyTree) -> tuple[Any, ...]:
        """Returns the components of a distributed value."""

    def experimental_distribute_dataset(
        self, dataset: Dataset, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Returns a dataset that splits each batch over the replicas."""

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Returns a dataset whose batches come from ``dataset_fn``."""


class DeprecatedAliases:
    """Mixin: every method calls its replacement.

    >>> import stratagem as sg
    >>> sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).unwrap(5)
    (5,)
    """

    def experimental_run_v2(
        self: _Strategy,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Same as ``run``."""
        return self.run(fn, args, kwargs)

    def experimental_run(
        self: _Strategy, fn: Callable[..., Any], input_iterator: Any = None
    ) -> Any:
        """Runs ``fn`` with the next element of an iterator, or without arguments."""
        return self.run(fn, () if input_iterator is None else (next(input_iterator),))

    def experimental_distribute_datasets_from_function(
        self: _Strategy,
        dataset_fn: Callable[[InputContext], Any],
        options: InputOptions | None = None,
    ) -> DistributedDataset:
        """Same as ``distribute_datasets_from_function``."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def make_dataset_iterator(self: _Strategy, dataset: Dataset) -> Iterator[Any]:
        """Returns an iterator over ``experimental_distribute_dataset(dataset)``."""
        return iter(self.experimental_distribute_dataset(dataset))

    def make_input_fn_iterator(
        self: _Strategy,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> Iterator[Any]:
        """Returns an iterator over ``distribute_datasets_from_function(input_fn)``.

        Raises:
            InvalidArgumentError: If the mode is another than ``PER_WORKER``.
        """
        if replication_mode is not InputReplicationMode.PER_WORKER:
            raise InvalidArgumentError(
                "make_input_fn_iterator() calls input_fn once for each worker, got "
                f"{replication_mode}. Use distribute_datasets_from_function(fn, InputOptions(...))."
            )
        return iter(self.distribute_datasets_from_function(input_fn))

    def unwrap(self: _Strategy, value: PyTree) -> tuple[Any, ...]:
        """Same as ``experimental_local_results``."""
        return self.experimental_local_results(value)

    def group(self: _Strategy, value: PyTree, name: str | None = None) -> Any:
        """Returns the only component of ``value``; ``None`` if there are several."""
        results = self.experimental_local_results(value)
        return results[0] if len(results) == 1 and name is None else None

    def colocate_vars_with(
        self: _Strategy, colocate_with_variable: Variable
    ) -> AbstractContextManager[None]:
        """Same as ``extended.colocate_vars_with``."""
        return self.extended.colocate_vars_with(colocate_with_variable)

    def configure(
        self: _Strategy,
        session_config: Any = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Does nothing without arguments.

        Raises:
            UnsupportedError: With any: there are no sessions, and a cluster comes from a resolver.
        """
        if any(x is not None for x in (session_config, cluster_spec, task_type, task_id)):
            raise UnsupportedError(
                "configure() has nothing to configure: there are no sessions. Pass the cluster to the "
                "strategy as cluster_resolver."
            )

    def update_config_proto(self: _Strategy, config_proto: Any) -> Any:
        """Returns ``config_proto`` unchanged: there are no sessions to configure."""
        return config_proto
