"""The error for a corrupt checkpoint, which names the file at fault."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath, files_of
from stratagem._src.checkpoint.format.tensorstore_loader import short_message, tensorstore
from stratagem._src.core.errors import DataLossError

__all__ = ["corruption_error"]


def corruption_error(directory: CheckpointPath, array: str, error: Exception) -> DataLossError:
    """Returns an error that describes TensorStore's error, with the file that caused it.

    Args:
        directory: The checkpoint's directory.
        array: The key of the array that was being read.
        error: TensorStore's error.
    """
    text = short_message(error)
    key = re.search(r'Error reading "([^"]*)" in OCDBT', text)
    file = None
    if key and not re.search(r'local file "[^"]*[^/"]"', text):
        with contextlib.suppress(ValueError, OSError, KeyError, IndexError):
            file = _file_of(directory, key[1].encode())
    where = f"the file {file} is" if file is not None else "a file is"
    return DataLossError(
        f"The array {array!r} of the checkpoint {directory} cannot be read, because {where} corrupt or "
        f"missing: {text}"
    )


def _file_of(directory: CheckpointPath, key: bytes) -> CheckpointPath:
    """Returns the file that holds the value of a key, by a walk down the OCDBT B-tree."""
    store = tensorstore().KvStore.open(files_of(directory)).result()
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
