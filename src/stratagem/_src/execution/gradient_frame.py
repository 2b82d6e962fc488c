"""``GradientFrame``: the values of variables in a function that is differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.errors import VariableError
from stratagem._src.core.types import (
    ArrayLike,
    Dataset,
    DTypeLike,
    IntegerLike,
    PyTree,
    Tensor,
)
from stratagem._src.execution.draws import AnyIterator
from stratagem._src.execution.gradient_taps import GradientTaps
from stratagem._src.execution.remote.remote_access import RemoteAccess
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.frames import StateFrame, records
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["GradientFrame"]


class GradientFrame(StateFrame):
    """Frame of ``value_and_grad``: holds the differentiated values and those that the function assigns.

    Args:
        parent: The frame around it, if any.
    """

    def __init__(self, parent: StateFrame | None) -> None:
        super().__init__()
        self.spmd = parent is not None and parent.spmd
        self.eager = parent is None or parent.eager
        self.fuses_collectives = parent is not None and parent.fuses_collectives
        self.parent = parent
        self.written: dict[int, Variable] = {}
        self.remote = RemoteAccess()
        self.taps = GradientTaps()
        self._tapped: set[int] = set()
        self._compute_dtypes: dict[int, Any] = {}
        self._fetchable = parent is None or parent.is_innermost_trace()
        self._values: dict[int, Any] = {}
        self._read: set[int] = set()
        self._shards_and_taps: dict[int, tuple[Any, Any]] = {}

    def is_innermost_trace(self) -> bool:
        """Returns whether no other JAX transformation is active inside or around ``value_and_grad``."""
        return self._fetchable and super().is_innermost_trace()

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Draws through the outer frame."""
        if self.parent is None:
            return iterator.draw(optional=optional)
        return self.parent.draw(iterator, optional=optional)

    def refuse_to_loop(self, dataset: Dataset) -> None:
        """Forwards to the outer frame."""
        if self.parent is not None:
            self.parent.refuse_to_loop(dataset)

    def use_group(self, group: ReplicaGroup) -> None:
        """Forwards to the outer frame."""
        if self.parent is not None:
            self.parent.use_group(group)

    def differentiate(self, variables: Sequence[Variable], values: Sequence[Any]) -> None:
        """Sets the values of ``variables`` that the gradients are taken with respect to."""
        self.open()
        self._values = {
            id(variable): value for variable, value in zip(variables, values, strict=True)
        }

    def compute_in(self, dtype: DTypeLike, variables: Sequence[Variable]) -> None:
        """Lets the function read ``variables`` in ``dtype``; gradients keep the dtype of the variables."""
        self._compute_dtypes = dict.fromkeys(map(id, variables), dtype)

    def as_computed(self, variable: Variable, value: Tensor) -> Any:
        """Returns a value in the dtype that the function computes in."""
        if id(variable) in self._compute_dtypes:
            return value.astype(self._compute_dtypes[id(variable)])
        return value if self.parent is None else self.parent.as_computed(variable, value)

    def differentiates_shards(self, variable: Variable) -> bool:
        """Returns whether a variable is differentiated with respect to its shards.

        An outer gradient computation would need the gradient of the full value.
        """
        is_divided = isinstance(variable, FullyShardedVariable)
        return is_divided and isinstance(self.parent, ReplicaFrame) and not records()

    def tap_shards(self, variables: Sequence[Variable], taps: Sequence[Any]) -> None:
        """Sets the taps that collect the replica's own gradients of variables that are sharded here."""
        self._shards_and_taps = {
            id(v): (self._values.pop(id(v)), tap) for v, tap in zip(variables, taps, strict=True)
        }

    def fetches_on_read(self, variable: Variable) -> bool:
        """Returns whether a differentiated variable is fetched only when it is read.

        Unused inputs of a program cost nothing, but eagerly a full embedding table would be transferred.
        """
        return self.eager and isinstance(variable, BaseRemoteVariable)

    def tap(self, variables: Sequence[Variable], anchor: Tensor) -> None:
        """Sets the differentiated remote variables, and the anchor that their gradients depend on."""
        self._tapped = {id(variable) for variable in variables}
        self.taps.open(anchor)

    def has_read(self, variable: Variable) -> bool:
        """Returns whether the function has read a variable, or rows of it."""
        return id(variable) in self._read

    def read(self, variable: Variable) -> Any:
        """Returns the value in this frame, or in the outer frame."""
        self._read.add(id(variable))
        if isinstance(variable, BaseRemoteVariable):
            return self.remote.current(variable, self._read_remote(variable))
        if isinstance(variable, FullyShardedVariable):
            return self.full_value(variable)
        if id(variable) in self._values:
            return self._values[id(variable)]
        return self._read_outer(variable)

    def full_value(self, variable: FullyShardedVariable, row: IntegerLike = None) -> Any:
        """Returns the value in this frame, or in the outer frame."""
        self._read.add(id(variable))
        # Each read gathers again, inside the differentiated function. So its transposition, which is the
        # reduce-scatter of the gradient, stands where the backward pass reaches this read, among other
        # computation, and not all of them at the end.
        if id(variable) in self._shards_and_taps:
            return variable.shard_layout.all_gather_with_tap(
                *self._shards_and_taps[id(variable)], row
            )
        if id(variable) not in self._values and self.parent is not None:
            return self.parent.full_value(variable, row)
        value = self._values.get(id(variable))
        value = variable._eager_value() if value is None else value
        return value if row is None else value[row]

    def _read_outer(self, variable: Variable) -> Any:
        return self.parent.read(variable) if self.parent is not None else variable._eager_value()

    def _read_remote(self, variable: BaseRemoteVariable) -> Any:
        self._check_no_server_update(variable)
        if id(variable) in self._values:
            self.taps.note_full_read(variable)
        elif id(variable) not in self._tapped:
            return self._read_outer(variable)
        else:
            self.check_fetchable(variable)
            self._values[id(variable)] = self.taps.full_value(variable, self._read_outer(variable))
        return self._values[id(variable)]

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows whose gradient is recorded if the variable is differentiated."""
        self._read.add(id(variable))
        self._check_no_server_update(variable)

        def read(numbers: ArrayLike) -> Any:
            outer = self.parent
            rows = variable.rows_now(numbers) if outer is None else outer.rows(variable, numbers)
            tapped = id(variable) in self._tapped
            return self.taps.rows(variable, numbers, rows) if tapped else rows

        return self.remote.current_rows(variable, indices, read)

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Keeps the update until the gradient has been computed."""
        self.remote.note(variable, update, operand)

    def _check_no_server_update(self, variable: BaseRemoteVariable) -> None:
        if self.remote.updates_before_read(variable):
            raise VariableError(
                f"Variable {variable.name!r} is read inside value_and_grad after an update that only "
                "its server can apply. Update it after value_and_grad."
            )

    def write(self, variable: Variable, value: Tensor) -> None:
        """Keeps the value until the gradient has been computed."""
        # From here on the function reads what it assigned, of which the shard is no longer the source.
        self._shards_and_taps.pop(id(variable), None)
        self._values[id(variable)] = value
        self.written[id(variable)] = variable

    def take_written_values(self) -> list[Any]:
        """Returns the last value of each assigned variable, and forgets the values of the differentiation.

        JAX finds leaked tracers if a frame still has them when the differentiation ends.
        """
        values = [self._values[key] for key in self.written]
        self._values, self._shards_and_taps = {}, {}
        return values

    def update_in_turn(self, variable: Variable, update: Update, operand: PyTree) -> None:
        """Forwards the update, if it does not depend on differentiated values."""
        if self.parent is not None and not any(map(is_tracer, jax.tree.leaves(operand))):
            self.parent.update_in_turn(variable, update, operand)
        else:
            raise VariableError(
                f"Variable {variable.name!r} was created outside of the strategy's scope and cannot be "
                "updated by several replicas inside value_and_grad. Create it inside "
                "strategy.scope(), or update it after value_and_grad."
            )
