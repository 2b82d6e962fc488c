"""Names that ``tf.distribute`` keeps under ``experimental``."""

from typing import TYPE_CHECKING

from stratagem.collectives.options import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem.core.lazy_names import lazy_names
from stratagem.strategies.replica_context import ValueContext

if TYPE_CHECKING:
    from stratagem.distribute import partitioners
    from stratagem.distribute.experimental import coordinator, rpc
    from stratagem.parameter_server.initial_value import RowInitializer
    from stratagem.parameter_server.sharded_variable import ShardedVariable
    from stratagem.strategies.central_storage import CentralStorageStrategy
    from stratagem.strategies.multi_worker_mirrored import (
        ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
    )
    from stratagem.strategies.parameter_server import ParameterServerStrategy
    from stratagem.strategies.tpu import ExperimentalTPUStrategy as TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "RowInitializer",
    "ShardedVariable",
    "TPUStrategy",
    "ValueContext",
    "coordinator",
    "partitioners",
    "rpc",
]


# Loaded when first asked for, to keep `import stratagem` quick.
_LAZY: dict[str, tuple[str, str | None]] = {
    "CentralStorageStrategy": ("stratagem.strategies.central_storage", "CentralStorageStrategy"),
    "MultiWorkerMirroredStrategy": (
        "stratagem.strategies.multi_worker_mirrored",
        "ExperimentalMultiWorkerMirroredStrategy",
    ),
    "TPUStrategy": ("stratagem.strategies.tpu", "ExperimentalTPUStrategy"),
    "ParameterServerStrategy": (
        "stratagem.strategies.parameter_server",
        "ParameterServerStrategy",
    ),
    "RowInitializer": ("stratagem.parameter_server.initial_value", "RowInitializer"),
    "ShardedVariable": ("stratagem.parameter_server.sharded_variable", "ShardedVariable"),
    "coordinator": ("stratagem.distribute.experimental.coordinator", None),
    "partitioners": ("stratagem.distribute.partitioners", None),
    "rpc": ("stratagem.distribute.experimental.rpc", None),
}

__getattr__ = lazy_names(__name__, _LAZY)
