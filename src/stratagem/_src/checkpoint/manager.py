"""``CheckpointManager``: keeps the last checkpoints, and removes those before."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem._src.checkpoint.async_save import wait_for_saves
from stratagem._src.checkpoint.checkpoint import Checkpoint
from stratagem._src.checkpoint.format.directories import remove_directory, remove_left_overs
from stratagem._src.checkpoint.locating import complete_checkpoints
from stratagem._src.checkpoint.options import CheckpointOptions
from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["CheckpointManager"]

_NANOSECONDS_PER_HOUR = 3600e9


class CheckpointManager:
    """Saves checkpoints under one name in one directory, and keeps the last of them.

    Args:
        checkpoint: What to save.
        directory: Where.
        max_to_keep: How many to keep; ``None`` for all. An older one is removed when a new one is complete.
        keep_checkpoint_every_n_hours: A checkpoint that would be removed is kept for good if it was saved
            this long after the last one that was.
        checkpoint_name: What the checkpoints are called, with a number behind it.
        step_counter: A variable or a number of the program's steps, for ``checkpoint_interval``.
        checkpoint_interval: ``save`` does nothing until so many steps after the last save.
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
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep <= 0:
            raise InvalidArgumentError(
                f"max_to_keep is the number of checkpoints to keep, at least 1, got {max_to_keep}. Give "
                "None to keep all."
            )
        if (checkpoint_interval is None) != (step_counter is None):
            raise InvalidArgumentError(
                "checkpoint_interval is counted in steps: give step_counter with it, and only with it."
            )
        self._checkpoint = checkpoint
        self._directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._keep_every = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step: int | None = None
        self._before_saves: list[Callable[[], None]] = []
        self._after_saves: list[Callable[[str], None]] = []
        self._kept_for_good = _KeptForGood(Path(directory) / f".{checkpoint_name}.kept.json")

    @property
    def checkpoint(self) -> Checkpoint:
        """What is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """Where it is saved."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """How many steps are between two saves, at least."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints, oldest first; not of those that are kept for good.

        A save that is still being written is waited for.
        """
        wait_for_saves(Path(self._directory))
        return [str(path) for _, path in self._managed()]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the last checkpoint; ``None`` if there is none."""
        paths = self.checkpoints
        return paths[-1] if paths else None

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Saves a checkpoint, and removes what is not to be kept when that is complete.

        Args:
            checkpoint_number: The number behind the name, a variable or number, instead of the next. A
                checkpoint that has it is replaced.
            check_interval: Whether nothing is done if the last save was less than ``checkpoint_interval``
                steps ago.
            options: See ``Checkpoint.save``.

        Returns:
            The path; ``None`` if nothing was done.
        """
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and self._interval is not None and self._last_step is not None:
            assert step is not None
            if step - self._last_step < self._interval:
                return None
        number = None if checkpoint_number is None else int(checkpoint_number)
        prefix = Path(self._directory) / self._name
        for prepare in self._before_saves:
            prepare()
        path = self._checkpoint.save_numbered(prefix, number, options, self._remove_old)
        self._last_step = step
        for take_note in self._after_saves:
            take_note(path)
        return path

    def before_saves(self, listener: Callable[[], None]) -> None:
        """Has ``listener`` called before each save, to bring what is saved up to date."""
        self._before_saves.append(listener)

    def after_saves(self, listener: Callable[[str], None]) -> None:
        """Has ``listener`` called with the path after each save, which may not be on the disk yet."""
        self._after_saves.append(listener)

    def restore_or_initialize(self) -> str | None:
        """Restores the last checkpoint, or calls ``init_fn`` if there is none.

        Returns:
            The path of what was restored; ``None`` if there was nothing.
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
        """Waits until the last save is on the disk. See ``Checkpoint.sync``."""
        self._checkpoint.sync()

    def _managed(self) -> list[tuple[int, Path]]:
        kept = self._kept_for_good.names()
        found = complete_checkpoints(Path(self._directory), self._name)
        return [(saved, path) for saved, path in found if path.name not in kept]

    def _remove_old(self) -> None:
        # What cannot be removed now is removed after the next save: the new checkpoint is good.
        with contextlib.suppress(OSError):
            remove_left_overs(Path(self._directory))
            if self._max_to_keep is not None:
                for saved, path in self._managed()[: -self._max_to_keep]:
                    if not self._keep_for_good(saved, path):
                        remove_directory(path)

    def _keep_for_good(self, saved: int, path: Path) -> bool:
        if self._keep_every is None:
            return False
        if saved - self._kept_for_good.last_time() < self._keep_every * _NANOSECONDS_PER_HOUR:
            return False
        self._kept_for_good.add(path.name, saved)
        return True


class _KeptForGood:
    """The checkpoints that a manager does not remove, in a file that outlives it.

    Args:
        path: The file. Without it nothing is kept for good, and time counts from now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.time_ns()

    def names(self) -> set[str]:
        """Returns the names of the checkpoints."""
        return set(self._read())

    def last_time(self) -> int:
        """Returns when the last of them was saved; without any, when this began."""
        return max([self._begun if not self._read() else 0, *self._read().values()])

    def add(self, name: str, saved: int) -> None:
        """Keeps one more."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({**self._read(), name: saved}))
        new.replace(self._path)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
            return {str(name): int(saved) for name, saved in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
