"""``InputContext``: tells a dataset function which input pipeline it builds."""

from __future__ import annotations

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["InputContext"]


class InputContext:
    """The position of an input pipeline, for dataset functions that batch and shard themselves.

    Args:
        num_input_pipelines: The number of pipelines: one per worker, or one per replica.
        input_pipeline_id: The index of this pipeline.
        num_replicas_in_sync: The number of replicas that all pipelines feed together.

    >>> context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(32)
    8
    """

    def __init__(
        self,
        num_input_pipelines: int = 1,
        input_pipeline_id: int = 0,
        num_replicas_in_sync: int = 1,
    ) -> None:
        self._num_input_pipelines = num_input_pipelines
        self._input_pipeline_id = input_pipeline_id
        self._num_replicas_in_sync = num_replicas_in_sync

    @property
    def num_input_pipelines(self) -> int:
        """Number of input pipelines."""
        return self._num_input_pipelines

    @property
    def input_pipeline_id(self) -> int:
        """Index of this pipeline, from 0."""
        return self._input_pipeline_id

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that train synchronously."""
        return self._num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the batch size of one replica.

        Raises:
            InvalidArgumentError: If the global batch size is not divisible by the number of replicas.
        """
        replicas = self._num_replicas_in_sync
        if global_batch_size % replicas:
            below = global_batch_size // replicas * replicas
            raise InvalidArgumentError(
                "global batch size must be divisible by num_replicas_in_sync, got "
                f"{global_batch_size} and {replicas}. Use {below or replicas} or {below + replicas}."
            )
        return global_batch_size // replicas

    def __repr__(self) -> str:
        return (
            f"InputContext(num_input_pipelines={self._num_input_pipelines}, "
            f"input_pipeline_id={self._input_pipeline_id}, "
            f"num_replicas_in_sync={self._num_replicas_in_sync})"
        )
