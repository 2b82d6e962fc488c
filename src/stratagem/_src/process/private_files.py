"""Files and directories that only their owner may read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["make_private_directory", "open_private_file"]


def make_private_directory(folder: Path) -> None:
    """Creates a directory and its missing parents with mode 0700; existing ones keep their modes.

    Raises:
        OSError: If it cannot be created, or is a file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from stratagem._src.process.private_files import make_private_directory
    >>> with tempfile.TemporaryDirectory() as name:
    ...     make_private_directory(Path(name) / "state" / "mine")
    ...     oct((Path(name) / "state").stat().st_mode)[-3:]
    '700'
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    # mkdir(parents=True) would apply the mode only to the last one.
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def open_private_file(path: Path, *, append: bool) -> int:
    """Opens a file for writing and returns its descriptor. A new file gets mode 0600.

    An existing file keeps its mode: its owner may want others to read it.

    >>> import os, tempfile
    >>> from pathlib import Path
    >>> from stratagem._src.process.private_files import open_private_file
    >>> with tempfile.TemporaryDirectory() as name:
    ...     os.close(open_private_file(Path(name) / "log", append=False))
    ...     oct((Path(name) / "log").stat().st_mode)[-3:]
    '600'

    Raises:
        OSError: If it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    return os.open(path, flags, 0o600)
