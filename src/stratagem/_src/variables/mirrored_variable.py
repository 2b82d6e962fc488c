"""``MirroredVariable``: a variable with an equal copy on every replica."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables import frames, updates
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.locking import STORAGE_LOCK, change
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register

__all__ = ["MirroredVariable"]


class MirroredVariable(AggregatingVariable):
    """A variable with a copy on every replica; every update reaches all of them.

    ``Variable(...)`` creates one in the scope of a ``MirroredStrategy``.

    JAX equivalent: an array with a replicated ``NamedSharding``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     x = sg.Variable(1.)
    >>> x
    MirroredVariable:{
      0: <sg.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,
      1: <sg.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>
    }
    """

    __slots__ = ()

    cached_attribute = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The copies, each on its own device."""
        frame = frames.current_frame()
        if frame is not None and not frame.eager:
            return (frame.read(self),) * self.group.local_size
        self._check_readable_now()
        return self._copies()

    def _copies(self) -> tuple[Any, ...]:
        with STORAGE_LOCK:
            self._shared = True
            return self.group.shards(self._stored())

    def place(self, value: ArrayLike) -> Any:
        """Returns ``value`` with a copy on every device."""
        return jax.tree.map(self.group.replicate, value)

    def _eager_value(self) -> Any:
        replica = self.check_own_replica()
        if replica is not None and replica.replica_index is not None:
            return self._copies()[replica.replica_index]
        with STORAGE_LOCK:
            self._shared = True
            return self.group.local_view(self._stored())

    def initialize(self, value: ArrayLike) -> None:
        """Stores the initial value; with several processes, the leader's."""
        runtime = self._strategy.extended
        expected = runtime.expected_value(value, self._name)
        super().initialize(
            runtime.leader_value(value, self._name) if expected is None else expected
        )
        runtime.note_created(self, self._array)

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        if not update.reducible and self.group.size > 1:
            self._check_reducible(update, "of a mirrored variable")
        return super()._update(update, operand)

    def apply(self, update: Update, operand: ArrayLike) -> None:
        """Applies the update to the value now."""
        if frames.current_frame() is not None or not self.group.spans_processes:
            super().apply(update, operand)
            return
        self.check_not_tracing(operand)

        def replace() -> None:
            local = jax.tree.map(self.group.local_view, (self._stored(), operand))
            new = self.place(update.apply(*_together(local)))
            self.store(new, shared=update is updates.ASSIGN)

        change(self, replace)

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns ``True``: a program's result is stored without conversion."""
        return True

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns ``True``: programs take and return the stored array."""
        return True

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns the replicated array."""
        array = self._stored()
        return jnp.copy(array) if donate and self._shared else array

    def __repr__(self) -> str:
        return self._describe_components("MirroredVariable")


def _together(arrays: PyTree) -> Any:
    """Returns a structure of arrays on the device of the first."""
    return jax.device_put(arrays, arrays[0].sharding)


_register(MirroredVariable)
