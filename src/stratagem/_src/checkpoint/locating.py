"""Finds the checkpoints in a directory, and waits for new ones."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator

from stratagem._src.checkpoint.async_save import wait_for_saves
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath, checkpoint_path
from stratagem._src.checkpoint.format.directories import numbered
from stratagem._src.checkpoint.format.object_path import ObjectPath
from stratagem._src.checkpoint.format.tree_metadata import METADATA_FILE, STEP_METADATA_FILE
from stratagem._src.checkpoint.tensorflow.locations import (
    STATE_FILE,
    latest_in_state_file,
    saved_time,
)

__all__ = ["checkpoints_iterator", "complete_checkpoints", "latest_checkpoint"]

_POLL_INTERVAL_SECONDS = 1.0


def complete_checkpoints(
    directory: CheckpointPath, prefix: str | None = None
) -> list[tuple[int, CheckpointPath]]:
    """Returns the checkpoints in a directory, oldest first, each with its save time in ns.

    Args:
        directory: The directory; it need not exist.
        prefix: The name without the number; default any.
    """
    found = []
    for number, path in numbered(directory, prefix):
        saved = _saved_time(path)
        if saved is not None:
            found.append((saved, number, path))
    return [(time, path) for time, _, path in sorted(found)]


def _saved_time(path: CheckpointPath) -> int | None:
    """Returns when a checkpoint was saved, in ns; ``None`` if it is not complete."""
    if isinstance(path, ObjectPath):
        # Stores note times in whole seconds only.
        try:
            contents = (path / STEP_METADATA_FILE).read_bytes()
        except FileNotFoundError:
            return None
        is_complete = (path / METADATA_FILE).exists()
        return int(json.loads(contents)["commit_timestamp_nsecs"]) if is_complete else None
    with contextlib.suppress(OSError):
        return (path / METADATA_FILE).stat().st_mtime_ns
    return None


def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> str | None:
    """Returns the path of the latest checkpoint in a directory, or ``None``.

    It waits for a pending save of this process into the directory. Of our checkpoints and the one that
    TensorFlow's ``checkpoint`` file names it is the one that was written last.

    Args:
        checkpoint_dir: The directory.
        latest_filename: The name of the file in which TensorFlow lists checkpoints; default
            ``"checkpoint"``. We write none.

    >>> import tempfile
    >>> latest_checkpoint(tempfile.mkdtemp()) is None
    True
    """
    directory = checkpoint_path(checkpoint_dir)
    wait_for_saves(directory)
    found = complete_checkpoints(directory)[-1:]
    theirs = latest_in_state_file(directory, latest_filename or STATE_FILE)
    if theirs is not None:
        found.append((saved_time(theirs), theirs))
    return str(max(found)[1]) if found else None


def checkpoints_iterator(
    checkpoint_dir: str | os.PathLike[str],
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yields the latest checkpoint of a directory whenever there is a new one, for an evaluator.

    Of several checkpoints that are saved between two iterations, only the latest is yielded.

    Args:
        checkpoint_dir: The directory; it need not exist yet.
        min_interval_secs: Minimum number of seconds between two checkpoints.
        timeout: Seconds to wait for a new checkpoint before the iteration ends; default no limit.
        timeout_fn: Called after each ``timeout``; the iteration ends if it returns ``True``, otherwise it
            waits again.

    >>> import tempfile
    >>> import stratagem as sg
    >>> directory = tempfile.mkdtemp()
    >>> path = sg.train.Checkpoint(v=sg.Variable(1.0)).save(directory + "/ckpt")
    >>> [found == path for found in sg.train.checkpoints_iterator(directory, timeout=0.0)]
    [True]
    """
    last: str | None = None
    while True:
        begun = time.monotonic()
        new = _wait_for_new(checkpoint_dir, last, timeout)
        if new is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        last = new
        yield new
        time.sleep(max(0.0, begun + min_interval_secs - time.monotonic()))


def _wait_for_new(
    directory: str | os.PathLike[str], last: str | None, timeout: float | None
) -> str | None:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        latest = latest_checkpoint(directory)
        if latest is not None and latest != last:
            return latest
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        time.sleep(_POLL_INTERVAL_SECONDS if left is None else min(_POLL_INTERVAL_SECONDS, left))
