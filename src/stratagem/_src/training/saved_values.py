"""What can be saved and restored: variables of every kind, and optimizer state on servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.saving import (
    StateArray,
    read_in_blocks,
    write_in_blocks,
)
from stratagem._src.training.array_file import ArrayFile
from stratagem._src.training.local_state import static_shape
from stratagem._src.training.worker_agreement import spans_workers
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable

__all__ = ["SavedValue"]

Array = np.ndarray[Any, Any]


class SavedValue(NamedTuple):
    """A variable, an array of an optimizer's state, or an array that was restored and not used yet."""

    what: Variable | StateArray | Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return static_shape(self.what) if isinstance(self.what, Variable) else self.what.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return np.dtype(self.what.dtype)

    @property
    def is_read_together(self) -> bool:
        """Whether its value is known only when all workers read it."""
        return isinstance(self.what, SyncOnReadVariable) and spans_workers(self.what)

    @property
    def is_of_this_worker(self) -> bool:
        """Whether other workers have values of their own under the same name."""
        if isinstance(self.what, Variable):
            return not isinstance(self.what, RemoteVariable) and not spans_workers(self.what)
        return not isinstance(self.what, StateArray)

    def read(self) -> SavedValue:
        """Returns the present value, which does not change any more."""
        (value,) = self.blocks()
        return SavedValue(value)

    def blocks(self) -> Iterable[Array]:
        """Returns the value in consecutive blocks of rows."""
        if isinstance(self.what, StateArray):
            return self.what.read_in_blocks()
        if isinstance(self.what, RemoteVariable):
            return read_in_blocks(self.what)
        return [self.what.numpy() if isinstance(self.what, Variable) else self.what]

    def stage(self, file: ArrayFile) -> Callable[[], None]:
        """Checks that the value can be set to what is in a file, and returns what sets it.

        What is on servers is moved in pieces, so its file is read again then. Anything else has been
        read by the time that this returns.
        """
        what = self.what
        if isinstance(what, StateArray):
            file.verify()
            return lambda: what.write_in_blocks(file.rows)
        if isinstance(what, RemoteVariable):
            file.verify()
            return lambda: write_in_blocks(what, file.rows)
        assert isinstance(what, Variable)
        what.snapshot()  # raises if it has never had a value
        value = file.whole()
        return lambda: _assign(what, value)


def _assign(variable: Variable, value: Any) -> None:
    variable.assign(value)
