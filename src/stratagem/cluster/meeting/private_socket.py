"""``PrivateSocket``: where processes of this user, and nobody else, can connect."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref

__all__ = ["PrivateSocket"]

# The system's limit is 108 bytes, or 104 elsewhere than on Linux.
_MOST_FOLDER_BYTES = 90


class PrivateSocket:
    """The path of a Unix socket in a folder of its own that only this user may enter.

    The folder is gone when this object or the process is.
    """

    def __init__(self) -> None:
        is_short = len(os.fsencode(tempfile.gettempdir())) < _MOST_FOLDER_BYTES
        folder = tempfile.mkdtemp(prefix="stratagem-", dir=None if is_short else "/tmp")
        self.path = os.path.join(folder, "s")
        self.close = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def grpc_address(self) -> str:
        """How gRPC spells the address."""
        return f"unix:{self.path}"
