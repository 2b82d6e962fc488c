"""Reading and writing whole variables and their optimizer state piece by piece, for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np

from stratagem._src.checkpoint_format.saved_state import SavedArray
from stratagem._src.parameter_server.client.initial_value import row_blocks
from stratagem._src.parameter_server.client.parameter_client import (
    ParameterClient,
    ReadRequest,
    UpdateRequest,
)
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.shards import VariableShard
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import WHOLE_FUNCTION, ServerFunction
from stratagem._src.parameter_server.server.server_optimizer import (
    OptimizerFunction,
    OptimizerState,
    StateLeaf,
)
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = [
    "StateArray",
    "WholeVariable",
    "check_held",
    "drop_state",
    "has_state",
    "state_arrays",
    "write_in_blocks",
]


class WholeVariable:
    """A variable over all its shards."""

    def __init__(self, variable: RemoteVariable) -> None:
        self._variable = variable
        self.shape: tuple[int, ...] = tuple(variable.program_shape)
        self.dtype: np.dtype[Any] = np.dtype(variable.dtype)

    def read_rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows as they are at one moment; everything of a scalar."""
        if not self.shape:
            return self._variable.pull()
        parts = self._variable.storage.pull(
            [
                ReadRequest(shard.id, shard.server, range(first, last))
                for shard, first, last in _shards_of(self._variable, begin, end)
            ]
        )
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def misfit(self, saved: SavedArray) -> str | None:
        """Returns why it cannot be set to what was saved; ``None`` if it can."""
        if (saved.shape, saved.dtype) == (self.shape, self.dtype):
            return None
        ours, theirs = (f"{x.dtype.name}{list(x.shape)}" for x in (self, saved))
        return f"is {ours}, but the checkpoint has {theirs}"

    def stage(self, saved: SavedArray) -> Callable[[], None]:
        """Checks what was saved, and returns what sets the variable to it piece by piece."""
        saved.verify()
        return lambda: write_in_blocks(self._variable, saved.rows)


def _shards_of(
    variable: RemoteVariable, begin: int, end: int
) -> Iterator[tuple[VariableShard, int, int]]:
    """Yields the shards that have some of these rows, and which of their own rows these are."""
    for shard in variable.shards:
        first, last = max(begin, shard.start), min(end, shard.stop)
        if first < last or begin == end:
            yield shard, first - shard.start, last - shard.start
            if begin == end:
                return


def write_in_blocks(variable: RemoteVariable, rows: Callable[[int, int], Array]) -> None:
    """Sets a variable's value piece by piece.

    Args:
        variable: The variable.
        rows: Returns rows from a first to a last one.
    """
    if not variable.program_shape:
        variable.assign(rows(0, 1))
        return
    for shard in variable.shards:
        for begin, end in _blocks(shard, variable.program_shape, variable.dtype):
            part = rows(shard.start + begin, shard.start + end)
            variable.storage.fill(shard.id, shard.server, begin, part)


def _blocks(shard: VariableShard, shape: Sequence[int], dtype: Any) -> Iterator[tuple[int, int]]:
    return row_blocks(shape, dtype, 0, shard.stop - shard.start)


