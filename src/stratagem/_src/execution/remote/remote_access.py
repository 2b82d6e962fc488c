"""What a trace does with variables that another process holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.variables.access import StateFrame
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
from stratagem._src.variables.updates import Update

__all__ = ["NotedUpdate", "RemoteAccess"]


@dataclass(frozen=True, slots=True, eq=False)
class NotedUpdate:
    """An update that is sent once the program has run."""

    variable: RemotelyHeldVariable
    update: Update
    operand: Any

    def hand_on(self, values: Iterator[Any], around: StateFrame) -> None:
        """Hands the update, whose operand's arrays are the next ``values``, to the frame around."""
        leaves, structure = jax.tree.flatten(self.operand)
        operand = jax.tree.unflatten(structure, [next(values) for _ in leaves])
        around.check_writable(self.variable)
        around.update_remotely(self.variable, self.update, operand)


class RemoteAccess:
    """The updates of a trace, in order, and what reads see of them.

    An update that can be computed here is applied to what later reads of the trace fetch; after one
    that only the server can carry out, a read has to be made again.
    """

    def __init__(self) -> None:
        self.updates: list[NotedUpdate] = []

    def note(self, variable: RemotelyHeldVariable, update: Update, operand: Any) -> None:
        """Adds an update."""
        self.updates.append(NotedUpdate(variable, update, operand))

    def operands(self) -> list[list[Any]]:
        """Returns the arrays of each update's operand."""
        return [jax.tree.leaves(noted.operand) for noted in self.updates]

    def updates_before_read(self, variable: RemotelyHeldVariable) -> int:
        """Returns how many updates must have been sent before ``variable`` is read."""
        positions = [
            position + 1
            for position, noted in enumerate(self.updates)
            if noted.variable is variable and noted.update.server_only
        ]
        return positions[-1] if positions else 0

    def current(self, variable: RemotelyHeldVariable, value: Any) -> Any:
        """Returns the value as this trace's own updates leave it."""
        for noted in self._local_updates(variable):
            value = jnp.asarray(noted.update.apply(value, noted.operand))
        return value

    def current_rows(
        self, variable: RemotelyHeldVariable, indices: Any, read: Callable[[Any], Any]
    ) -> Any:
        """Returns rows as this trace's own updates leave them.

        Args:
            variable: The variable.
            indices: The rows' numbers.
            read: From row numbers to the rows as they were.
        """
        updates = self._local_updates(variable)
        if not updates:
            return read(indices)
        # A small table of the rows that are read and those that are updated, updated like the large.
        flat = jnp.reshape(indices, -1)
        touched = [jnp.asarray(u.operand.indices) for u in updates if u.update.sparse]
        # Rows that do not exist are read as row 0, which leaves their update without effect.
        size = variable.program_shape[0]
        numbers = jnp.concatenate(
            [flat, *(jnp.where((t >= 0) & (t < size), t, 0) for t in touched)]
        )
        count = numbers.shape[0]
        unique, places = jnp.unique(numbers, return_inverse=True, size=count, fill_value=0)
        table = read(unique)
        start = flat.shape[0]
        for noted in updates:
            operand = noted.operand
            if noted.update.sparse:
                target = jnp.asarray(operand.indices)
                stop = start + target.shape[0]
                # A place out of range is dropped, as the row it stands for would be.
                at = jnp.where((target >= 0) & (target < size), places[start:stop], count)
                operand, start = IndexedSlices(operand.values, at), stop
            else:
                operand = jnp.asarray(operand)[unique]
            table = noted.update.apply(table, operand)
        return table[places[: flat.shape[0]]].reshape(np.shape(indices) + variable.row_shape)

    def _local_updates(self, variable: RemotelyHeldVariable) -> list[NotedUpdate]:
        """Returns the updates that a read made as late as it must be does not show."""
        start = self.updates_before_read(variable)
        return [noted for noted in self.updates[start:] if noted.variable is variable]
