"""Checking a checkpoint against what is to be restored, all of it before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stratagem._src.checkpoint.format.saved_state import SavedArray, SavedCheckpoint
from stratagem._src.checkpoint.objects import COUNTER, CheckpointObjects
from stratagem._src.checkpoint.optimizer_saving import OptimizerRestore
from stratagem._src.checkpoint.saved_values import (
    Change,
    IteratorPlace,
    Restorable,
    SavedVariable,
)
from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.parameter_server.client.remote_arrays import WholeVariable, check_held
from stratagem._src.parameter_server.client.remote_checkpoint import RemoteRestore
from stratagem._src.variables.stand_ins import held_variables, when_built

__all__ = ["stage_all"]

_INNER = "value"


def stage_all(
    objects: CheckpointObjects, saved: SavedCheckpoint, path: Path, num_workers: int
) -> tuple[list[Change], list[str]]:
    """Checks everything; returns what is left to do, and what of the checkpoint nobody asks for.

    Args:
        objects: What is to be restored.
        saved: The checkpoint.
        path: Its path, for messages.
        num_workers: How many workers restore it together.

    Raises:
        NotFoundError: If the checkpoint lacks something.
        InvalidArgumentError: If something does not fit.
        DataLossError: If a file is damaged.
    """
    on_servers = {name: WholeVariable(variable) for name, variable in objects.remote.items()}
    values: dict[str, Restorable] = {**objects.local, **on_servers}
    names = _found_names(values, objects, saved, path)
    arrays = {name: saved.array(found) for name, found in names.items()}
    misfits = [
        f"{name!r} {why}"
        for name, value in values.items()
        if (why := value.misfit(arrays[name])) is not None
    ]
    if misfits:
        raise InvalidArgumentError(
            f"What is to be restored from {path} must be as it was saved: {'; '.join(misfits)}. Create it "
            "as it was saved."
        )
    for name, value in objects.plain.items():
        if isinstance(value, IteratorPlace):
            _check_place(name, saved.of_each_worker(names[name]), num_workers)
    optimizers = [OptimizerRestore(name, objects, saved) for name in objects.optimizers]
    check_held(objects.remote.values())
    variables = RemoteRestore([(on_servers[name], arrays[name]) for name in on_servers])
    states = RemoteRestore([pair for optimizer in optimizers for pair in optimizer.on_servers])
    for restore in (variables, states):
        restore.verify()
    for name in objects.local:
        arrays[name].begin()
    changes = [value.stage(arrays[name]) for name, value in objects.local.items()]
    # After the variables: the state to begin with may depend on their values.
    changes += [variables.load, states.load]
    changes += [change for optimizer in optimizers for change in optimizer.stage()]
    changes += [_stage_later(name, one, saved, path) for name, one in objects.unbuilt.items()]
    asked_for = {*names.values(), COUNTER}
    left = [name for name in saved.names if name not in asked_for]
    left += [name for name in saved.optimizers if name not in objects.optimizers]
    return changes, sorted(left)


def _stage_later(name: str, unbuilt: Any, saved: SavedCheckpoint, path: Path) -> Change:
    """Reads what an object is to get when it is built: by then the checkpoint may be gone."""
    arrays = {
        found.removeprefix(f"{name}/"): saved.array(found)
        for found in saved.names
        if found.startswith(f"{name}/")
    }
    if not arrays:
        raise NotFoundError(f"The checkpoint {path} has no {name!r}; it has {sorted(saved.names)}.")
    values = {key: array.whole() for key, array in arrays.items()}

    # Given the object, rather than holding it: what waits must not keep alive what it waits for.
    def restore(built: Any) -> None:
        held = held_variables(built) or {}
        why = [
            f"{name}/{key} {misfit}"
            for key, variable in held.items()
            if key in arrays and (misfit := SavedVariable(variable).misfit(arrays[key])) is not None
        ]
        if held.keys() != arrays.keys():
            why.append(f"{name!r} has {len(held)} variables, but the checkpoint {len(arrays)}")
        if why:
            raise InvalidArgumentError(
                f"What is restored from {path} must be as it was saved: {'; '.join(why)}. Create it as it "
                "was saved."
            )
        for key, variable in held.items():
            if variable.initialized:
                variable.assign(values[key])
            else:  # created by the function that is being traced, which would compute a first value
                variable.initialize(values[key])

    return lambda: when_built(unbuilt, restore)


def _check_place(name: str, saved: Sequence[SavedArray], num_workers: int) -> None:
    """Checks that workers of another number than those that have saved their places can share one."""
    if len(saved) != num_workers and len({part.whole().tobytes() for part in saved}) > 1:
        raise InvalidArgumentError(
            f"The iterator {name!r} was saved by {len(saved)} workers, each of which read its own part of "
            f"the data, and {num_workers} are to go on. Restore it with as many workers, begin the dataset "
            "anew, or let every worker read all of it (AutoShardPolicy.DATA)."
        )


def _found_names(
    wanted: Iterable[str], objects: CheckpointObjects, saved: SavedCheckpoint, path: Path
) -> dict[str, str]:
    """Returns what each is called in the checkpoint."""
    have = set(saved.names)
    found, missing = {}, []
    for name in wanted:
        # Libraries with boxes around arrays, as flax, call what is in a box its value.
        found[name] = f"{name}/{_INNER}" if name not in have else name
        if found[name] not in have:
            missing.append(name)
    if missing:
        raise NotFoundError(f"The checkpoint {path} has no {missing}; it has {sorted(have)}.")
    without = [name for name in objects.optimizers if name not in saved.optimizers]
    if without:
        raise NotFoundError(
            f"The checkpoint {path} has no optimizers {without}; it has {sorted(saved.optimizers)}."
        )
    return found
