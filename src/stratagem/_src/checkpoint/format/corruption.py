"""What to say of a checkpoint that cannot be read: which file is to blame."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from stratagem._src.checkpoint.format.library import tensorstore
from stratagem._src.core.errors import DataLossError

__all__ = ["damage_error", "shortened"]


def damage_error(directory: Path, array: str, error: Exception) -> DataLossError:
    """Returns the error that tells of TensorStore's, with the file that it is about.

    Args:
        directory: The checkpoint's.
        array: The array that was being read.
        error: What TensorStore raised.
    """
    text = shortened(error)
    key = re.search(r'Error reading "([^"]*)" in OCDBT', text)
    file = None
    if key and not re.search(r'local file "[^"]*[^/"]"', text):
        with contextlib.suppress(ValueError, OSError, KeyError, IndexError):
            file = _file_of(directory, key[1].encode())
    where = f"the file {file} is" if file is not None else "a file is"
    return DataLossError(
        f"The array {array!r} of the checkpoint {directory} cannot be read, because {where} damaged or "
        f"missing: {text}"
    )


def shortened(error: Exception) -> str:
    """Returns TensorStore's message without the description of everything that it was asked for."""
    return re.split(r" \[(?:tensorstore_spec|source locations)=", str(error))[0]


def _file_of(directory: Path, key: bytes) -> Path:
    """Returns the file that holds the value of a key."""
    store = (
        tensorstore().KvStore.open({"driver": "file", "path": f"{directory.absolute()}/"}).result()
    )
    dump = tensorstore().ocdbt.dump
    location = dump(store).result()["versions"][-1]["root"]["location"]
    prefix = b""
    while True:
        node = dump(store, node=location).result()
        before = [e for e in node["entries"] if prefix + _first_key(e) <= key]
        entry = before[-1]
        if not node["height"]:
            _, base, file, *_ = entry["indirect_value"].split(":")
            return directory / base / file
        prefix += entry.get("subtree_common_prefix", b"")
        location = entry["location"]


def _first_key(entry: Any) -> bytes:
    first: bytes = entry["key"]
    return first
