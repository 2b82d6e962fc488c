"""A secret in a file for its owner only, for as long as a job runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.transport.private_folder import make_private_folder

__all__ = ["private_secret_file"]


@contextlib.contextmanager
def private_secret_file(folder: Path, secret: str) -> Iterator[Path]:
    """Keeps a secret in a file that only this user can read, and removes it at the end.

    Args:
        folder: Where; it is made if it is not there. The nodes of the job must see it.
        secret: What the file holds.

    Raises:
        LaunchError: If the file cannot be made.
    """
    try:
        make_private_folder(folder)
        own = tempfile.TemporaryDirectory(prefix="job-", dir=folder)  # for its owner only
    except OSError as error:
        raise LaunchError(
            f"The secret of the job must be kept in a file that its nodes can read, but {folder} "
            f"cannot be written to ({error.strerror}). Name another folder with --shared-dir."
        ) from None
    with own as name:
        path = Path(name) / "secret"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(secret)
        yield path
