"""``DatasetCreator``: creates the dataset of ``fit`` in each worker, as ``tf.keras`` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.input.input_context import InputContext
from stratagem._src.input.input_options import InputOptions
from stratagem._src.strategies.base import Strategy

__all__ = ["DatasetCreator"]


class DatasetCreator:
    """Creates a dataset for each input pipeline: ``keras.utils.experimental.DatasetCreator``.

    ``fit``, ``evaluate`` and ``predict`` take it as ``x``, with ``steps_per_epoch`` (or ``steps``).

    Args:
        dataset_fn: Takes an ``InputContext`` and returns a dataset of per-replica batches, sharded for its
            worker.
        input_options: How the strategy reads the datasets.

    >>> import stratagem as sg
    >>> def dataset_fn(context):
    ...     return sg.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))
    >>> creator = sg.keras.utils.experimental.DatasetCreator(dataset_fn)
    >>> next(iter(creator(sg.distribute.InputContext(num_replicas_in_sync=2)))).tolist()
    [0, 1]
    """

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        input_options: InputOptions | None = None,
    ) -> None:
        if not callable(dataset_fn):
            raise TypeError(
                "dataset_fn of DatasetCreator must be a function of an InputContext, got a "
                f"{type(dataset_fn).__name__}. Pass a dataset itself to fit() as x."
            )
        if input_options is not None and not isinstance(input_options, InputOptions):
            raise TypeError(
                "input_options of DatasetCreator must be a tf.distribute.InputOptions, got a "
                f"{type(input_options).__name__}."
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def __call__(self, context: InputContext) -> Any:
        """Returns the dataset of one input pipeline."""
        return self.dataset_fn(context)

    def create(self, strategy: Strategy | None) -> Any:
        """Returns the dataset of a model: distributed by its strategy, if it has one."""
        if strategy is None:
            return self(InputContext())
        return strategy.distribute_datasets_from_function(self, self.input_options)