class StateArray:
    """One array of the state that an optimizer keeps for a variable, over all its shards.

    Args:
        variable: The variable.
        function: The optimizer's pickled ``OptimizerFunction``.
        index: Which array of the state.
        leaf: What it is like for the whole variable.
    """

    def __init__(
        self, variable: RemoteVariable, function: bytes, index: int, leaf: StateLeaf
    ) -> None:
        self._variable = variable
        self._function = function
        self._index = index
        self._by_row = leaf.by_row
        self.leaf = leaf
        self.shape = leaf.shape
        self.dtype = leaf.dtype

    def read_rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows; of what has none, one value for all shards."""
        if self._by_row:
            parts = [
                self._read(shard, first, last)
                for shard, first, last in _shards_of(self._variable, begin, end)
            ]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        values = np.stack([self._read(shard) for shard in self._variable.shards])
        # A count of steps is that of the busiest shard.
        whole = np.issubdtype(self.dtype, np.integer) or self.dtype == np.bool_
        value = (values.max(axis=0) if whole else values.mean(axis=0)).astype(self.dtype)
        return value[begin:end] if self.shape else value

    def write_in_blocks(self, rows: Callable[[int, int], Array]) -> None:
        """Sets it piece by piece; ``rows`` returns rows from a first to a last one."""
        for shard in self._variable.shards:
            if not self._by_row:
                self._call(shard, _WriteState(), _place(self._index), rows(0, -1))
                continue
            for begin, end in _blocks(shard, self.shape, self.dtype):
                part = rows(shard.start + begin, shard.start + end)
                self._call(shard, _WriteState(), _place(self._index, begin, end), part)

    def _read(self, shard: VariableShard, begin: int = 0, end: int = -1) -> Array:
        part: Array = self._call(shard, _ReadState(), _place(self._index, begin, end))
        return part

    def _call(self, shard: VariableShard, action: _StateAction, *operands: Array) -> Any:
        return _call_on(self._variable, shard, self._function, action, operands)


def state_arrays(variable: RemoteVariable, function: bytes) -> list[StateArray]:
    """Returns the arrays of the state that an optimizer keeps for a variable, made or not.

    Args:
        variable: The variable.
        function: The optimizer's pickled ``OptimizerFunction``.
    """
    optimizer: OptimizerFunction = cloudpickle.loads(function)
    leaves = optimizer.describe_state(variable.program_shape, variable.dtype)
    return [StateArray(variable, function, index, leaf) for index, leaf in enumerate(leaves)]


def has_state(variable: RemoteVariable, function: bytes) -> bool:
    """Returns whether an optimizer has made state for some shard of a variable."""
    return any(_call_on(variable, shard, function, _HasState(), ()) for shard in variable.shards)


def drop_state(variable: RemoteVariable, function: bytes) -> None:
    """Makes an optimizer begin anew with a variable."""
    for shard in variable.shards:
        _call_on(variable, shard, function, _DropState(), ())


def check_held(variables: Iterable[RemoteVariable]) -> None:
    """Checks that all servers are there and hold these variables.

    Raises:
        PSUnavailableError: If one is gone, or has lost a variable.
    """
    shards: dict[ParameterClient, list[VariableShard]] = {}
    for variable in variables:
        shards.setdefault(variable.storage, []).extend(variable.shards)
    for client, held in shards.items():
        client.check_held([(shard.server, shard.id) for shard in held])


def _call_on(
    variable: RemoteVariable,
    shard: VariableShard,
    function: bytes,
    action: _StateAction,
    operands: tuple[Array, ...],
) -> Any:
    body = cloudpickle.dumps(_OnState(function, action))
    request = UpdateRequest(shard.id, shard.server, WHOLE_FUNCTION, operands, body)
    return variable.storage.call([request])[0]


def _place(index: int, begin: int = 0, end: int = -1) -> Array:
    return np.array([index, begin, end])


class _StateAction:
    """Something to do with the state that an optimizer keeps for a stored array."""

    makes_state = True
    drops_state = False

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> Any:
        raise NotImplementedError


class _HasState(_StateAction):
    makes_state = False

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> bool:
        return state is not None


class _DropState(_StateAction):
    makes_state = False
    drops_state = True

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> None:
        pass


class _ReadState(_StateAction):
    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> Array:
        assert state is not None
        index, begin, end = operands[0].tolist()
        leaf = np.asarray(state.leaves[index])
        return leaf[begin:end].copy() if state.by_row[index] else leaf


class _WriteState(_StateAction):
    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> None:
        assert state is not None
        place, values = operands
        index, begin, end = place.tolist()
        if state.by_row[index]:
            state.make_writable()
            state.leaves[index][begin:end] = values
        else:
            state.leaves[index] = np.array(values)


class _OnState(ServerFunction):
    """Finds, or makes, the state of an optimizer and does something with it.

    Args:
        optimizer: The pickled ``OptimizerFunction``.
        action: What to do.
    """

    is_update = False

    def __init__(self, optimizer: bytes, action: _StateAction) -> None:
        self._pickled = optimizer
        self._action = action
        self._optimizer: OptimizerFunction = cloudpickle.loads(optimizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _OnState, (self._pickled, self._action)

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> Any:
        """Does it."""
        with stored.lock, on_server(stored.dtype):
            states = stored.optimizer_states
            state = states.get(self._optimizer.optimizer)
            if state is None and self._action.makes_state:
                make = (
                    self._optimizer.make_row_state if stored.shape else self._optimizer.make_state
                )
                state = states[self._optimizer.optimizer] = make(stored)
            if self._action.drops_state:
                states.pop(self._optimizer.optimizer, None)
            return self._action.act(state, operands)
