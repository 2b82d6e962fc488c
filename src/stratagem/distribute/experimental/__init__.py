"""``tf.distribute.experimental``."""

from typing import TYPE_CHECKING

from stratagem._src.core.communication_options import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.mesh.sharding_rules import ShardingRules
from stratagem._src.strategies.constrain import constrain
from stratagem._src.strategies.replica_context import ValueContext
from stratagem._src.variables.fully_sharded import FullySharded
from stratagem._src.variables.named_variables import named_variables

if TYPE_CHECKING:
    from stratagem._src.checkpoint.preemption_handler import PreemptionCheckpointHandler
    from stratagem._src.parameter_server.client.initial_value import RowInitializer
    from stratagem._src.parameter_server.client.sharded_variable import ShardedVariable
    from stratagem._src.strategies.central_storage import CentralStorageStrategy
    from stratagem._src.strategies.multi_worker_mirrored import (
        ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
    )
    from stratagem._src.strategies.parameter_server import ParameterServerStrategy
    from stratagem._src.strategies.tpu import ExperimentalTPUStrategy as TPUStrategy
    from stratagem._src.training.local_updates.local_updates import LocalUpdates
    from stratagem._src.training.preemption_watcher import PreemptionWatcher
    from stratagem._src.training.termination_config import TerminationConfig
    from stratagem.distribute import partitioners
    from stratagem.distribute.experimental import coordinator, rpc

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "FullySharded",
    "LocalUpdates",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "RowInitializer",
    "ShardedVariable",
    "ShardingRules",
    "TPUStrategy",
    "TerminationConfig",
    "ValueContext",
    "constrain",
    "coordinator",
    "named_variables",
    "partitioners",
    "rpc",
]


# Loaded on first use, to keep `import stratagem` fast.
_LAZY: dict[str, tuple[str, str | None]] = {
    "CentralStorageStrategy": (
        "stratagem._src.strategies.central_storage",
        "CentralStorageStrategy",
    ),
    "LocalUpdates": ("stratagem._src.training.local_updates.local_updates", "LocalUpdates"),
    "MultiWorkerMirroredStrategy": (
        "stratagem._src.strategies.multi_worker_mirrored",
        "ExperimentalMultiWorkerMirroredStrategy",
    ),
    "TPUStrategy": ("stratagem._src.strategies.tpu", "ExperimentalTPUStrategy"),
    "ParameterServerStrategy": (
        "stratagem._src.strategies.parameter_server",
        "ParameterServerStrategy",
    ),
    "PreemptionCheckpointHandler": (
        "stratagem._src.checkpoint.preemption_handler",
        "PreemptionCheckpointHandler",
    ),
    "PreemptionWatcher": ("stratagem._src.training.preemption_watcher", "PreemptionWatcher"),
    "TerminationConfig": ("stratagem._src.training.termination_config", "TerminationConfig"),
    "RowInitializer": ("stratagem._src.parameter_server.client.initial_value", "RowInitializer"),
    "ShardedVariable": (
        "stratagem._src.parameter_server.client.sharded_variable",
        "ShardedVariable",
    ),
    "coordinator": ("stratagem.distribute.experimental.coordinator", None),
    "partitioners": ("stratagem.distribute.partitioners", None),
    "rpc": ("stratagem.distribute.experimental.rpc", None),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _LAZY)
