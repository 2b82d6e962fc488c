"""Strategies and everything a distributed step needs, spelled as ``tf.distribute`` spells it."""

from stratagem.collectives.cross_device_ops import CrossDeviceOps
from stratagem.collectives.hierarchical_copy_all_reduce import HierarchicalCopyAllReduce
from stratagem.collectives.nccl_all_reduce import NcclAllReduce
from stratagem.collectives.reduction_to_one_device import ReductionToOneDevice
from stratagem.core.context import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from stratagem.core.reduce_op import ReduceOp
from stratagem.distribute import experimental
from stratagem.strategies import default as _default  # noqa: F401  (makes the default strategy known)
from stratagem.strategies.base import Strategy
from stratagem.strategies.central_storage import CentralStorageStrategy
from stratagem.strategies.extended import StrategyExtended
from stratagem.strategies.mirrored import MirroredStrategy
from stratagem.strategies.one_device import OneDeviceStrategy
from stratagem.strategies.replica_context import ReplicaContext
from stratagem.strategies.run_options import RunOptions
from stratagem.values.distributed_values import DistributedValues
from stratagem.values.mirrored import Mirrored
from stratagem.values.per_replica import PerReplica

__all__ = [
    "CentralStorageStrategy",
    "CrossDeviceOps",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "Mirrored",
    "MirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "experimental",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
