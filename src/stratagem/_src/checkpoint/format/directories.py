"""Where checkpoints are: their numbers, and directories that appear when they are complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from stratagem._src.checkpoint.format.atomic_swap import exchange_names

__all__ = [
    "NameTakenError",
    "NewDirectory",
    "is_seen",
    "numbered",
    "remove_directory",
    "remove_left_overs",
]

_UNFINISHED = ".unfinished"
_LOCK = ".lock"
_TRASH = ".removed"
_POLL_SECONDS = 0.1


class NameTakenError(FileExistsError):
    """A directory that cannot be made, because there is one of that name."""


class NewDirectory:
    """A directory that gets its name when it is complete; until then nobody else takes the name.

    If the process is killed before, what is left is removed when the next one is made beside it.

    Args:
        path: The name.
        replace: Whether a directory of that name is replaced.

    Attributes:
        path: The name it will have.
        hidden: Where it is until then.
        token: By which others see that they see this one.

    Raises:
        NameTakenError: If there is such a directory, or somebody else is making one.
    """

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        self.path = path
        self._replace = replace
        self.hidden = path.with_name(f".{path.name}{_UNFINISHED}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _Lock.of_new(self.hidden)
        if self._lock is None:
            raise NameTakenError(errno.EEXIST, "another process is writing it", str(path))
        try:
            if not replace and path.exists():
                raise NameTakenError(errno.EEXIST, "it exists", str(path))
            if self._lock.is_held:
                # Of a process that was killed.
                shutil.rmtree(self.hidden, ignore_errors=True)
            elif self.hidden.exists():
                raise NameTakenError(errno.EEXIST, "somebody may be writing it", str(path))
            self.hidden.mkdir()
            self.token = self._lock.write_token()
        except BaseException:
            self._lock.remove()
            raise

    @classmethod
    def numbered(cls, prefix: Path, after: int) -> tuple[NewDirectory, int]:
        """Makes a directory with a number behind its name, which is above all that there are.

        Args:
            prefix: The name without the number.
            after: What it is above in any case.
        """
        number = max((k for k, _ in numbered(prefix.parent, prefix.name)), default=0)
        number = max(number, after)
        while True:
            number += 1
            with contextlib.suppress(NameTakenError):
                return cls(prefix.with_name(f"{prefix.name}-{number}")), number

    def appear(self) -> None:
        """Gives it its name."""
        _sync(self.hidden)
        if self._replace and self.path.exists():
            exchange_names(self.hidden, self.path)
        else:
            self.hidden.rename(self.path)
        _sync(self.path.parent)
        self.give_up()

    def give_up(self) -> None:
        """Removes what is left of it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            shutil.rmtree(self.hidden, ignore_errors=True)
            # Only now: a hidden directory without a lock is nobody's.
            lock.remove()


def is_seen(hidden: Path, token: str, seconds: float) -> bool:
    """Returns whether the directory that another process has begun is here, on a disk that both share.

    Args:
        hidden: Its path.
        token: What the other process says of it: on another disk there may be one of the same name.
        seconds: How long to look: file systems of a network show later what others have made.
    """
    lock = hidden.with_name(hidden.name + _LOCK)
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            os.listdir(hidden.parent)  # has NFS ask its server again
            if hidden.is_dir() and lock.read_text() == token:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def remove_directory(path: Path) -> None:
    """Removes a checkpoint: nobody finds it from the first moment on, even if this is interrupted."""
    trash = path.with_name(f".{path.name}-{uuid.uuid4().hex}{_TRASH}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def remove_left_overs(directory: Path) -> None:
    """Removes what processes have left in a directory that were killed while they saved or removed."""
    for name in os.listdir(directory) if directory.is_dir() else ():
        if not name.startswith("."):
            continue
        path = directory / name
        if name.endswith(_TRASH):
            shutil.rmtree(path, ignore_errors=True)
        elif name.endswith((_UNFINISHED, f"{_UNFINISHED}{_LOCK}")):
            hidden = path.with_name(name.removesuffix(_LOCK))
            lock = _Lock.of_new(hidden)
            if lock is not None and lock.is_held:
                shutil.rmtree(hidden, ignore_errors=True)
                lock.remove()


def numbered(directory: Path, prefix: str | None = None) -> Iterator[tuple[int, Path]]:
    """Yields what has a number behind its name in a directory, with the number.

    Args:
        directory: The directory; it need not exist.
        prefix: The name without the number; default any.
    """
    pattern = re.compile(rf"{'.*' if prefix is None else re.escape(prefix)}-([0-9]+)", re.DOTALL)
    for path in directory.iterdir() if directory.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and not path.name.startswith("."):
            yield int(match[1]), path


class _Lock:
    """A file beside a hidden directory, locked by the process that writes there until its end.

    Attributes:
        is_held: Whether it is locked; not on a file system without locks, where nobody can tell whether
            the process lives.
    """

    def __init__(self, path: Path, descriptor: int, *, is_held: bool = True) -> None:
        self._path = path
        self._descriptor = descriptor
        self.is_held = is_held

    @classmethod
    def of_new(cls, hidden: Path) -> _Lock | None:
        """Returns the lock of a directory; ``None`` if a process that lives has it."""
        path = hidden.with_name(hidden.name + _LOCK)
        while True:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except FileNotFoundError:
                pass
            except OSError:
                return cls(path, descriptor, is_held=False)
            # Its last owner has removed the file meanwhile: try with a new one.
            os.close(descriptor)

    def write_token(self) -> str:
        """Writes something into the file that is in no other one, and returns it."""
        token = uuid.uuid4().hex
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, token.encode(), 0)
        os.fsync(self._descriptor)  # others may read it on another machine
        return token

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
