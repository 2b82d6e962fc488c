"""The directories of checkpoints: numbering, and atomic publication when they are complete."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.checkpoint.format.object_path import ObjectPath

__all__ = [
    "NameTakenError",
    "NewDirectory",
    "is_visible",
    "numbered",
    "remove_directory",
    "remove_leftovers",
]

_UNFINISHED = ".unfinished"
_LOCK = ".lock"
_TRASH = ".removed"
_CLEANUP_SECONDS = 2.0
_POLL_INTERVAL_SECONDS = 0.01
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class NameTakenError(FileExistsError):
    """A directory cannot be created, because its name is taken."""


class NewDirectory:
    """A directory that is written under a hidden name and renamed when it is complete.

    A lock file reserves the name until then. If the process is killed, its leftovers are removed when the
    next directory is created in the same parent.

    Args:
        path: The final path.
        replace: Whether to replace an existing directory.

    Attributes:
        path: The final path.
        hidden: The path until ``publish``.
        token: A unique token, by which other processes check that they see this directory.
        store: The directory of the arrays below ``path``; empty: they are in it.

    Raises:
        NameTakenError: If the directory exists, or another process is writing it.
    """

    store = ""

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        self.path = path
        self._replace = replace
        self.hidden = path.with_name(f".{path.name}{_UNFINISHED}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock: _Lock | None = self._reserve()
        try:
            if not replace and path.exists():
                raise NameTakenError(errno.EEXIST, "it exists", str(path))
            if self._lock.is_locked:
                # Leftovers of a killed process: the lock is ours, so no process is writing there.
                shutil.rmtree(self.hidden, ignore_errors=True)
            elif self.hidden.exists():
                raise NameTakenError(errno.EEXIST, "another process may be writing it", str(path))
            self.hidden.mkdir()
            self.token = self._lock.write_token()
        except BaseException:
            self._lock.remove()
            raise

    def _reserve(self) -> _Lock:
        """Acquires the lock.

        Where no other name will do, this waits a moment: another save in the same parent looks for
        leftovers, and holds each lock that it finds while it does, also one that is just being created.
        """
        deadline = time.monotonic() + (_CLEANUP_SECONDS if self._replace else 0.0)
        while (lock := _Lock.acquire(self.hidden)) is None:
            if time.monotonic() >= deadline:
                raise NameTakenError(errno.EEXIST, "another process is writing it", str(self.path))
            time.sleep(_POLL_INTERVAL_SECONDS)
        return lock

    def publish(self, files: Mapping[str, bytes], saved_ns: int) -> None:
        """Renames the directory to its final path, after an fsync.

        Args:
            files: The contents of the metadata files.
            saved_ns: The save time, which these files get: the clock may have been set back.
        """
        for name, content in files.items():
            path = self.hidden / name
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.utime(path, ns=(saved_ns, saved_ns))
        _sync(self.hidden)
        if self._replace and self.path.exists():
            _swap_names(self.hidden, self.path)
        else:
            self.hidden.rename(self.path)
        _sync(self.path.parent)
        self.discard()

    def discard(self) -> None:
        """Removes the hidden directory, if it is not published, and the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            shutil.rmtree(self.hidden, ignore_errors=True)
            # The lock last: a hidden directory without a lock would count as abandoned.
            lock.remove()


def is_visible(hidden: Path, token: str) -> bool:
    """Returns whether a directory that another process creates is visible here, on a shared file system.

    Args:
        hidden: The hidden path.
        token: The directory's token: another disk may have a directory of the same name.
    """
    lock = hidden.with_name(hidden.name + _LOCK)
    with contextlib.suppress(OSError):
        os.listdir(hidden.parent)  # makes NFS refresh its cache
        return hidden.is_dir() and lock.read_text() == token
    return False


def remove_directory(path: Path) -> None:
    """Removes a checkpoint: renames it first, so it is never found half removed."""
    trash = path.with_name(f".{path.name}-{uuid.uuid4().hex}{_TRASH}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Removes the leftovers of processes that were killed while they saved or removed a checkpoint."""
    for name in os.listdir(directory) if directory.is_dir() else ():
        if not name.startswith("."):
            continue
        path = directory / name
        if name.endswith(_TRASH):
            shutil.rmtree(path, ignore_errors=True)
        elif name.endswith((_UNFINISHED, f"{_UNFINISHED}{_LOCK}")):
            hidden = path.with_name(name.removesuffix(_LOCK))
            lock = _Lock.acquire(hidden)
            if lock is not None and lock.is_locked:
                shutil.rmtree(hidden, ignore_errors=True)
                lock.remove()


def numbered(
    directory: CheckpointPath, prefix: str | None = None
) -> Iterator[tuple[int, CheckpointPath]]:
    """Yields the entries ``{prefix}-{number}`` of a directory, each with its number.

    Args:
        directory: The directory; it need not exist.
        prefix: The name without the number; default any.
    """
    pattern = re.compile(rf"{'.*' if prefix is None else re.escape(prefix)}-([0-9]+)", re.DOTALL)
    # In an object store, a directory that does not exist is an empty one.
    is_there = isinstance(directory, ObjectPath) or directory.is_dir()
    for path in directory.iterdir() if is_there else ():
        match = pattern.fullmatch(path.name)
        if match and not path.name.startswith("."):
            yield int(match[1]), path


class _Lock:
    """A lock file next to a hidden directory; the process that writes there holds the lock until it ends.

    Attributes:
        is_locked: Whether it is locked; false on a file system without locks, where it is unknown whether
            the writing process is alive.
    """

    _descriptor = -1

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.is_locked = True

    @classmethod
    def acquire(cls, hidden: Path) -> _Lock | None:
        """Acquires the lock of a directory; returns ``None`` if a live process holds it."""
        path = hidden.with_name(hidden.name + _LOCK)
        while True:
            lock = cls(path, os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666))
            try:
                fcntl.flock(lock._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock._descriptor), path.stat()):
                    return lock
            except BlockingIOError:
                lock._close()
                return None
            except FileNotFoundError:
                pass
            except OSError:
                lock.is_locked = False
                return lock
            # The previous owner removed the file between open and flock: this lock is on a deleted file.
            # Retry with a new file.
            lock._close()

    def write_token(self) -> str:
        """Writes a unique token into the file, and returns it."""
        token = uuid.uuid4().hex
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, token.encode(), 0)
        os.fsync(self._descriptor)  # processes on other hosts read it
        return token

    def remove(self) -> None:
        """Removes the file, and with it the lock."""
        self._path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # If an interrupt loses the object, the lock is released, and the next save removes what is left.
    __del__ = _close


def _sync(directory: Path) -> None:
    """Flushes the entries of a directory to disk, where the file system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap_names(new: Path, old: Path) -> None:
    """Swaps the names of two directories, atomically where the system supports it.

    Elsewhere there is a moment without a directory of either name.
    """
    with contextlib.suppress(OSError, AttributeError):
        _rename_exchange(new, old)
        return
    aside = new.with_name(f"{new.name}.{uuid.uuid4().hex}")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _rename_exchange(new: Path, old: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(new.absolute()), os.fsencode(old.absolute())
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
