"""Saves and restores the state of an optimizer."""

from __future__ import annotations

import functools

from stratagem._src.checkpoint.format.reader import OF_VARIABLES, SHARED, owner_key
from stratagem._src.checkpoint.format.saved_state import (
    OptimizerArrays,
    SavedArray,
    SavedCheckpoint,
)
from stratagem._src.checkpoint.format.tree_metadata import Key
from stratagem._src.checkpoint.objects import CheckpointObjects, Keys
from stratagem._src.checkpoint.saved_values import Change, PlainArray, SavedValue, SavedVariable
from stratagem._src.core.types import ArrayLike
from stratagem._src.parameter_server.client.remote_arrays import StateArray, state_arrays
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.state_actions import drop_state, has_state
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.training.optimizer_state import (
    RestoredState,
    StateEntry,
    check_array,
    check_leaves,
)
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["OptimizerRestore", "known_variables", "local_values", "remote_arrays"]

_LOCAL_ONLY = frozenset({"iterations", "learning_rate"})


def local_values(name: str, objects: CheckpointObjects) -> dict[Keys, SavedValue]:
    """Returns the values of an optimizer's state in this process, by key path."""
    return {
        _keys(name, entry, objects): _value(entry.value)
        for entry in objects.optimizers[name].state_entries() or ()
    }


def known_variables(name: str, objects: CheckpointObjects) -> list[str | int] | None:
    """Returns the names of this process's variables that an optimizer has state for."""
    optimizer = objects.optimizers[name]
    if optimizer.state_entries() is None:
        return None
    names = map(objects.name_of, optimizer.updated_variables)
    return [number if known is None else known for number, known in enumerate(names)] or None


def remote_arrays(name: str, objects: CheckpointObjects) -> dict[Keys, StateArray]:
    """Returns the arrays of an optimizer's state on parameter servers, by key path."""
    function = objects.optimizers[name].server_function
    found = {}
    for variable in objects.remote.values():
        if has_state(variable, function):
            for array in state_arrays(variable, function):
                entry = StateEntry(array.leaf.name, variable, None)
                found[_keys(name, entry, objects)] = array
    return found


def _value(value: ArrayLike) -> SavedValue:
    if is_own_variable(value):
        return SavedVariable(value)
    return PlainArray(lambda: value, lambda _: None)


def _keys(name: str, entry: StateEntry, objects: CheckpointObjects) -> Keys:
    state = objects.keys[name]
    if entry.owner is None:
        return (*state, Key(SHARED), Key(entry.leaf))
    of: Keys
    if isinstance(entry.owner, int):
        of = (owner_key(entry.owner),)
    else:
        known = objects.name_of(entry.owner)
        of = (
            (owner_key(_number(name, entry.owner, objects)),)
            if known is None
            else objects.keys[known]
        )
    return (*state, Key(OF_VARIABLES), Key(entry.leaf), *of)


def _number(name: str, variable: Variable, objects: CheckpointObjects) -> int:
    numbered = objects.optimizers[name].updated_variables
    return next(number for number, v in enumerate(numbered) if v is variable)


# --- restoring ----------------------------------------------------------------------------------------


class OptimizerRestore:
    """The restore of one optimizer, after the check that the saved state fits it.

    Args:
        name: The optimizer's name.
        objects: The objects of the Checkpoint.
        reader: The saved checkpoint.

    Attributes:
        on_servers: Arrays on parameter servers, each with its saved array.

    Raises:
        InvalidArgumentError: If the saved state is that of another optimizer.
    """

    def __init__(self, name: str, objects: CheckpointObjects, reader: SavedCheckpoint) -> None:
        self._optimizer = objects.optimizers[name]
        saved = reader.optimizer(name)
        label = f"Optimizer {name!r}"
        self.on_servers: list[tuple[StateArray, SavedArray]] = []
        self._without_state: list[RemoteVariable] = []
        for variable_name, variable in objects.remote.items():
            found = _for_remote(self._optimizer, label, variable_name, variable, saved)
            if found is None:
                self._without_state.append(variable)
            else:
                self.on_servers.extend(found)
        self._here = _for_local(saved, objects)
        if self._here is not None:
            self._optimizer.check_state(self._here, label, _variables(saved, objects))

    def stage(self) -> list[Change]:
        """Reads the state of this process; returns the changes that set it, and drop stale server state."""
        optimizer = self._optimizer
        restored = None if self._here is None else _read(self._here)
        drops = [
            functools.partial(drop_state, variable, optimizer.server_function)
            for variable in self._without_state
        ]
        return [*drops, lambda: optimizer.restore_state(restored)]


def _for_local(saved: OptimizerArrays, objects: CheckpointObjects) -> RestoredState | None:
    """Returns the saved state for this process's variables, not read yet."""
    here = {name: v for name, v in objects.variables.items() if not isinstance(v, RemoteVariable)}
    of = {
        leaf: [
            (owner if isinstance(owner, int) else here[owner], array)
            for owner, array in arrays.items()
            if isinstance(owner, int) or owner in here
        ]
        for leaf, arrays in saved.of.items()
    }
    of = {leaf: arrays for leaf, arrays in of.items() if arrays}
    if not saved.shared and not of:
        return None
    return RestoredState(saved.shared, of)


def _variables(saved: OptimizerArrays, objects: CheckpointObjects) -> list[Variable] | None:
    """Returns the variables that a saved state is for, if all of them are known."""
    if saved.variables is None:
        return None
    found = [objects.variables.get(str(name)) for name in saved.variables]
    known = [v for v in found if v is not None and not isinstance(v, RemoteVariable)]
    return known if len(known) == len(found) else None


def _read(state: RestoredState) -> RestoredState:
    every = [*state.shared.values(), *(a for values in state.of.values() for _, a in values)]
    for array in every:
        array.start_read()
    return RestoredState(
        {leaf: array.read() for leaf, array in state.shared.items()},
        {leaf: [(v, array.read()) for v, array in arrays] for leaf, arrays in state.of.items()},
    )


def _for_remote(
    optimizer: Optimizer,
    label: str,
    name: str,
    variable: RemoteVariable,
    saved: OptimizerArrays,
) -> list[tuple[StateArray, SavedArray]] | None:
    """Returns the state arrays of a remote variable with their saved arrays; ``None`` if there are none.

    A step count that was saved once for all local variables becomes the count of each remote variable.
    """
    found = {leaf: arrays[name] for leaf, arrays in saved.of.items() if name in arrays}
    if not found:
        return None
    label = f"{label} for {name!r}"
    arrays = state_arrays(variable, optimizer.server_function)
    wanted = [array.leaf.name for array in arrays]
    found = {leaf: array for leaf, array in saved.shared.items() if leaf not in _LOCAL_ONLY} | found
    check_leaves(found, wanted, label, _LOCAL_ONLY)
    for array in arrays:
        check_array(array.leaf.name, found[array.leaf.name], array.leaf, label)
    return [(array, found[array.leaf.name]) for array in arrays]
