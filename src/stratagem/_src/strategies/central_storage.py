"""``CentralStorageStrategy``: replicas on many devices, variables on one."""

from __future__ import annotations

from collections.abc import Iterable

import jax

from stratagem._src.collectives.cross_device_ops import CrossDeviceOps
from stratagem._src.collectives.reduction_to_one_device import ReductionToOneDevice
from stratagem._src.core.types import PyTree
from stratagem._src.mesh.devices import canonical_name, resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.strategies.unsynchronized_workers import warn_if_unsynchronized
from stratagem._src.variables.central_variable import CentralVariable
from stratagem._src.variables.variable import Variable

__all__ = ["CentralExtended", "CentralStorageStrategy"]


class CentralStorageStrategy(Strategy):
    """Synchronous data parallelism with one replica per compute device and all variables on one device.

    The replicas copy the variables at the start of a step; their updates are aggregated and applied to
    the one copy.

    Args:
        compute_devices: As ``devices`` of ``MirroredStrategy``.
        parameter_device: The device of the variables. Default: the only compute device, or else the CPU.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    >>> strategy.extended.parameter_devices
    ('/job:localhost/replica:0/task:0/device:CPU:0',)
    """

    def __init__(
        self,
        compute_devices: Iterable[str | jax.Device] | None = None,
        parameter_device: str | jax.Device | None = None,
    ) -> None:
        group = ReplicaGroup.of(resolve_devices(compute_devices))
        if parameter_device is None and group.size == 1:
            parameter_device = group.devices[0]
        device = resolve_devices(parameter_device or "CPU:0")[0]
        root = device if device in group.devices else None
        warn_if_unsynchronized(type(self).__name__)
        super().__init__(CentralExtended(self, group, ReductionToOneDevice(root), device))


class CentralExtended(StrategyExtended):
    """Places variables on one device, the parameter device."""

    def __init__(
        self,
        strategy: CentralStorageStrategy,
        group: ReplicaGroup,
        cross_device_ops: CrossDeviceOps,
        parameter_device: jax.Device,
    ) -> None:
        super().__init__(strategy, group, cross_device_ops)
        self._parameter_device = parameter_device

    @property
    def parameter_device(self) -> jax.Device:
        """The device of the variables."""
        return self._parameter_device

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (canonical_name(self._parameter_device),)

    def make_variable(self, **options: PyTree) -> Variable:
        return CentralVariable(self._strategy, self._parameter_device, **options)
