"""How the state of an optimizer gets into a checkpoint and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.saving import drop_state, has_state, state_arrays
from stratagem._src.training.array_file import ArrayFile
from stratagem._src.training.checkpoint_format import CheckpointReader
from stratagem._src.training.checkpoint_index import SavedOptimizer, SavedState, state_array_name
from stratagem._src.training.checkpoint_objects import CheckpointObjects
from stratagem._src.training.local_state import LocalState, check_leaves
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.training.saved_values import SavedValue
from stratagem._src.variables.variable import Variable

__all__ = ["optimizer_values", "stage_optimizer"]

Steps = list[Callable[[], None]]


def optimizer_values(
    name: str, objects: CheckpointObjects
) -> tuple[SavedOptimizer, dict[str, SavedValue]]:
    """Returns what there is to save of an optimizer, and its arrays by their names."""
    optimizer = objects.optimizers[name]
    values: dict[str, SavedValue] = {}
    here = None
    local = optimizer.local_state()
    if local is not None:
        arrays = {state_array_name(name, k): SavedValue(v) for k, v in enumerate(local.values)}
        variables = local.variables
        names = None if variables is None else tuple(map(objects.name_of, variables))
        here = SavedState(tuple(arrays), local.leaves, names)
        values.update(arrays)
    on_servers = {}
    for variable_name, variable in _remote(objects).items():
        if has_state(variable, optimizer.server_function):
            leaves = state_arrays(variable, optimizer.server_function)
            arrays = {
                state_array_name(name, k, variable_name): SavedValue(leaf)
                for k, leaf in enumerate(leaves)
            }
            on_servers[variable_name] = SavedState(
                tuple(arrays), tuple(x.leaf.name for x in leaves)
            )
            values.update(arrays)
    return SavedOptimizer(here, on_servers), values


def stage_optimizer(
    name: str, objects: CheckpointObjects, reader: CheckpointReader
) -> Callable[[], Steps]:
    """Checks that what is saved of an optimizer is its own.

    Returns:
        Checks and reads the files, and returns what sets the optimizer's state.

    Raises:
        InvalidArgumentError: If it is the state of another optimizer.
    """
    optimizer, saved = objects.optimizers[name], reader.index.optimizers[name]
    _check_placement(name, objects, saved)
    local = None if saved.here is None else _local_state(saved.here, objects, reader)
    if local is not None:
        optimizer.check_local_state(local, f"Optimizer {name!r}")
    on_servers = [
        (variable, _arrays_on_servers(optimizer, name, variable_name, variable, saved, reader))
        for variable_name, variable in _remote(objects).items()
    ]

    def stage() -> Steps:
        steps: Steps = []
        for variable, arrays in on_servers:
            if arrays is None:
                function = optimizer.server_function
                steps.append(functools.partial(drop_state, variable, function))
            else:
                steps += [value.stage(file) for value, file in arrays]
        restored = local
        if local is not None:
            values = tuple(file.whole() for file in local.values)
            restored = dataclasses.replace(local, values=values)
        return [*steps, lambda: optimizer.restore_local_state(restored)]

    return stage


def _local_state(
    saved: SavedState, objects: CheckpointObjects, reader: CheckpointReader
) -> LocalState:
    """Returns a state whose values are still in their files."""
    variables: tuple[Variable | None, ...] | None = None
    if saved.variables is not None:
        found = objects.variables
        variables = tuple(None if name is None else found.get(name) for name in saved.variables)
    return LocalState(saved.leaves, tuple(map(reader.file, saved.arrays)), variables)


def _arrays_on_servers(
    optimizer: Optimizer,
    name: str,
    variable_name: str,
    variable: RemoteVariable,
    saved: SavedOptimizer,
    reader: CheckpointReader,
) -> list[tuple[SavedValue, ArrayFile]] | None:
    """Returns the arrays of the state beside a variable with their files; ``None`` if none was saved."""
    state = saved.on_servers.get(variable_name)
    if state is None:
        return None
    files = [reader.file(array) for array in state.arrays]
    arrays = state_arrays(variable, optimizer.server_function)
    check_leaves(
        state.leaves,
        [(file.shape, file.dtype.name) for file in files],
        [array.leaf for array in arrays],
        f"Optimizer {name!r} for {variable_name!r}",
    )
    return [(SavedValue(array), file) for array, file in zip(arrays, files, strict=True)]


def _check_placement(name: str, objects: CheckpointObjects, saved: SavedOptimizer) -> None:
    """Checks that state is asked for where it was: on servers for each variable, here for all."""
    remote = _remote(objects)
    here: set[str | None] = set()
    if saved.here is not None and saved.here.arrays:
        here = set(saved.here.variables or ())
    moved = {
        "on parameter servers": {variable for variable in remote if variable in here},
        "in this process": (saved.on_servers.keys() & objects.variables.keys()) - remote.keys(),
    }
    for where, variables in moved.items():
        if variables:
            raise InvalidArgumentError(
                f"Optimizer {name!r} has state {where} for {sorted(variables)}, but the "
                "checkpoint's was kept elsewhere, in another form. Leave the optimizer out of the "
                "Checkpoint to restore the variables alone."
            )


def _remote(objects: CheckpointObjects) -> dict[str, RemoteVariable]:
    return {
        name: variable
        for name, variable in objects.variables.items()
        if isinstance(variable, RemoteVariable)
    }
