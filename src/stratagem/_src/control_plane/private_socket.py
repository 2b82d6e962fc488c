"""``PrivateSocket``: where processes of this user, and nobody else, can connect."""

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

from stratagem._src.process.fork import end_in_child

__all__ = ["PrivateSocket"]

_PREFIX = "stratagem-socket-"
# The system's limit is 108 bytes, or 104 elsewhere than on Linux.
_MOST_FOLDER_BYTES = 70
_SECONDS_UNTIL_STALE = 60.0


class PrivateSocket:
    """The path of a Unix socket in a folder of its own that only this user may enter.

    The folder is gone when this object or the process is; those of killed processes go when the next
    one is made.
    """

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > _MOST_FOLDER_BYTES:
            parent = "/tmp"
        for stale in _stale_folders(Path(parent)):
            shutil.rmtree(stale, ignore_errors=True)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self.path = os.path.join(folder, "s")
        # The lock, and with it the sign that somebody needs the folder, goes with the process.
        self._lock = _open_locked(folder)
        self._finalizer = weakref.finalize(self, _remove, folder, self._lock)
        end_in_child(self, PrivateSocket._leave_to_the_parent)

    @property
    def grpc_address(self) -> str:
        """How gRPC spells the address."""
        return f"unix:{self.path}"

    def _leave_to_the_parent(self) -> None:
        if self._finalizer.detach() is not None:
            os.close(self._lock)  # the parent's holds

    def close(self) -> None:
        """Removes the folder and the socket in it."""
        self._finalizer()


def _open_locked(folder: str | Path) -> int:
    """Returns a descriptor of a folder that no other process has locked.

    Raises:
        OSError: If another has.
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
        with contextlib.suppress(OSError):  # another's, in use, or gone by now
            status = folder.lstat()
            is_old = time.time() - status.st_mtime > _SECONDS_UNTIL_STALE
            if status.st_uid == os.getuid() and is_old:
                os.close(_open_locked(folder))
                yield folder


def _remove(folder: str, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
