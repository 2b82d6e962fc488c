"""``TracingFrame``: the traced values of variables; a function and a replica have one each."""

from __future__ import annotations

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem._src.core.types import (
    ArrayLike,
    PyTree,
    Tensor,
)
from stratagem._src.execution.remote.reads import read_all, read_rows
from stratagem._src.execution.remote.remote_access import RemoteAccess
from stratagem._src.execution.variable_reads import read_first
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracing import active_trace, in_trace, is_tracer
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.frames import StateFrame
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["TracingFrame"]


class TracingFrame(StateFrame):
    """Holds the traced values of variables; a variable becomes an input of the program when first read."""

    holds_shards = True

    def __init__(self) -> None:
        super().__init__()
        self._trace: Any = None
        # Keeps the variables alive: their ids are keys here, and traced operations hold weak references.
        self._read: list[Variable] = []
        self.written: dict[int, Variable] = {}
        self.created: list[Variable] = []
        self._initial_values: list[Any] = []
        self.remote = RemoteAccess()
        self._values: dict[int, Any] = {}
        self._fetched_later: dict[tuple[int, int], Any] = {}

    def open(self) -> None:
        """Notes the trace that this frame belongs to; must be called once that trace is active."""
        super().open()
        self._trace = active_trace()

    def in_own_trace(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the operations of the block part of this frame's own trace."""
        return in_trace(self._trace)

    def close(self) -> None:
        """Drops the traced values, which are invalid once tracing has ended."""
        self._trace = None
        self._values = {}
        self._fetched_later = {}
        self._initial_values = []

    def read(self, variable: Variable) -> Any:
        """Returns the current traced value."""
        if isinstance(variable, BaseRemoteVariable):
            return self.remote.current(variable, self._fetched(variable))
        return self._current(variable)

    def _current(self, variable: Variable) -> Any:
        if id(variable) not in self._values:
            self._read.append(variable)
            shape = variable.replica_shape if self.spmd else variable.program_shape
            self._values[id(variable)] = read_first(variable, shape, self._trace)
        return self._values[id(variable)]

    def _fetched(self, variable: BaseRemoteVariable) -> Any:
        """Returns the full value of a remote variable, fetched after the updates that it depends on."""
        # A value that no server-side update precedes is fetched once, before the program. Each later value
        # is a separate marker: `split_into_stages` sends the updates first.
        after = self.remote.updates_before_read(variable)
        if not after:
            return self._current(variable)
        key = (id(variable), after)
        if key not in self._fetched_later:
            self.check_fetchable(variable)
            self.use_group(variable.group)
            self._read.append(variable)
            self._fetched_later[key] = read_all(variable, after)
        return self._fetched_later[key]

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows that are fetched before the program runs, with this trace's own updates applied."""
        self.use_group(variable.group)
        self._read.append(variable)
        after = self.remote.updates_before_read(variable)
        return self.remote.current_rows(
            variable, indices, lambda numbers: read_rows(variable, numbers, after)
        )

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Notes an update that is sent after the program has run."""
        self.use_group(variable.group)
        self.remote.note(variable, update, operand)

    def write(self, variable: Variable, value: Tensor) -> None:
        """Sets the traced value."""
        self._values[id(variable)] = variable.constrained(value)
        self.written[id(variable)] = variable

    def written_values(self) -> list[Any]:
        """Returns the last value of each written variable."""
        return [self._values[key] for key in self.written]

    def initial_values(self) -> list[Any]:
        """Returns the initial value of each created variable."""
        return [jnp.asarray(value) for value in self._initial_values]

    def create(self, variable: Variable, initial_value: ArrayLike) -> None:
        """Notes a new variable; if its initial value is traced, it gets that value after tracing."""
        self.created.append(variable)
        self._initial_values.append(initial_value)
        if not variable.initialized and not is_tracer(initial_value):
            evaluate_now(lambda: variable.initialize(initial_value))
        elif not variable.initialized and variable.expects_value:
            # The other processes already have this variable and do not take part in computing its initial
            # value. This process gets theirs, so a placeholder will do.
            zeros = np.zeros(initial_value.shape, initial_value.dtype)
            evaluate_now(lambda: variable.initialize(zeros))
        in_program = variable.replica_value if self.spmd else variable.program_value
        self._values[id(variable)] = in_program(initial_value)
