"""``OwnArea`` and ``PeerArea``: memory that one process writes and others on its machine read.

It has no name in the file system: others find it through the process that owns it, which the kernel
allows to its user alone, and it is gone with the last process that has it open. The kernel lets nobody
write it but through the map that its owner made first.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
from typing import Any, Self

import numpy as np

__all__ = ["OwnArea", "PeerArea", "can_share"]

_HEADER_BYTES = 4096
_KEY_BYTES = 32
_KEY_START = 64
_PIECE_BYTES = 2 * 2**20
_F_SEAL_FUTURE_WRITE = 0x10
"""Of ``linux/fcntl.h``; Python has no name for it. As old as Linux 5.1, and ``pidfd_open`` is younger."""


def can_share() -> bool:
    """Returns whether this system has such memory."""
    has_calls = hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
    return has_calls and os.path.isdir("/proc/self/fd")


class _Area:
    _map: mmap.mmap
    _words: memoryview
    _data: np.ndarray[Any, Any]

    def __init__(self, file: int, access: int) -> None:
        self._file = file
        self._access = access
        self._reopen()

    @property
    def mark(self) -> int:
        """How far the owner is."""
        return self._words[0]

    @property
    def note(self) -> int:
        """What the owner says of what it has put there."""
        return self._words[1]

    @property
    def key(self) -> bytes:
        """Tells the area from others."""
        return self._map[_KEY_START : _KEY_START + _KEY_BYTES]

    def view(self, start: int, num_bytes: int) -> np.ndarray[Any, Any]:
        """Returns a part of the memory, which the owner has made large enough."""
        if start + num_bytes > len(self._data):
            self._reopen()
        return self._data[start : start + num_bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory back, once nobody uses a view of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _reopen(self) -> None:
        # The map of before goes with the last view of it.
        self._map = mmap.mmap(self._file, os.fstat(self._file).st_size, prot=self._access)
        self._look_at_map()

    def _look_at_map(self) -> None:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Advice, which some kernels do not take.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._words = memoryview(self._map)[:_KEY_START].cast("q")
        self._data = np.frombuffer(self._map, np.uint8)[_HEADER_BYTES:]


class OwnArea(_Area):
    """Memory of this process.

    Raises:
        OSError: If the system refuses it.
    """

    def __init__(self) -> None:
        file = os.memfd_create("stratagem-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, _PIECE_BYTES)
            super().__init__(file, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK)
        except OSError:
            os.close(file)
            raise
        self._map[_KEY_START : _KEY_START + _KEY_BYTES] = os.urandom(_KEY_BYTES)

    @property
    def place(self) -> tuple[int, int]:
        """Where other processes of the same user find it: this process, and its number for the file."""
        return os.getpid(), self._file

    def set_mark(self, mark: int) -> None:
        """Says how far this process is."""
        self._words[0] = mark

    def set_note(self, note: int) -> None:
        """Says something of what follows."""
        self._words[1] = note

    def reserve(self, num_bytes: int) -> None:
        """Makes the memory large enough."""
        if num_bytes > len(self._data):
            pieces = -(-(_HEADER_BYTES + num_bytes) // _PIECE_BYTES)
            # The same map, larger: a new one could not be written. Nobody may have a view of it now.
            self._words.release()
            del self._data
            self._map.resize(pieces * _PIECE_BYTES)
            self._look_at_map()


class PeerArea(_Area):
    """Memory of another process, to read.

    Args:
        process: The number of the process.
        file: What the process itself calls the file.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, process: int, file: int) -> None:
        self._process = os.pidfd_open(process)
        try:
            opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._process)
            raise
        try:
            super().__init__(opened, mmap.PROT_READ)
        except (OSError, ValueError):
            os.close(opened)
            os.close(self._process)
            raise

    def has_ended(self) -> bool:
        """Returns whether its process has."""
        # Not select, which fails with descriptors from 1,024 on.
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        return bool(ended.poll(0))

    def close(self) -> None:
        """Gives the memory back, once nobody uses a view of it."""
        if self._file >= 0:
            os.close(self._process)
        super().close()
