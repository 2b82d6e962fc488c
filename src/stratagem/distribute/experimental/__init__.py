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
    from stratagem.strategies.tpu import ExperimentalTPUStrategy as TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "TPUStrategy",
    "ValueContext",
    "partitioners",
]


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, to keep `import stratagem` quick.
    if name == "TPUStrategy":
        return importlib.import_module("stratagem.strategies.tpu").ExperimentalTPUStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
