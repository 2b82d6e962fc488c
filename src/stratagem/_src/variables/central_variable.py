"""``CentralVariable``: one copy, on the parameter device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.mesh.addressable_shards import addressable_shards
from stratagem._src.mesh.devices import canonical_name
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.locking import STORAGE_LOCK
from stratagem._src.variables.variable import _register

__all__ = ["CentralVariable"]


class CentralVariable(AggregatingVariable):
    """A variable on one device that all replicas read from and send their updates to.

    ``Variable(...)`` creates one in the scope of a ``CentralStorageStrategy``. Each step copies it to the
    compute devices and copies the aggregated update back.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    >>> with strategy.scope():
    ...     x = sg.Variable(1.)
    >>> x
    <sg.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>
    """

    __slots__ = ("_parameter_device",)
    cached_attribute = None

    def __init__(
        self,
        strategy: StrategyProtocol,
        parameter_device: jax.Device,
        *args: PyTree,
        **kwargs: PyTree,
    ) -> None:
        self._parameter_device = parameter_device
        super().__init__(strategy, *args, **kwargs)

    @property
    def parameter_device(self) -> jax.Device:
        """The device that holds the value."""
        return self._parameter_device

    @property
    def device(self) -> str:
        """Full name of the parameter device."""
        return canonical_name(self._parameter_device)

    @property
    def values(self) -> tuple[Any, ...]:
        """The one copy."""
        return (self._value(),)

    def place(self, value: ArrayLike) -> Any:
        """Returns ``value`` on the parameter device."""
        return jax.device_put(value, self._parameter_device)

    def _eager_value(self) -> Any:
        replica = self.check_own_replica()
        with STORAGE_LOCK:
            self._shared = True
            array = self._stored()
        if replica is not None and replica.replica_index is not None:
            return jax.device_put(array, self.group.devices[replica.replica_index])
        return array

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns whether a program on ``group`` takes and returns the stored array without conversion."""
        return group is not None and group.device_set == {self._parameter_device}

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns a copy of the value on every compute device."""
        array = self._stored()
        # On the parameter device the program takes the stored array itself, which donation would overwrite.
        stays = group is None or self._parameter_device in group.device_set
        if donate and self._shared and stays:
            array = jnp.copy(array)
        return array if group is None else group.replicate(array)

    def accept_from_program(
        self, group: ReplicaGroup | None, array: ArrayLike, shared: bool
    ) -> None:
        """Stores a program's result on the parameter device."""
        self._shared = shared
        if self.passes_as_stored(group):
            self._array = array
            return
        copies = {shard.device: shard.data for shard in addressable_shards(array)}
        here = copies.get(self._parameter_device)
        if here is None:
            here = jax.device_put(array.addressable_data(0), self._parameter_device)
        self._array = here


_register(CentralVariable)
