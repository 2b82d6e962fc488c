"""Operations on the optimizer state of a variable on a parameter server: read, write, make, drop."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np

from stratagem._src.parameter_server.client.parameter_client import UpdateRequest
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.shards import VariableShard
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import DENSE_FUNCTION, ServerFunction
from stratagem._src.parameter_server.server.server_optimizer import (
    OptimizerFunction,
    OptimizerState,
)
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = ["ReadState", "WriteState", "call_on_state", "drop_state", "has_state", "make_state"]


def has_state(variable: RemoteVariable, function: bytes) -> bool:
    """Returns whether an optimizer has state for any shard of a variable."""
    return any(
        call_on_state(variable, shard, function, _HasState(), ()) for shard in variable.shards
    )


def make_state(variable: RemoteVariable, shard: VariableShard, function: bytes) -> None:
    """Creates an optimizer's state for a shard, if there is none yet."""
    call_on_state(variable, shard, function, _MakeState(), ())


def drop_state(variable: RemoteVariable, function: bytes) -> None:
    """Drops an optimizer's state for a variable; the next step starts from the initial state."""
    for shard in variable.shards:
        call_on_state(variable, shard, function, _DropState(), ())


def call_on_state(
    variable: RemoteVariable,
    shard: VariableShard,
    function: bytes,
    action: _StateAction,
    operands: tuple[Array, ...],
) -> Any:
    """Runs an action on the optimizer state of a shard, on the shard's server.

    Args:
        variable: The variable.
        shard: The shard.
        function: The optimizer's pickled ``OptimizerFunction``.
        action: The action.
        operands: The action's operands.
    """
    body = cloudpickle.dumps(_OnState(function, action))
    request = UpdateRequest(shard.id, shard.server, DENSE_FUNCTION, operands, body)
    return variable.storage.call([request])[0]


class _StateAction:
    """An action on the optimizer state of a stored array."""

    makes_state = True
    drops_state = False

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> Any:
        raise NotImplementedError


class _HasState(_StateAction):
    makes_state = False

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> bool:
        return state is not None


class _MakeState(_StateAction):
    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> None:
        pass


class _DropState(_StateAction):
    makes_state = False
    drops_state = True

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> None:
        pass


class ReadState(_StateAction):
    """Reads rows of one array of the state; all of an array without rows."""

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> Array:
        """Returns the rows."""
        assert state is not None
        index, begin, end = operands[0].tolist()
        leaf = np.asarray(state.leaves[index])
        return leaf[begin:end].copy() if state.by_row[index] else leaf


class WriteState(_StateAction):
    """Sets rows of one array of the state; all of an array without rows."""

    def act(self, state: OptimizerState | None, operands: tuple[Array, ...]) -> None:
        """Sets the rows."""
        assert state is not None
        place, values = operands
        index, begin, end = place.tolist()
        if state.by_row[index]:
            state.make_writable()
            state.leaves[index][begin:end] = values
        else:
            state.leaves[index] = np.array(values)


class _OnState(ServerFunction):
    """Finds or creates the optimizer state of a stored array, and runs an action on it.

    Args:
        optimizer: The pickled ``OptimizerFunction``.
        action: The action.
    """

    is_update = False

    def __init__(self, optimizer: bytes, action: _StateAction) -> None:
        self._pickled = optimizer
        self._action = action
        self._optimizer: OptimizerFunction = cloudpickle.loads(optimizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return _OnState, (self._pickled, self._action)

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> Any:
        """Runs the action."""
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
