"""Variables on parameter servers and their optimizer state, as arrays of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import cloudpickle
import numpy as np

from stratagem._src.parameter_server.client.parameter_client import ParameterClient, ReadRequest
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.shards import VariableShard
from stratagem._src.parameter_server.client.state_actions import (
    ReadState,
    WriteState,
    call_on_state,
)
from stratagem._src.parameter_server.server.checkpoint_service import Piece
from stratagem._src.parameter_server.server.server_optimizer import OptimizerFunction, StateLeaf
from stratagem._src.parameter_server.server.stored_array import Array

__all__ = ["RemoteArray", "StateArray", "VariableArray", "check_held", "state_arrays"]


class RemoteArray(Protocol):
    """An array whose rows are on parameter servers."""

    variable: RemoteVariable
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def pieces(self) -> list[tuple[int, Piece]]:
        """Returns each shard's rows and the index of its server; empty if the array is not split by row."""

    def read_rows(self, begin: int, end: int) -> Array:
        """Returns a snapshot of consecutive rows; the full value of a scalar."""

    def write_rows(self, begin: int, rows: Array) -> None:
        """Sets consecutive rows; the full value of an array without rows."""


class VariableArray:
    """The value of a variable, over all its shards."""

    def __init__(self, variable: RemoteVariable) -> None:
        self.variable = variable
        self.shape: tuple[int, ...] = tuple(variable.program_shape)
        self.dtype: np.dtype[Any] = np.dtype(variable.dtype)

    def pieces(self) -> list[tuple[int, Piece]]:
        """Returns one piece per shard."""
        return [
            (shard.server, Piece(shard.id, None, 0, shard.start, 0, shard.stop - shard.start))
            for shard in self.variable.shards
        ]

    def read_rows(self, begin: int, end: int) -> Array:
        """Returns a snapshot of consecutive rows; the full value of a scalar."""
        if not self.shape:
            return self.variable.pull()
        parts = self.variable.storage.pull(
            [
                ReadRequest(shard.id, shard.server, range(first, last))
                for shard, first, last in _shards_with_rows(self.variable, begin, end)
            ]
        )
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def write_rows(self, begin: int, rows: Array) -> None:
        """Sets consecutive rows."""
        if not self.shape:
            self.variable.assign(rows)
            return
        for shard, first, last in _shards_with_rows(self.variable, begin, begin + len(rows)):
            offset = shard.start + first - begin
            part = rows[offset : offset + last - first]
            self.variable.storage.fill(shard.id, shard.server, first, part)

    def mismatch(self, saved: Any) -> str | None:
        """Returns why the saved array does not fit this variable; ``None`` if it does."""
        if (saved.shape, saved.dtype) == (self.shape, self.dtype):
            return None
        ours, theirs = (f"{x.dtype.name}{list(x.shape)}" for x in (self, saved))
        return f"is {ours}, but the checkpoint has {theirs}"


class StateArray:
    """One array of the optimizer state of a variable, over all its shards.

    Args:
        variable: The variable.
        function: The optimizer's pickled ``OptimizerFunction``.
        optimizer: The optimizer's id on the servers.
        index: The index of the array in the state's leaves.
        leaf: Its name, shape and dtype for the unsharded variable.
    """

    def __init__(
        self,
        variable: RemoteVariable,
        function: bytes,
        optimizer: str,
        index: int,
        leaf: StateLeaf,
    ) -> None:
        self.variable = variable
        self.function = function
        self._optimizer = optimizer
        self._index = index
        self.leaf = leaf
        self.shape = leaf.shape
        self.dtype = leaf.dtype

    def pieces(self) -> list[tuple[int, Piece]]:
        """Returns one piece per shard; empty if the array does not have the variable's rows."""
        if not self.leaf.by_row:
            return []
        return [
            (server, piece._replace(optimizer=self._optimizer, leaf=self._index))
            for server, piece in VariableArray(self.variable).pieces()
        ]

    def read_rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows; an array without rows is combined to one value for all shards."""
        if self.leaf.by_row:
            parts = [
                self._read(shard, first, last)
                for shard, first, last in _shards_with_rows(self.variable, begin, end)
            ]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        values = np.stack([self._read(shard) for shard in self.variable.shards])
        # Integers are step counts: take that of the shard with the most steps.
        is_count = np.issubdtype(self.dtype, np.integer) or self.dtype == np.bool_
        value = (values.max(axis=0) if is_count else values.mean(axis=0)).astype(self.dtype)
        return value[begin:end] if self.shape else value

    def write_rows(self, begin: int, rows: Array) -> None:
        """Sets consecutive rows; an array without rows is set on all shards."""
        if not self.leaf.by_row:
            for shard in self.variable.shards:
                self._call(shard, WriteState(), self._place(0, -1), rows)
            return
        for shard, first, last in _shards_with_rows(self.variable, begin, begin + len(rows)):
            offset = shard.start + first - begin
            part = rows[offset : offset + last - first]
            self._call(shard, WriteState(), self._place(first, last), part)

    def _read(self, shard: VariableShard, begin: int = 0, end: int = -1) -> Array:
        part: Array = self._call(shard, ReadState(), self._place(begin, end))
        return part

    def _place(self, begin: int, end: int) -> Array:
        return np.array([self._index, begin, end])

    def _call(self, shard: VariableShard, action: Any, *operands: Array) -> Any:
        return call_on_state(self.variable, shard, self.function, action, operands)


def state_arrays(variable: RemoteVariable, function: bytes) -> list[StateArray]:
    """Returns the arrays of a variable's optimizer state, whether or not the state exists yet.

    Args:
        variable: The variable.
        function: The optimizer's pickled ``OptimizerFunction``.
    """
    optimizer: OptimizerFunction = cloudpickle.loads(function)
    leaves = optimizer.describe_state(variable.program_shape, variable.dtype)
    return [
        StateArray(variable, function, optimizer.optimizer, index, leaf)
        for index, leaf in enumerate(leaves)
    ]


def check_held(variables: Iterable[RemoteVariable]) -> None:
    """Checks that all servers are up and hold these variables.

    Raises:
        PSUnavailableError: If a server is lost, or does not hold a variable.
    """
    shards: dict[ParameterClient, list[VariableShard]] = {}
    for variable in variables:
        shards.setdefault(variable.storage, []).extend(variable.shards)
    for client, held in shards.items():
        client.check_held([(shard.server, shard.id) for shard in held])


def _shards_with_rows(
    variable: RemoteVariable, begin: int, end: int
) -> Iterator[tuple[VariableShard, int, int]]:
    """Yields the shards that contain some of these rows, with the range of local rows."""
    shards: Sequence[VariableShard] = variable.shards
    if begin == end:
        yield shards[0], 0, 0
        return
    for shard in shards:
        first, last = max(begin, shard.start), min(end, shard.stop)
        if first < last:
            yield shard, first - shard.start, last - shard.start
