"""``PackedOps``: the base class of cross-device ops that pack arrays before they send them."""

from __future__ import annotations

from typing import Any

from stratagem._src.collectives.cross_device_ops import CrossDeviceOps
from stratagem._src.collectives.packing import Packing
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.values.per_replica import PerReplica

__all__ = ["PackedOps"]


class PackedOps(CrossDeviceOps):
    """Base class of ops that implement ``batch_reduce_implementation`` and pack arrays."""

    _colocate_components = False

    def __init__(self, num_packs: int | None = None) -> None:
        self._packing = Packing(num_packs)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """Returns the reduction of one value, as a batch of one."""
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]
