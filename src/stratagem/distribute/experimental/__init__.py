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
    from stratagem.strategies.parameter_server import ParameterServerStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "ParameterServerStrategy",
    "ValueContext",
    "partitioners",
]


# Loaded when first asked for, to keep `import stratagem` quick.
_LAZY = {
    "ParameterServerStrategy": (
        "stratagem.strategies.parameter_server",
        "ParameterServerStrategy",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)
