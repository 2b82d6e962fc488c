"""``PrivateSocket``: a Unix socket to which only processes of this user can connect."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from stratagem._src.process.fork import close_in_child

__all__ = ["PrivateSocket"]

_PREFIX = "stratagem-socket-"
# A socket path is limited to 108 bytes on Linux, and to 104 on other systems.
_MAX_DIRECTORY_BYTES = 70
_STALE_SECONDS = 60.0


class PrivateSocket:
    """The path of a Unix socket in a directory of its own that only this user may enter.

    The directory is removed with this object or at exit. Directories of killed processes are removed when
    the next socket is created.
    """

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > _MAX_DIRECTORY_BYTES:
            parent = "/tmp"
        for stale in _stale_folders(Path(parent)):
            shutil.rmtree(stale, ignore_errors=True)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self.path = os.path.join(folder, "s")
        # The lock says that the directory is in use. The kernel releases it when the process ends.
        self._lock = _open_locked(folder)
        self._finalizer = weakref.finalize(self, _remove, folder, self._lock)
        close_in_child(self, PrivateSocket._leave_to_the_parent)

    @property
    def grpc_address(self) -> str:
        """The address in gRPC's notation."""
        return f"unix:{self.path}"

    def _leave_to_the_parent(self) -> None:
        if self._finalizer.detach() is not None:
            os.close(self._lock)  # the parent's descriptor still holds the lock

    def close(self) -> None:
        """Removes the folder and the socket in it."""
        self._finalizer()


def _open_locked(folder: str | Path) -> int:
    """Locks a directory and returns its descriptor.

    Raises:
        OSError: If another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _stale_folders(parent: Path) -> Iterator[Path]:
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, in use, or removed meanwhile
            status = folder.lstat()
            # A new directory is not locked for a moment.
            is_old = time.time() - status.st_mtime > _STALE_SECONDS
            if status.st_uid == os.getuid() and is_old:
                os.close(_open_locked(folder))
                yield folder


def _remove(folder: str, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
