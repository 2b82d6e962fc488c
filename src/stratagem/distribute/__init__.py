"""``tf.distribute``: strategies for distributed training, and what a distributed step needs."""

from typing import TYPE_CHECKING

from stratagem._src.collectives.cross_device_ops import CrossDeviceOps
from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.current_strategy.context import (
    experimental_set_strategy,
    has_strategy,
    in_cross_replica_context,
)
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.input.input_context import InputContext
from stratagem._src.input.input_options import InputOptions, InputReplicationMode
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.current import get_replica_context, get_strategy
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.strategies.mirrored import MirroredStrategy
from stratagem._src.strategies.one_device import OneDeviceStrategy
from stratagem._src.strategies.replica_context import ReplicaContext
from stratagem._src.strategies.run_options import RunOptions
from stratagem._src.values.distributed_values import DistributedValues
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem.distribute import experimental

if TYPE_CHECKING:
    from stratagem._src.collectives.hierarchical_copy_all_reduce import HierarchicalCopyAllReduce
    from stratagem._src.collectives.reduction_to_one_device import ReductionToOneDevice
    from stratagem._src.input.distributed_dataset import DistributedDataset
    from stratagem._src.parameter_server.task_server.server import Server
    from stratagem._src.strategies.central_storage import CentralStorageStrategy
    from stratagem._src.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
    from stratagem._src.strategies.parameter_server import ParameterServerStrategy
    from stratagem._src.strategies.tpu import TPUStrategy
    from stratagem.distribute import cluster_resolver, coordinator, partitioners

__all__ = [
    "CentralStorageStrategy",
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "cluster_resolver",
    "coordinator",
    "experimental",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "partitioners",
]


# Loaded on first use, to keep `import stratagem` fast.
_LAZY: dict[str, tuple[str, str | None]] = {
    "CentralStorageStrategy": (
        "stratagem._src.strategies.central_storage",
        "CentralStorageStrategy",
    ),
    "HierarchicalCopyAllReduce": (
        "stratagem._src.collectives.hierarchical_copy_all_reduce",
        "HierarchicalCopyAllReduce",
    ),
    "ReductionToOneDevice": (
        "stratagem._src.collectives.reduction_to_one_device",
        "ReductionToOneDevice",
    ),
    "DistributedDataset": (
        "stratagem._src.input.distributed_dataset",
        "DistributedDataset",
    ),
    "MultiWorkerMirroredStrategy": (
        "stratagem._src.strategies.multi_worker_mirrored",
        "MultiWorkerMirroredStrategy",
    ),
    "TPUStrategy": ("stratagem._src.strategies.tpu", "TPUStrategy"),
    "ParameterServerStrategy": (
        "stratagem._src.strategies.parameter_server",
        "ParameterServerStrategy",
    ),
    "Server": ("stratagem._src.parameter_server.task_server.server", "Server"),
    "cluster_resolver": ("stratagem.distribute.cluster_resolver", None),
    "coordinator": ("stratagem.distribute.coordinator", None),
    "partitioners": ("stratagem.distribute.partitioners", None),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _LAZY)
