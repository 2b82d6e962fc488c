"""Where checkpoints are: their numbers, and directories that appear when they are complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stratagem._src.training.checkpoint_format import INDEX_FILE

__all__ = ["NewDirectory", "latest_checkpoint", "new_directory"]

_LOCK = ".lock"


class NewDirectory(NamedTuple):
    """A directory that gets its name when it is complete.

    Attributes:
        hidden: Where it is until then.
        prefix: Its path without the number.
    """

    hidden: Path
    prefix: Path

    def appear(self) -> Path:
        """Gives it the next number that nobody else takes, and returns its path."""
        prefix = self.prefix
        while True:
            last = max((number for number, _ in _numbered(prefix.parent, prefix.name)), default=0)
            path = prefix.with_name(f"{prefix.name}-{last + 1}")
            try:
                self.hidden.rename(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                _sync(prefix.parent)
                return path


@contextlib.contextmanager
def new_directory(prefix: Path) -> Iterator[NewDirectory]:
    """Makes a directory; if it has not appeared at the end of the block, nothing is left of it.

    If the process is killed before, what is left is removed when the next one with this prefix is made.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    _remove_what_killed_saves_left(prefix)
    lock = None
    while lock is None:
        hidden = prefix.with_name(f".{prefix.name}-{uuid.uuid4().hex}")
        lock = _Lock.of_new(hidden)
    try:
        hidden.mkdir()
        yield NewDirectory(hidden, prefix)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        # Only now: a hidden directory without a lock is nobody's.
        lock.remove()


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Returns the path of the last checkpoint that was saved in a directory, or ``None``.

    >>> import tempfile
    >>> latest_checkpoint(tempfile.mkdtemp()) is None
    True
    """
    complete = []
    for number, path in _numbered(Path(checkpoint_dir)):
        with contextlib.suppress(OSError):
            complete.append(((path / INDEX_FILE).stat().st_mtime_ns, number, str(path)))
    return max(complete)[-1] if complete else None


def _numbered(directory: Path, prefix: str | None = None) -> Iterator[tuple[int, Path]]:
    pattern = re.compile(rf"{'.*' if prefix is None else re.escape(prefix)}-([0-9]+)", re.DOTALL)
    for path in directory.iterdir() if directory.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and not path.name.startswith("."):
            yield int(match[1]), path


def _remove_what_killed_saves_left(prefix: Path) -> None:
    pattern = re.compile(rf"(\.{re.escape(prefix.name)}-[0-9a-f]{{32}})(?:{re.escape(_LOCK)})?")
    matches = map(pattern.fullmatch, os.listdir(prefix.parent))
    for name in {match[1] for match in matches if match}:
        hidden = prefix.with_name(name)
        try:
            lock = _Lock.of_abandoned(hidden)
        except FileNotFoundError:
            shutil.rmtree(hidden, ignore_errors=True)
            continue
        if lock is not None:
            shutil.rmtree(hidden, ignore_errors=True)
            lock.remove()


class _Lock:
    """A file beside a hidden directory, locked by the process that writes there until its end."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def of_new(cls, hidden: Path) -> _Lock | None:
        """Returns a lock for a directory to be made; ``None`` if somebody took it for abandoned."""
        path = hidden.with_name(hidden.name + _LOCK)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(descriptor), path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_there = False
        except OSError:  # a file system without locks, where nobody can take it for abandoned
            is_there = True
        if not is_there:
            os.close(descriptor)
        return cls(path, descriptor) if is_there else None

    @classmethod
    def of_abandoned(cls, hidden: Path) -> _Lock | None:
        """Returns the lock of a directory whose process is gone; ``None`` if it may live.

        Raises:
            FileNotFoundError: If there is no lock.
        """
        path = hidden.with_name(hidden.name + _LOCK)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def remove(self) -> None:
        """Removes the file and the lock with it."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _sync(directory: Path) -> None:
    """Sees the names in a directory to the disk, where a file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
