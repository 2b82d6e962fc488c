"""``stage_all``: checks a checkpoint against all objects and reads it, before anything changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.checkpoint.format.saved_state import NamedValue, SavedArray, SavedCheckpoint
from stratagem._src.checkpoint.objects import COUNTER, CheckpointObjects
from stratagem._src.checkpoint.optimizer_saving import OptimizerRestore
from stratagem._src.checkpoint.saved_values import (
    Change,
    IteratorPosition,
    Restorable,
    SavedVariable,
)
from stratagem._src.core.errors import InvalidArgumentError, NotFoundError
from stratagem._src.core.types import Leaf
from stratagem._src.parameter_server.client.remote_arrays import VariableArray, check_held
from stratagem._src.parameter_server.client.remote_checkpoint import RemoteRestore
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.variables.foreign_variables import (
    existing_variables,
    trackable_variables,
    when_built,
)
from stratagem._src.variables.variable import Variable

__all__ = ["Staged", "report_restored", "stage_all"]

_BOX_VALUE = "value"


class Staged(NamedTuple):
    """What a restore will do.

    Attributes:
        changes: The changes to apply.
        unused: The names in the checkpoint that no object uses.
        deferred: By the name of each object that is not built, the names in the checkpoint that wait for
            its other variables; empty once they are restored.
    """

    changes: list[Change]
    unused: list[str]
    deferred: dict[str, set[str]]


def stage_all(
    objects: CheckpointObjects, saved: SavedCheckpoint, path: CheckpointPath, num_workers: int
) -> Staged:
    """Checks everything and reads it.

    Args:
        objects: The objects to restore.
        saved: The checkpoint.
        path: Its path, for messages.
        num_workers: Number of workers that restore it together.

    Raises:
        NotFoundError: If an object is missing in the checkpoint.
        InvalidArgumentError: If a shape or dtype differs.
        DataLossError: If a file is corrupt.
    """
    on_servers = {name: VariableArray(variable) for name, variable in objects.remote.items()}
    values: dict[str, Restorable] = {**objects.local, **on_servers}
    names = _found_names(values, objects, saved, path)
    arrays = {name: saved.array(found) for name, found in names.items()}
    mismatches = [
        f"{name!r} {why}"
        for name, value in values.items()
        if (why := value.mismatch(arrays[name])) is not None
    ]
    if mismatches:
        raise InvalidArgumentError(
            f"Objects must match the checkpoint {path} in shape and dtype: {'; '.join(mismatches)}. Create "
            "them as they were saved."
        )
    for name, value in objects.plain.items():
        if isinstance(value, IteratorPosition):
            _check_iterator_positions(name, saved.of_each_worker(names[name]), num_workers)
    optimizers = [OptimizerRestore(name, objects, saved) for name in objects.optimizers]
    check_held(objects.remote.values())
    variables = RemoteRestore([(on_servers[name], arrays[name]) for name in on_servers])
    states = RemoteRestore([pair for optimizer in optimizers for pair in optimizer.on_servers])
    for restore in (variables, states):
        restore.verify()
    for name in objects.local:
        arrays[name].start_read()
    changes = [value.stage(arrays[name]) for name, value in objects.local.items()]
    # States after variables: an optimizer's initial state may depend on the values.
    changes += [variables.load, states.load]
    changes += [change for optimizer in optimizers for change in optimizer.stage()]
    used = {*names.values(), COUNTER}
    deferred: dict[str, set[str]] = {}
    for name, one in objects.unbuilt.items():
        of_one, restored, deferred[name] = _stage_unbuilt(name, one, saved, path)
        changes += of_one
        used |= restored
    for waiting in deferred.values():
        waiting -= used
        waiting &= set(saved.names)  # of TensorFlow's, some are not for variables
    used = used.union(*deferred.values())
    unused = [name for name in saved.names if name not in used]
    unused += [name for name in saved.optimizers if name not in objects.optimizers]
    return Staged(changes, sorted(unused), deferred)


def _stage_unbuilt(
    name: str, unbuilt: Leaf, saved: SavedCheckpoint, path: CheckpointPath
) -> tuple[list[Change], set[str], set[str]]:
    """Checks the variables that an unbuilt object has already, which are restored with everything else.

    The values of the others are read now, too, because the checkpoint may be gone when they are created.

    Returns:
        The changes, the names in the checkpoint that they restore, and those that wait.
    """
    deferred = saved.deferred(name, unbuilt)
    present = existing_variables(unbuilt)
    now = _fitting(name, deferred.values_for(unbuilt, present, False), present, path)
    restored = {named.name for named in now.values()}
    waiting = set(deferred.names) - restored

    # The built object is an argument, not a capture: a pending restore must not keep the object alive.
    def restore(built: Leaf) -> None:
        held = trackable_variables(built) or {}
        values = _fitting(name, deferred.values_for(built, held, True), held, path)
        for key, (of, value) in values.items():
            if of not in restored:  # the program may have changed it since
                _set(held[key], value)
        waiting.clear()

    def restore_now() -> None:
        for key, (_, value) in now.items():
            _set(present[key], value)
        when_built(unbuilt, restore)

    return [restore_now], restored, waiting


def _fitting(
    name: str,
    values: Mapping[str, NamedValue],
    held: Mapping[str, Variable],
    path: CheckpointPath,
) -> Mapping[str, NamedValue]:
    """Returns the values, if they fit the variables."""
    why = [
        f"{name}/{key} {mismatch}"
        for key, (_, value) in values.items()
        if (mismatch := SavedVariable(held[key]).mismatch(value)) is not None
    ]
    if why:
        raise InvalidArgumentError(
            f"Objects must match the checkpoint {path} in shape and dtype: {'; '.join(why)}. Create "
            "them as they were saved."
        )
    return values


def _set(variable: Variable, value: np.ndarray[Any, Any]) -> None:
    if variable.initialized:
        variable.assign(value)
    else:  # created by the function being traced, which would compute the initial value
        variable.initialize(value)


def _check_iterator_positions(name: str, saved: Sequence[SavedArray], num_workers: int) -> None:
    """Checks that a different number of workers can resume: only if all saved the same position."""
    if len(saved) != num_workers and len({part.read().tobytes() for part in saved}) > 1:
        raise InvalidArgumentError(
            f"The iterator {name!r} was saved by {len(saved)} workers, each at its own position in its "
            f"shard of the data, and cannot be resumed by {num_workers}. Restore it with as many workers, "
            "restart the dataset, or let every worker read all of it (AutoShardPolicy.DATA)."
        )


def _found_names(
    wanted: Iterable[str], objects: CheckpointObjects, saved: SavedCheckpoint, path: CheckpointPath
) -> dict[str, str]:
    """Returns the name of each object in the checkpoint."""
    have = set(saved.names)
    found, missing = {}, []
    for name in wanted:
        # Libraries that box arrays, such as flax, save the array of a box as its "value".
        found[name] = f"{name}/{_BOX_VALUE}" if name not in have else name
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


def report_restored(path: str | os.PathLike[str], seconds: float) -> None:
    """Tells the monitoring of the job, if there is one, what was restored and how long it took."""
    current = recorder()
    if current is not None:
        name = os.path.basename(os.fspath(path).rstrip("/"))
        current.note("recovery", f"restored {name} in {seconds:.1f} s")
