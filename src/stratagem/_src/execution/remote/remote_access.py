"""``RemoteAccess``: the updates of remote variables in a trace, and their effect on its reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import ArrayLike, PyTree, Tensor
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.frames import StateFrame
from stratagem._src.variables.updates import Update

__all__ = ["PendingUpdate", "RemoteAccess"]


@dataclass(frozen=True, slots=True, eq=False)
class PendingUpdate:
    """An update of a remote variable that is sent after the program has run."""

    variable: BaseRemoteVariable
    update: Update
    operand: PyTree

    def forward(self, values: Iterator[Any], outer: StateFrame) -> None:
        """Passes the update to the outer frame, with the next ``values`` as its operand's arrays."""
        leaves, structure = jax.tree.flatten(self.operand)
        operand = jax.tree.unflatten(structure, [next(values) for _ in leaves])
        outer.check_writable(self.variable)
        outer.update_remotely(self.variable, self.update, operand)


class RemoteAccess:
    """The updates of a trace, in order, and their effect on its reads.

    An update that can be computed locally is applied to the values that later reads of the trace fetch.
    After an update that only the server can apply, later reads must fetch again. So must reads of a shard
    after any update of its whole variable, and reads of that after any update of a shard.
    """

    def __init__(self) -> None:
        self.updates: list[PendingUpdate] = []

    def note(self, variable: BaseRemoteVariable, update: Update, operand: PyTree) -> None:
        """Adds an update."""
        self.updates.append(PendingUpdate(variable, update, operand))

    def operands(self) -> list[list[Any]]:
        """Returns the arrays of each update's operand."""
        return [jax.tree.leaves(noted.operand) for noted in self.updates]

    def updates_before_read(self, variable: BaseRemoteVariable) -> int:
        """Returns the number of updates that must be sent before ``variable`` is read."""
        positions = [
            position + 1
            for position, noted in enumerate(self.updates)
            if noted.variable.overlaps(variable)
            and (noted.update.server_only or noted.variable is not variable)
        ]
        return positions[-1] if positions else 0

    def current(self, variable: BaseRemoteVariable, value: Tensor) -> Any:
        """Returns the fetched value with this trace's local updates applied."""
        for noted in self._local_updates(variable):
            value = jnp.asarray(noted.update.apply(value, noted.operand))
        return value

    def current_rows(
        self, variable: BaseRemoteVariable, indices: ArrayLike, read: Callable[[Any], Any]
    ) -> Any:
        """Returns rows with this trace's local updates applied.

        Args:
            variable: The variable.
            indices: The row numbers.
            read: Returns the rows of given numbers as they are without these updates.
        """
        updates = self._local_updates(variable)
        if not updates:
            return read(indices)
        # Build a small table of the rows that are read or updated, and apply the updates to that table as
        # if it were the full one.
        # Rows [7, 2] are read after an update of rows [2, 9]:
        #     numbers [7, 2, 2, 9], unique [2, 7, 9, 0], places [1, 0, 0, 2]
        # The update then goes to rows [0, 2] of the small table, and the result is its rows [1, 0].
        # `unique` is padded with row 0, because the number of different rows is unknown while tracing.
        flat = jnp.reshape(indices, -1)
        touched = [jnp.asarray(u.operand.indices) for u in updates if u.update.sparse]
        # Out-of-range rows are read as row 0; below, their updates are dropped.
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
                # JAX drops an out-of-range index, as it would drop the original row number.
                at = jnp.where((target >= 0) & (target < size), places[start:stop], count)
                operand, start = IndexedSlices(operand.values, at), stop
            else:
                operand = jnp.asarray(operand)[unique]
            table = noted.update.apply(table, operand)
        return table[places[: flat.shape[0]]].reshape(np.shape(indices) + variable.row_shape)

    def _local_updates(self, variable: BaseRemoteVariable) -> list[PendingUpdate]:
        """Returns the updates that are not yet part of the fetched value of ``variable``."""
        start = self.updates_before_read(variable)
        return [noted for noted in self.updates[start:] if noted.variable is variable]
