"""Checking a checkpoint against what is to be restored, all of it before anything changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stratagem._src.checkpoint.objects import COUNTER, CheckpointObjects
from stratagem._src.checkpoint.optimizer_saving import stage_optimizer
from stratagem._src.checkpoint.saved_values import Change, Restorable
from stratagem._src.checkpoint_format.saved_state import SavedArray, SavedCheckpoint
from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.parameter_server.client.saving import WholeVariable, check_held

__all__ = ["stage_all"]

_INNER = "value"


def stage_all(
    objects: CheckpointObjects, saved: SavedCheckpoint, path: Path
) -> tuple[list[Change], list[str]]:
    """Checks everything; returns what is left to do, and what of the checkpoint nobody asks for.

    Raises:
        NotFoundError: If the checkpoint lacks something.
        InvalidArgumentError: If something does not fit.
        DataLossError: If a file is damaged.
    """
    values: dict[str, Restorable] = {**objects.local}
    values |= {name: WholeVariable(variable) for name, variable in objects.remote.items()}
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
    of_optimizers = [stage_optimizer(name, objects, saved) for name in objects.optimizers]
    check_held(objects.remote.values())
    _begin(arrays, objects)
    changes = [value.stage(arrays[name]) for name, value in values.items()]
    # After the variables: the state to begin with may depend on their values.
    changes += [change for stage in of_optimizers for change in stage()]
    asked_for = {*names.values(), COUNTER}
    left = [name for name in saved.names if name not in asked_for]
    left += [name for name in saved.optimizers if name not in objects.optimizers]
    return changes, sorted(left)


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


def _begin(arrays: dict[str, SavedArray], objects: CheckpointObjects) -> None:
    for name, array in arrays.items():
        if name not in objects.remote:
            array.begin()
