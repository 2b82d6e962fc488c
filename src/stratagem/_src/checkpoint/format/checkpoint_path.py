"""``CheckpointPath``: where checkpoints are, on a file system or in an object store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeAlias

from stratagem._src.checkpoint.format.object_path import DRIVERS, ObjectPath
from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["CheckpointPath", "checkpoint_path", "files_of", "write_atomically"]

CheckpointPath: TypeAlias = Path | ObjectPath
"""A path on a file system, or in an object store."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):(/+)")


def checkpoint_path(path: str | os.PathLike[str] | ObjectPath) -> CheckpointPath:
    """Returns the path that a user gave.

    Raises:
        InvalidArgumentError: If it is a URL that checkpoints do not support.

    >>> from stratagem._src.checkpoint.format.checkpoint_path import checkpoint_path
    >>> checkpoint_path("s3://bucket/run/ckpt")
    ObjectPath.parse('s3://bucket/run/ckpt')
    >>> str(checkpoint_path("file:///tmp/ckpt"))
    '/tmp/ckpt'
    """
    if isinstance(path, ObjectPath):
        return path
    text = os.fspath(path)
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    scheme, slashes = found.groups()
    if len(slashes) == 1 and isinstance(path, Path) and scheme in {*DRIVERS, "file"}:
        raise InvalidArgumentError(
            f"pathlib.Path removes a slash of a URL: got {text!r}. Pass the URL as a str."
        )
    if len(slashes) == 1:
        return Path(text)
    if scheme in DRIVERS:
        return ObjectPath.parse(text)
    if scheme == "file":
        return Path(text.removeprefix("file://"))
    raise InvalidArgumentError(
        "Checkpoints are saved to local paths and to "
        f"{' and '.join(f'{one}://' for one in DRIVERS)} URLs, got {text!r}. Use one of these, or mount "
        "the store as a file system."
    )


def files_of(directory: CheckpointPath) -> dict[str, Any]:
    """Returns TensorStore's specification of the files of a directory."""
    if isinstance(directory, ObjectPath):
        return directory.key_value_store()
    return {"driver": "file", "path": f"{directory.absolute()}/"}


def write_atomically(path: CheckpointPath, data: bytes) -> None:
    """Writes a small file; readers see the old content or the new."""
    if isinstance(path, ObjectPath):
        path.write_bytes(data)
        return
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)
