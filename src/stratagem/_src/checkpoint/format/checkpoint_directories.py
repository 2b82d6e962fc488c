"""New, leftover and removed checkpoints, on a file system or in an object store."""

from __future__ import annotations

import contextlib
import time
from typing import TypeAlias

from stratagem._src.checkpoint.format import directories
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.checkpoint.format.directories import NameTakenError, NewDirectory, numbered
from stratagem._src.checkpoint.format.new_objects import (
    NewObjects,
    are_visible,
    remove_leftover_objects,
    remove_objects,
)
from stratagem._src.checkpoint.format.object_path import ObjectPath

__all__ = [
    "NewCheckpoint",
    "is_visible",
    "new_checkpoint",
    "numbered_checkpoint",
    "remove_checkpoint",
    "remove_leftovers",
]

NewCheckpoint: TypeAlias = NewDirectory | NewObjects
"""A checkpoint that is being written, and appears when it is complete."""

_POLL_INTERVAL_SECONDS = 0.1


def new_checkpoint(path: CheckpointPath) -> NewCheckpoint:
    """Starts a checkpoint at a path; it replaces an existing one."""
    return _started(path, replace=True)


def _started(path: CheckpointPath, *, replace: bool) -> NewCheckpoint:
    if isinstance(path, ObjectPath):
        return NewObjects(path, replace=replace)
    return NewDirectory(path, replace=replace)


def numbered_checkpoint(prefix: CheckpointPath, after: int) -> tuple[NewCheckpoint, int]:
    """Starts a checkpoint with a number above ``after`` and above all existing ones.

    Args:
        prefix: The path without the number.
        after: A lower bound.
    """
    number = max([after, *(taken for taken, _ in numbered(prefix.parent, prefix.name))])
    while True:
        number += 1
        # Another process may take the number first.
        with contextlib.suppress(NameTakenError):
            return _started(prefix.with_name(f"{prefix.name}-{number}"), replace=False), number


def is_visible(hidden: CheckpointPath, token: str, seconds: float) -> bool:
    """Returns whether this process sees a checkpoint that another one writes.

    Args:
        hidden: The directory of the arrays.
        token: Its token: another disk may have a directory of the same name.
        seconds: Timeout: network file systems show new files with a delay.
    """
    deadline = time.monotonic() + seconds
    while True:
        if isinstance(hidden, ObjectPath):
            found = are_visible(hidden, token)
        else:
            found = directories.is_visible(hidden, token)
        if found or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_INTERVAL_SECONDS)


def remove_checkpoint(path: CheckpointPath) -> None:
    """Removes a checkpoint, so that it is never found half removed."""
    if isinstance(path, ObjectPath):
        remove_objects(path)
    else:
        directories.remove_directory(path)


def remove_leftovers(directory: CheckpointPath) -> None:
    """Removes what processes left behind that were killed while they saved or removed a checkpoint."""
    if isinstance(directory, ObjectPath):
        remove_leftover_objects(directory)
    else:
        directories.remove_leftovers(directory)
