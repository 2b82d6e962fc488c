"""``OwnSegment`` and ``PeerSegment``: shared memory that one process writes and others on its host read.

A segment is a ``memfd``: it has no name in the file system. Other processes open it through
``/proc/<pid>/fd`` of its owner, which the kernel allows only to the same user, and it is freed with the
last process that has it open. It is sealed: only the first mapping, which its owner made, can write it.

A segment begins with a header: the owner's progress counter, the tag of its current collective, and a
random key. The data follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
from typing import Any, Self

import numpy as np

__all__ = ["OwnSegment", "PeerSegment", "can_share"]

_HEADER_BYTES = 4096
_KEY_BYTES = 32
_KEY_START = 64
_PIECE_BYTES = 2 * 2**20
_F_SEAL_FUTURE_WRITE = 0x10
"""From ``linux/fcntl.h``; Python has no name for it. It exists since Linux 5.1, before ``pidfd_open``."""


def can_share() -> bool:
    """Returns whether this system supports such memory."""
    has_calls = hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
    return has_calls and os.path.isdir("/proc/self/fd")


class _Segment:
    _map: mmap.mmap
    _words: memoryview
    _data: np.ndarray[Any, Any]

    def __init__(self, file: int, access: int) -> None:
        self._file = file
        self._access = access
        self._reopen()

    @property
    def progress(self) -> int:
        """The progress counter of the owner; see ``LocalGroup``."""
        return self._words[0]

    @property
    def tag(self) -> int:
        """The fingerprint of the collective whose data the owner has written."""
        return self._words[1]

    @property
    def key(self) -> bytes:
        """Identifies the segment."""
        return self._map[_KEY_START : _KEY_START + _KEY_BYTES]

    def view(self, start: int, num_bytes: int) -> np.ndarray[Any, Any]:
        """Returns a view of the memory. The owner has made the segment large enough."""
        if start + num_bytes > len(self._data):
            self._reopen()
        return self._data[start : start + num_bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the segment. The memory is unmapped with its last view."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _reopen(self) -> None:
        # The previous mapping is unmapped with its last view.
        self._map = mmap.mmap(self._file, os.fstat(self._file).st_size, prot=self._access)
        self._create_views()

    def _create_views(self) -> None:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Some kernels do not support the advice.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._words = memoryview(self._map)[:_KEY_START].cast("q")
        self._data = np.frombuffer(self._map, np.uint8)[_HEADER_BYTES:]


class OwnSegment(_Segment):
    """Shared memory of this process, which only this process can write.

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
    def location(self) -> tuple[int, int]:
        """Where other processes of the same user open it: the process id, and the file descriptor."""
        return os.getpid(), self._file

    def set_progress(self, progress: int) -> None:
        """Publishes the progress counter of this process."""
        self._words[0] = progress

    def set_tag(self, tag: int) -> None:
        """Publishes the tag of the data that follows."""
        self._words[1] = tag

    def reserve(self, num_bytes: int) -> None:
        """Makes the memory large enough. No view of it may be in use."""
        if num_bytes > len(self._data):
            pieces = -(-(_HEADER_BYTES + num_bytes) // _PIECE_BYTES)
            # Resizes the first mapping: the seal makes every new mapping read-only. A mapping with views
            # cannot be resized, so they are released first.
            self._words.release()
            del self._data
            self._map.resize(pieces * _PIECE_BYTES)
            self._create_views()


class PeerSegment(_Segment):
    """Shared memory of another process, read-only.

    Args:
        process: The id of the process.
        file: The file descriptor in that process.

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
        """Returns whether its process has exited."""
        # Not select.select, which fails for descriptors from 1,024 on.
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        return bool(ended.poll(0))

    def close(self) -> None:
        """Closes the segment. The memory is unmapped with its last view."""
        if self._file >= 0:
            os.close(self._process)
        super().close()
