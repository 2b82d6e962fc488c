"""``CheckpointManager``: keeps the latest checkpoints and removes older ones."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from stratagem._src.checkpoint.async_save import wait_for_saves
from stratagem._src.checkpoint.checkpoint import Checkpoint
from stratagem._src.checkpoint.format.checkpoint_directories import (
    remove_checkpoint,
    remove_leftovers,
)
from stratagem._src.checkpoint.format.checkpoint_path import (
    CheckpointPath,
    checkpoint_path,
    write_atomically,
)
from stratagem._src.checkpoint.locating import complete_checkpoints
from stratagem._src.checkpoint.options import CheckpointOptions
from stratagem._src.checkpoint.tensorflow.locations import latest_in_state_file
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import IntegerLike

__all__ = ["CheckpointManager"]

_NANOSECONDS_PER_HOUR = 3600e9


class CheckpointManager:
    """Saves numbered checkpoints in one directory, and keeps the latest of them.

    Args:
        checkpoint: The ``Checkpoint`` to save.
        directory: The directory.
        max_to_keep: Number of checkpoints to keep; ``None`` for all. An older one is removed when a new one
            is complete.
        keep_checkpoint_every_n_hours: Keeps a checkpoint permanently instead of removing it, if it was
            saved at least this long after the last permanent one.
        checkpoint_name: The name of the checkpoints, without the number.
        step_counter: A variable or number that counts steps, for ``checkpoint_interval``.
        checkpoint_interval: ``save`` is a no-op until this many steps after the last save.
        init_fn: Called by ``restore_or_initialize`` if there is no checkpoint.

    >>> import tempfile
    >>> import stratagem as sg
    >>> step = sg.Variable(0)
    >>> checkpoint = sg.train.Checkpoint(step=step)
    >>> manager = sg.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)
    >>> manager.restore_or_initialize() is None
    True
    >>> for _ in range(3):
    ...     _ = step.assign_add(1)
    ...     path = manager.save()
    >>> [path.rpartition("/")[2] for path in manager.checkpoints]
    ['ckpt-2', 'ckpt-3']
    >>> manager.latest_checkpoint == path
    True
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: IntegerLike = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep <= 0:
            raise InvalidArgumentError(
                f"max_to_keep is the number of checkpoints to keep, at least 1, got {max_to_keep}. Use "
                "None to keep all."
            )
        if (checkpoint_interval is None) != (step_counter is None):
            raise InvalidArgumentError(
                "checkpoint_interval is counted in steps: pass step_counter with it, and only with it."
            )
        self._checkpoint = checkpoint
        self._directory = os.fspath(directory)
        self._path = checkpoint_path(directory)
        self._max_to_keep = max_to_keep
        self._keep_every = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step: int | None = None
        self._before_saves: list[Callable[[], None]] = []
        self._after_saves: list[Callable[[str], None]] = []
        self._permanent = _PermanentCheckpoints(self._path / f".{checkpoint_name}.kept.json")

    @property
    def checkpoint(self) -> Checkpoint:
        """The ``Checkpoint`` that is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The directory."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """Minimum number of steps between two saves."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints, oldest first, without permanent ones.

        Waits for a pending save.
        """
        wait_for_saves(self._path)
        return [str(path) for _, path in self._managed()]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the latest checkpoint, or ``None``.

        Before the first save, in a directory of TensorFlow's manager, this is TensorFlow's latest.
        """
        paths = self.checkpoints
        if paths:
            return paths[-1]
        theirs = latest_in_state_file(self._path)
        return None if theirs is None else str(theirs)

    def save(
        self,
        checkpoint_number: IntegerLike = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Saves a checkpoint, and removes old ones when it is complete.

        Args:
            checkpoint_number: The checkpoint's number, a variable or number, instead of the next. An
                existing checkpoint with this number is replaced.
            check_interval: Whether to do nothing if the last save was less than ``checkpoint_interval``
                steps ago.
            options: See ``Checkpoint.save``.

        Returns:
            The path; ``None`` if nothing was saved.
        """
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and self._interval is not None and self._last_step is not None:
            assert step is not None
            if step - self._last_step < self._interval:
                return None
        number = None if checkpoint_number is None else int(checkpoint_number)
        prefix = self._path / self._name
        for prepare in self._before_saves:
            prepare()
        path = self._checkpoint.save_numbered(prefix, number, options, self._remove_old)
        self._last_step = step
        for listener in self._after_saves:
            listener(path)
        return path

    def before_saves(self, listener: Callable[[], None]) -> None:
        """Registers ``listener``, which is called before each save to update the saved state."""
        self._before_saves.append(listener)

    def after_saves(self, listener: Callable[[str], None]) -> None:
        """Registers ``listener``, called with the path after each save, perhaps before it is on disk."""
        self._after_saves.append(listener)

    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint, or calls ``init_fn`` if there is none.

        Returns:
            The path of the restored checkpoint, or ``None``.
        """
        latest = self.latest_checkpoint
        if latest is None:
            if self._init_fn is not None:
                self._init_fn()
            return None
        self._checkpoint.restore(latest)
        if self._step_counter is not None:
            self._last_step = int(self._step_counter)
        return latest

    def sync(self) -> None:
        """Waits until the last save is on disk. See ``Checkpoint.sync``."""
        self._checkpoint.sync()

    def _managed(self) -> list[tuple[int, CheckpointPath]]:
        kept = self._permanent.names()
        found = complete_checkpoints(self._path, self._name)
        return [(saved, path) for saved, path in found if path.name not in kept]

    def _remove_old(self) -> None:
        # An error here must not fail the save, whose checkpoint is complete. The next save tries again.
        with contextlib.suppress(OSError):
            remove_leftovers(self._path)
            if self._max_to_keep is not None:
                for saved, path in self._managed()[: -self._max_to_keep]:
                    if not self._keep_permanently(saved, path):
                        remove_checkpoint(path)

    def _keep_permanently(self, saved: int, path: CheckpointPath) -> bool:
        if self._keep_every is None:
            return False
        if saved - self._permanent.last_time() < self._keep_every * _NANOSECONDS_PER_HOUR:
            return False
        self._permanent.add(path.name, saved)
        return True


class _PermanentCheckpoints:
    """The checkpoints that a manager keeps permanently, listed in a file.

    Args:
        path: The file. Without it, no checkpoint is permanent, and the interval starts now.
    """

    def __init__(self, path: CheckpointPath) -> None:
        self._path = path
        self._begun = time.time_ns()

    def names(self) -> set[str]:
        """Returns the names of the checkpoints."""
        return set(self._read())

    def last_time(self) -> int:
        """Returns the save time of the last permanent checkpoint; without any, the start time."""
        return max([self._begun if not self._read() else 0, *self._read().values()])

    def add(self, name: str, saved: int) -> None:
        """Adds a checkpoint."""
        write_atomically(self._path, json.dumps({**self._read(), name: saved}).encode())

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_bytes())
            return {str(name): int(saved) for name, saved in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
