"""``InputOptions``: how a distributed dataset is created and read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["InputOptions", "InputReplicationMode"]


class InputReplicationMode(enum.Enum):
    """How often a dataset function is called.

    * ``PER_WORKER``: once per worker; its replicas take batches from one dataset in turn.
    * ``PER_REPLICA``: once per replica, which reads its own dataset.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


@dataclass(frozen=True)
class InputOptions:
    """Options for distributing a dataset.

    Args:
        experimental_fetch_to_device: Whether batches are prefetched to the replicas' devices; ``False``
            leaves them in host memory.
        experimental_replication_mode: How often a dataset function is called.
        experimental_place_dataset_on_device: Not supported: datasets run on the host.
        experimental_per_replica_buffer_size: How many steps are prefetched.

    >>> InputOptions(experimental_per_replica_buffer_size=2).experimental_fetch_to_device
    True
    """

    experimental_fetch_to_device: bool = True
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1

    def __post_init__(self) -> None:
        if self.experimental_place_dataset_on_device:
            raise InvalidArgumentError(
                "experimental_place_dataset_on_device is not supported: datasets run on the host. "
                "Leave it False; experimental_fetch_to_device puts batches on the devices."
            )
        if self.experimental_per_replica_buffer_size < 1:
            raise InvalidArgumentError(
                "experimental_per_replica_buffer_size must be at least 1, got "
                f"{self.experimental_per_replica_buffer_size}."
            )
        object.__setattr__(
            self,
            "experimental_replication_mode",
            InputReplicationMode(self.experimental_replication_mode),
        )
