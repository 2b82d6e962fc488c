"""Names that ``tf.distribute`` keeps under ``experimental``."""

import importlib
from typing import TYPE_CHECKING, Any

from stratagem.collectives.options import (
    CollectiveCommunication,
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem.distribute import partitioners
from stratagem.strategies.central_storage import CentralStorageStrategy
from stratagem.strategies.replica_context import ValueContext

if TYPE_CHECKING:
    from stratagem.strategies.multi_worker_mirrored import (
        ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
    )
    from stratagem.strategies.tpu import ExperimentalTPUStrategy as TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "TPUStrategy",
    "ValueContext",
    "partitioners",
]


# Loaded when first asked for, to keep `import stratagem` quick.
_LAZY = {
    "MultiWorkerMirroredStrategy": (
        "stratagem.strategies.multi_worker_mirrored",
        "ExperimentalMultiWorkerMirroredStrategy",
    ),
    "TPUStrategy": ("stratagem.strategies.tpu", "ExperimentalTPUStrategy"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)
