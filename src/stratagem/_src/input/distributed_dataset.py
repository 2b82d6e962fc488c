"""``DistributedDataset``: a dataset that yields one batch per replica."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stratagem._src.core.errors import CardinalityError, InvalidArgumentError
from stratagem._src.core.input_kinds import LoopedOver
from stratagem._src.core.types import Dataset as DatasetLike
from stratagem._src.core.types import ElementSpec, PyTree
from stratagem._src.data.dataset import Dataset
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.input.device_steps import place_steps_on
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.input.input_context import InputContext
from stratagem._src.input.input_facts import element_types, input_facts
from stratagem._src.input.input_options import InputOptions, InputReplicationMode
from stratagem._src.input.pairing import Pairing, pair_datasets
from stratagem._src.input.sharding import shard_for_worker, with_common_order
from stratagem._src.input.sources import Source, as_source
from stratagem._src.input.specs import distributed_spec, is_static, with_rows
from stratagem._src.input.splitting import WorkerPosition
from stratagem._src.input.worker_input import PerReplicaSteps, WorkerInput
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables import frames

__all__ = ["DistributedDataset", "distribute_dataset", "distribute_from_function"]


class DistributedDataset(LoopedOver):
    """Yields one ``PerReplica`` value per step, with a batch for every replica.

    Created by ``Strategy.experimental_distribute_dataset`` and
    ``Strategy.distribute_datasets_from_function``. Iterate over it, or call ``iter`` and ``next``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = sg.data.Dataset.range(8).batch(4)
    >>> for x in strategy.experimental_distribute_dataset(dataset):
    ...     print([v.tolist() for v in x.values])
    [[0, 1], [2, 3]]
    [[4, 5], [6, 7]]
    """

    def __init__(
        self,
        worker_input: WorkerInput,
        group: ReplicaGroup,
        options: InputOptions,
        *,
        num_steps: int | None,
        element_spec: ElementSpec,
        pairing: Pairing | None,
        sources: Sequence[Source],
    ) -> None:
        self._sources = sources
        self._input = worker_input
        self._group = group
        self._options = options
        self._num_steps = num_steps
        self._element_spec = element_spec
        self._pairing = pairing

    def __iter__(self) -> DistributedIterator:
        frame = frames.current_frame()
        if frame is not None:
            frame.refuse_to_loop(self)
        place = place_steps_on(self._group, self._options, self._element_spec, self._pairing)
        buffer_size = self._options.experimental_per_replica_buffer_size
        return DistributedIterator(
            self._input, place, buffer_size, self._element_spec, self._sources
        )

    def __len__(self) -> int:
        if self._num_steps is None:
            raise CardinalityError(
                "The number of steps of this distributed dataset is infinite or unknown."
            )
        return self._num_steps

    def __bool__(self) -> bool:
        return True

    @property
    def element_spec(self) -> Any:
        """The structure of specs of an element; ``None`` if the source does not declare it."""
        return self._element_spec

    def reduce(self, initial_state: PyTree, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Folds ``state = reduce_func(state, element)`` over all elements and returns the last state."""
        result = initial_state
        for element in self:
            result = reduce_func(result, element)
        return result

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Yields pairs of an index, from ``start``, and an element."""
        return enumerate(self, start)


def distribute_dataset(
    dataset: DatasetLike,
    group: ReplicaGroup,
    options: InputOptions | None,
    position: WorkerPosition,
) -> DistributedDataset:
    """Returns a distributed dataset that splits global batches between the replicas."""
    options = options or InputOptions()
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise InvalidArgumentError(
            "InputReplicationMode.PER_REPLICA is for distribute_datasets_from_function, where the "
            "dataset function is called for each replica."
        )
    spec = dataset.element_spec if isinstance(dataset, Dataset) else None
    pairing: Pairing | None = None
    if group.spans_processes:
        pairing = pair_datasets("experimental_distribute_dataset", input_facts(dataset), position)
        dataset = with_common_order(dataset, pairing.seed)
    worker_input, source = shard_for_worker(dataset, position)
    count = source.num_elements()
    return DistributedDataset(
        worker_input,
        group,
        options,
        num_steps=count if position.num_workers == 1 else None,
        element_spec=None if spec is None else distributed_spec(spec, group, _divided_by(position)),
        pairing=pairing,
        sources=[source],
    )


def distribute_from_function(
    dataset_fn: Callable[[InputContext], Any],
    group: ReplicaGroup,
    options: InputOptions | None,
    position: WorkerPosition,
    num_replicas_in_sync: int,
) -> DistributedDataset:
    """Returns a distributed dataset of the per-replica batches that ``dataset_fn`` yields."""
    options = options or InputOptions()
    per_replica = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    pipelines = position.num_replicas if per_replica else 1
    datasets = [
        dataset_fn(
            InputContext(
                position.num_workers * pipelines,
                position.index * pipelines + pipeline,
                num_replicas_in_sync,
            )
        )
        for pipeline in range(pipelines)
    ]
    sources = [as_source(dataset) for dataset in datasets]
    specs = [dataset.element_spec for dataset in datasets if isinstance(dataset, Dataset)]
    alone = position.num_workers == 1
    # An incomplete last step is dropped to keep shapes static. With several workers keeping the data
    # matters more: replicas without a batch get an empty one.
    static_shapes = alone and len(specs) == len(datasets) and all(map(is_static, specs))
    counts = [source.num_elements() for source in sources]
    num_steps = (
        _num_per_replica_steps(counts, position.num_replicas, static_shapes) if alone else None
    )

    def part(spec: TensorSpec) -> TensorSpec:
        return spec if alone else with_rows(spec, None)

    pairing: Pairing | None = None
    if group.spans_processes:
        # Batch sizes and other dimensions may differ: each worker reads its own data.
        facts = {"element types": element_types(specs[0]) if specs else None}
        pairing = pair_datasets("distribute_datasets_from_function", facts, position)
    return DistributedDataset(
        functools.partial(PerReplicaSteps, sources, position.num_replicas, static_shapes),
        group,
        options,
        num_steps=num_steps,
        element_spec=distributed_spec(specs[0], group, part) if specs else None,
        pairing=pairing,
        sources=sources,
    )


def _divided_by(position: WorkerPosition) -> Callable[[TensorSpec], TensorSpec]:
    """Returns a function from the spec of a global batch to the spec of one replica's shard."""

    def part(spec: TensorSpec) -> TensorSpec:
        if position.num_workers == position.num_replicas == 1:
            return spec
        rows = spec.shape[0] if spec.shape.rank else None
        if position.num_workers > 1 or rows is None or rows % position.num_replicas:
            return with_rows(spec, None)
        return with_rows(spec, rows // position.num_replicas)

    return part


def _num_per_replica_steps(
    counts: list[int | None], num_replicas: int, static_shapes: bool
) -> int | None:
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    if len(counts) > 1:
        return min(known) if static_shapes else max(known)
    return known[0] // num_replicas if static_shapes else -(-known[0] // num_replicas)
