"""Strategies and everything a distributed step needs, spelled as ``tf.distribute`` spells it."""

from typing import TYPE_CHECKING

from stratagem.collectives.cross_device_ops import CrossDeviceOps
from stratagem.collectives.nccl_all_reduce import NcclAllReduce
from stratagem.core.context import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from stratagem.core.lazy_names import lazy_names
from stratagem.core.reduce_op import ReduceOp
from stratagem.distribute import experimental
from stratagem.input.distributed_iterator import DistributedIterator
from stratagem.input.input_context import InputContext
from stratagem.input.input_options import InputOptions, InputReplicationMode
from stratagem.strategies.base import Strategy
from stratagem.strategies.extended import StrategyExtended
from stratagem.strategies.mirrored import MirroredStrategy
from stratagem.strategies.one_device import OneDeviceStrategy
from stratagem.strategies.replica_context import ReplicaContext
from stratagem.strategies.run_options import RunOptions
from stratagem.values.distributed_values import DistributedValues
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica

if TYPE_CHECKING:
    from stratagem.collectives.hierarchical_copy_all_reduce import HierarchicalCopyAllReduce
    from stratagem.collectives.reduction_to_one_device import ReductionToOneDevice
    from stratagem.distribute import cluster_resolver, coordinator, partitioners
    from stratagem.input.distributed_dataset import DistributedDataset
    from stratagem.server.server import Server
    from stratagem.strategies.central_storage import CentralStorageStrategy
    from stratagem.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
    from stratagem.strategies.parameter_server import ParameterServerStrategy
    from stratagem.strategies.tpu import TPUStrategy

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


# Loaded when first asked for, to keep `import stratagem` quick.
_LAZY: dict[str, tuple[str, str | None]] = {
    "CentralStorageStrategy": ("stratagem.strategies.central_storage", "CentralStorageStrategy"),
    "HierarchicalCopyAllReduce": (
        "stratagem.collectives.hierarchical_copy_all_reduce",
        "HierarchicalCopyAllReduce",
    ),
    "ReductionToOneDevice": (
        "stratagem.collectives.reduction_to_one_device",
        "ReductionToOneDevice",
    ),
    "DistributedDataset": ("stratagem.input.distributed_dataset", "DistributedDataset"),
    "MultiWorkerMirroredStrategy": (
        "stratagem.strategies.multi_worker_mirrored",
        "MultiWorkerMirroredStrategy",
    ),
    "TPUStrategy": ("stratagem.strategies.tpu", "TPUStrategy"),
    "ParameterServerStrategy": (
        "stratagem.strategies.parameter_server",
        "ParameterServerStrategy",
    ),
    "Server": ("stratagem.server.server", "Server"),
    "cluster_resolver": ("stratagem.distribute.cluster_resolver", None),
    "coordinator": ("stratagem.distribute.coordinator", None),
    "partitioners": ("stratagem.distribute.partitioners", None),
}

__getattr__ = lazy_names(__name__, _LAZY)
