"""How the state of an optimizer gets into a checkpoint and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stratagem._src.checkpoint.objects import CheckpointObjects, Keys
from stratagem._src.checkpoint.saved_values import Change, PlainArray, SavedValue, SavedVariable
from stratagem._src.checkpoint_format.reader import OF_VARIABLES, SHARED, owner_key
from stratagem._src.checkpoint_format.saved_state import (
    OptimizerArrays,
    SavedArray,
    SavedCheckpoint,
)
from stratagem._src.checkpoint_format.tree_metadata import Key
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.saving import (
    StateArray,
    drop_state,
    has_state,
    state_arrays,
)
from stratagem._src.training.local_state import (
    RestoredState,
    StateEntry,
    check_array,
    check_leaves,
)
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.variables.variable import Variable

__all__ = ["known_variables", "local_values", "remote_arrays", "stage_optimizer"]

_ONLY_HERE = frozenset({"iterations", "learning_rate"})


def local_values(name: str, objects: CheckpointObjects) -> dict[Keys, SavedValue]:
    """Returns what there is to save of an optimizer's state in this process, by the ways to it."""
    return {
        _keys(name, entry, objects): _value(entry.value)
        for entry in objects.optimizers[name].state_entries() or ()
    }


def known_variables(name: str, objects: CheckpointObjects) -> list[str | int] | None:
    """Returns what the variables of this process are called for which an optimizer has state."""
    optimizer = objects.optimizers[name]
    if optimizer.state_entries() is None:
        return None
    names = map(objects.name_of, optimizer.updated_variables)
    return [number if known is None else known for number, known in enumerate(names)] or None


def remote_arrays(name: str, objects: CheckpointObjects) -> dict[Keys, StateArray]:
    """Returns what there is to save of an optimizer's state on parameter servers."""
    function = objects.optimizers[name].server_function
    found = {}
    for variable in objects.remote.values():
        if has_state(variable, function):
            for array in state_arrays(variable, function):
                entry = StateEntry(array.leaf.name, variable, None)
                found[_keys(name, entry, objects)] = array
    return found


def _value(value: Any) -> SavedValue:
    if isinstance(value, Variable):
        return SavedVariable(value)
    return PlainArray(value, lambda _: None)


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


def stage_optimizer(
    name: str, objects: CheckpointObjects, reader: SavedCheckpoint
) -> Callable[[], list[Change]]:
    """Checks that what is saved of an optimizer is its own.

    Returns:
        Checks and reads the files, and returns what sets the optimizer's state.

    Raises:
        InvalidArgumentError: If it is the state of another optimizer.
    """
    optimizer, saved = objects.optimizers[name], reader.optimizer(name)
    label = f"Optimizer {name!r}"
    on_servers = {
        variable_name: (variable, _for_remote(optimizer, label, variable_name, variable, saved))
        for variable_name, variable in objects.remote.items()
    }
    here = _for_local(saved, objects)
    if here is not None:
        optimizer.check_state(here, label, _variables(saved, objects))

    def stage() -> list[Change]:
        changes: list[Change] = []
        for variable, arrays in on_servers.values():
            if arrays is None:
                changes.append(functools.partial(drop_state, variable, optimizer.server_function))
            else:
                for target, array in arrays:
                    array.verify()
                    changes.append(functools.partial(target.write_in_blocks, array.rows))
        restored = None if here is None else _read(here)
        return [*changes, lambda: optimizer.restore_state(restored)]

    return stage


def _for_local(saved: OptimizerArrays, objects: CheckpointObjects) -> RestoredState | None:
    """Returns the state for variables of this process, whose values are still in their files."""
    if saved.in_order is not None:
        return RestoredState(in_order=saved.in_order)
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
    """Returns the variables that a state is for, if all of them are known."""
    if saved.variables is None:
        return None
    found = [objects.variables.get(str(name)) for name in saved.variables]
    known = [v for v in found if v is not None and not isinstance(v, RemoteVariable)]
    return known if len(known) == len(found) else None


def _read(state: RestoredState) -> RestoredState:
    every = [*state.shared.values(), *(a for values in state.of.values() for _, a in values)]
    for array in (*every, *(state.in_order or ())):
        array.begin()
    return RestoredState(
        {leaf: array.whole() for leaf, array in state.shared.items()},
        {leaf: [(v, array.whole()) for v, array in arrays] for leaf, arrays in state.of.items()},
        None if state.in_order is None else [array.whole() for array in state.in_order],
    )


def _for_remote(
    optimizer: Optimizer,
    label: str,
    name: str,
    variable: RemoteVariable,
    saved: OptimizerArrays,
) -> list[tuple[StateArray, SavedArray]] | None:
    """Returns the arrays of the state beside a variable with what was saved; ``None`` if nothing was.

    What was counted once for all variables of a process is the count of each.
    """
    found = {leaf: arrays[name] for leaf, arrays in saved.of.items() if name in arrays}
    in_order = saved.in_order_on_servers.get(name)
    if not found and in_order is None:
        return None
    label = f"{label} for {name!r}"
    arrays = state_arrays(variable, optimizer.server_function)
    wanted = [array.leaf.name for array in arrays]
    if in_order is not None:
        if len(in_order) != len(wanted):
            check_leaves([f"{len(in_order)} arrays"], wanted, label, ())
        found = dict(zip(wanted, in_order, strict=True))
    found = {leaf: array for leaf, array in saved.shared.items() if leaf not in _ONLY_HERE} | found
    check_leaves(found, wanted, label, _ONLY_HERE)
    for array in arrays:
        check_array(array.leaf.name, found[array.leaf.name], array.leaf, label)
    return [(array, found[array.leaf.name]) for array in arrays]
