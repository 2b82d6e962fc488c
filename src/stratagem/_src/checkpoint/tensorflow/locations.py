"""Where TensorFlow's checkpoints are: prefixes of files, SavedModels, and the ``checkpoint`` state file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.checkpoint.format.tree_metadata import METADATA_FILE
from stratagem._src.checkpoint.tensorflow.h5_weights import is_h5_file

__all__ = [
    "STATE_FILE",
    "find_prefix",
    "is_tensorflow_checkpoint",
    "latest_in_state_file",
    "saved_time",
]

STATE_FILE = "checkpoint"
_INDEX = ".index"
_PATH_LINE = re.compile(r'^\s*model_checkpoint_path\s*:\s*("(?:[^"\\]|\\.)*")\s*$', re.MULTILINE)


def is_tensorflow_checkpoint(path: Path) -> bool:
    """Returns whether there is a TensorFlow checkpoint, or Keras weights in HDF5, at a path."""
    if (path / METADATA_FILE).exists():  # of ours, next to files with the same name
        return False
    return is_h5_file(path) or find_prefix(path) is not None


def find_prefix(path: Path) -> Path | None:
    """Returns the prefix of the files of a TensorFlow checkpoint; ``None`` if there is none at a path.

    Args:
        path: The prefix itself; one of its files; a SavedModel's directory, or its ``variables``; or a
            directory with a ``checkpoint`` state file, for the latest checkpoint.
    """
    if _index_of(path).exists():
        return path
    if path.is_file() and (path.name.endswith(_INDEX) or ".data-" in path.name):
        prefix = path.with_name(re.sub(r"(\.index|\.data-\d{5}-of-\d{5})$", "", path.name))
        return prefix if _index_of(prefix).exists() else None
    for prefix in (path / "variables" / "variables", path / "variables"):
        if path.is_dir() and _index_of(prefix).exists():
            return prefix
    return latest_in_state_file(path)


def latest_in_state_file(directory: CheckpointPath, name: str = STATE_FILE) -> Path | None:
    """Returns the prefix that a state file names as the latest, if its index is there.

    Args:
        directory: The directory of the state file.
        name: The name of the state file.
    """
    if not isinstance(directory, Path):  # TensorFlow's checkpoints are read from file systems only
        return None
    try:
        text = (directory / name).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    found = _PATH_LINE.search(text)
    if found is None:
        return None
    try:
        prefix = directory / _unescaped(found[1])
    except (ValueError, SyntaxError):
        return None
    return prefix if _index_of(prefix).exists() else None


def saved_time(prefix: Path) -> int:
    """Returns when a checkpoint was written, in ns."""
    return _index_of(prefix).stat().st_mtime_ns


def _index_of(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _INDEX) if prefix.name else prefix / _INDEX


def _unescaped(quoted: str) -> str:
    # Protocol buffers quote text as C does, with the bytes of UTF-8 as octal numbers.
    data = ast.literal_eval("b" + quoted) if quoted.isascii() else quoted[1:-1].encode()
    return bytes(data).decode()
