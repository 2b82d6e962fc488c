"""``VariableSnapshot``: the values of a strategy's variables at a boundary of an elastic run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.locking import STORAGE_LOCK
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable_options import VariableAggregation

__all__ = ["VariableSnapshot", "take_snapshot"]


class VariableSnapshot:
    """The values of variables, equal in every worker.

    Args:
        variables: The variables, in creation order.
        contents: The value of each: an array on the devices, or a host array.
        stored: The array that each variable stored, to detect changes.
        expected: Values for variables that this worker has not created yet.
    """

    def __init__(
        self,
        variables: Sequence[DistributedVariable],
        contents: Sequence[Any],
        stored: Sequence[Any],
        expected: Sequence[np.ndarray[Any, Any]] = (),
    ) -> None:
        self.variables = list(variables)
        self.contents = list(contents)
        self.stored = list(stored)
        self.expected = list(expected)

    def move_to_host(self, since: Sequence[tuple[DistributedVariable, Any]]) -> None:
        """Copies all values to host memory, before the backend and its devices are shut down.

        Args:
            since: Variables that were created after the boundary, with their initial values.
        """
        for variable, first in since:
            if not any(variable is known for known in self.variables):
                self.variables.append(variable)
                self.contents.append(first)
                del self.expected[:1]  # the variable has taken it
        for number, (variable, content) in enumerate(
            zip(self.variables, self.contents, strict=True)
        ):
            if not isinstance(content, np.ndarray):
                self.contents[number] = np.asarray(variable.group.local_view(content))
        self.stored = []

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Returns the values of all variables, including those that are not created yet."""
        return [*self.contents, *self.expected]

    def restore(self) -> None:
        """Assigns every variable its value."""
        self.stored = []
        for number, (variable, content) in enumerate(
            zip(self.variables, self.contents, strict=True)
        ):
            if isinstance(variable, SyncOnReadVariable):
                variable.restore_total(content)
            elif isinstance(variable, FullyShardedVariable):
                variable.restore_snapshot(variable.place(content))
            else:
                if isinstance(content, np.ndarray):
                    content = self.contents[number] = variable.place(content)
                variable.restore_snapshot(content)
            self.stored.append(variable.snapshot())


def take_snapshot(
    extended: MultiWorkerExtended, before: VariableSnapshot | None
) -> VariableSnapshot:
    """Returns the current values of a strategy's variables.

    Mirrored variables are not copied. Per-replica (``ON_READ``) values that have changed are reduced, all
    together, and sharded variables are gathered: each worker has the full values, so a lost worker loses
    nothing.

    Args:
        extended: The strategy's ``extended``.
        before: The snapshot at the previous boundary.

    Raises:
        InvalidArgumentError: If the replicas' values of a variable cannot be aggregated.
    """
    variables = extended.created_variables()
    known = (
        {}
        if before is None
        else {
            id(variable): (stored, content)
            for variable, stored, content in zip(
                before.variables, before.stored, before.contents, strict=False
            )
        }
    )
    with STORAGE_LOCK:
        stored = [variable.snapshot() for variable in variables]
    contents = list(stored)
    changed: list[int] = []
    for number, variable in enumerate(variables):
        if isinstance(variable, (SyncOnReadVariable, FullyShardedVariable)):
            of_before = known.get(id(variable))
            # Arrays are immutable: the same object means that the variable has not been written since, and
            # that the reduced value of the previous boundary is still right.
            if of_before is not None and of_before[0] is stored[number]:
                contents[number] = of_before[1]
            else:
                _check_combines(variable)
                changed.append(number)
    for number, total in _totals(extended, variables, changed).items():
        contents[number] = total
    extended.forget_first_values()
    return VariableSnapshot(variables, contents, stored, extended.expected)


def _totals(
    extended: MultiWorkerExtended, variables: Sequence[DistributedVariable], changed: Sequence[int]
) -> dict[int, Any]:
    totals: dict[int, Any] = {}
    for op in ReduceOp:
        combined_by_op = {
            n: variable.per_replica()
            for n in changed
            if isinstance(variable := variables[n], SyncOnReadVariable)
            and variable.aggregation.reduce_op is op
        }
        numbers, values = list(combined_by_op), list(combined_by_op.values())
        if numbers:
            combined = extended.reduce_values(op, values)
            totals |= {n: np.asarray(value) for n, value in zip(numbers, combined, strict=True)}
    for number in changed:
        if number not in totals:
            totals[number] = variables[number].value_on_host()
    return totals


def _check_combines(variable: DistributedVariable) -> None:
    on_read = isinstance(variable, SyncOnReadVariable)
    if on_read and variable.aggregation is VariableAggregation.NONE:
        raise InvalidArgumentError(
            f"Variable {variable.name!r} (ON_READ) has aggregation NONE, so the values of a lost worker "
            "would be lost. In an elastic run create it with aggregation SUM, MEAN or ONLY_FIRST_REPLICA."
        )
