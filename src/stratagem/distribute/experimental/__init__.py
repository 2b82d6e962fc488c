"""Names that ``tf.distribute`` keeps under ``experimental``."""

from stratagem.collectives.options import (
    CollectiveCommunication,
    CommunicationImplementation,
    CommunicationOptions,
)
from stratagem.distribute import partitioners
from stratagem.strategies.central_storage import CentralStorageStrategy
from stratagem.strategies.replica_context import ValueContext

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "ValueContext",
    "partitioners",
]
