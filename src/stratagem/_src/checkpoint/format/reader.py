"""``open_checkpoint``: opens a checkpoint that we or Orbax wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
from google_crc32c import value as crc32c

from stratagem._src.checkpoint.format.array_store import MANIFEST_FILE, ArrayOnDisk, array_context
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.checkpoint.format.saved_state import (
    DeferredValues,
    OptimizerArrays,
    SavedArray,
    SavedCheckpoint,
    deferred_by_key,
)
from stratagem._src.checkpoint.format.tree_metadata import (
    METADATA_FILE,
    Key,
    Leaf,
    TreeMetadata,
    array_key,
)
from stratagem._src.core import types
from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError

__all__ = [
    "OF_VARIABLES",
    "SHARED",
    "StoredTensors",
    "open_checkpoint",
    "open_stored_tensors",
    "owner_key",
    "worker_key",
]

SHARED, OF_VARIABLES = "shared", "of"
_NUMBERED = "#"


def worker_key(worker: int) -> Key:
    """Returns the key of the worker-local values of a worker other than the first."""
    return Key(f"@{worker}")


def owner_key(number: int) -> Key:
    """Returns the key of an optimizer's state for a variable that has no name in the checkpoint."""
    return Key(f"{_NUMBERED}{number}")


def open_checkpoint(path: CheckpointPath, worker: int = 0) -> SavedCheckpoint:
    """Opens a checkpoint.

    Args:
        path: A directory that we or Orbax wrote, or one that contains a single such directory, like a step
            of the Orbax ``CheckpointManager``.
        worker: The index of this worker; it gets its own values where it saved them.

    Raises:
        NotFoundError: If there is no checkpoint.
        DataLossError: If its metadata is corrupt.
        InvalidArgumentError: If its format is of a later version, or there are several checkpoints.
    """
    return _open(path, worker)


def _open(path: CheckpointPath, worker: int) -> _OrbaxCheckpoint:
    directory = _tree_directory(path)
    if directory is not None:
        return _OrbaxCheckpoint(directory, worker)
    if path.is_dir() and any(path.iterdir()):
        why = f"it has no file {METADATA_FILE}"
    else:
        why = "No such directory" if not path.exists() else "it is empty or not a directory"
    raise NotFoundError(f"There is no checkpoint at {path}: {why}.")


class StoredTensors:
    """All arrays of a checkpoint by name, with the state of optimizers.

    Args:
        checkpoint: The checkpoint.
        path: Its path, for messages.
    """

    def __init__(self, checkpoint: _OrbaxCheckpoint, path: CheckpointPath) -> None:
        self._path = path
        self._arrays: dict[str, SavedArray] = {
            name: checkpoint.array(name) for name in checkpoint.all_names
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each."""
        return {name: array.shape for name, array in self._arrays.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def readable_names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted(self._arrays)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Returns the element type of an array."""
        return self.tensor(name).dtype

    def tensor(self, name: str) -> SavedArray:
        """Returns an array.

        Raises:
            NotFoundError: If there is none with this name.
        """
        if name not in self._arrays:
            raise NotFoundError(
                f"The checkpoint {self._path} has no tensor {name!r}; it has {self.readable_names()}."
            )
        return self._arrays[name]


def open_stored_tensors(path: CheckpointPath) -> StoredTensors:
    """Opens a checkpoint like ``open_checkpoint``, for reading arrays by name."""
    return StoredTensors(_open(path, 0), path)


def _tree_directory(path: CheckpointPath) -> CheckpointPath | None:
    if (path / METADATA_FILE).exists():
        return path
    if not path.is_dir():
        return None
    items = [item for item in path.iterdir() if (item / METADATA_FILE).exists()]
    if len(items) > 1:
        raise InvalidArgumentError(
            f"{path} contains several checkpoints, {sorted(item.name for item in items)}. "
            "Pass the path of one."
        )
    return items[0] if items else None


class _OrbaxCheckpoint:
    """See ``SavedCheckpoint``."""

    def __init__(self, directory: CheckpointPath, worker: int) -> None:
        self._directory = directory
        path = directory / METADATA_FILE
        data = _contents(path)
        self._metadata = TreeMetadata.decode(data, path)
        self._context = array_context()
        own = self._metadata.own or {}
        self._variables = own.get("optimizers", {})
        self.optimizers: tuple[str, ...] = tuple(self._variables)
        states = tuple(f"{name}/" for name in self.optimizers)
        others = tuple(f"{worker_key(number).text}/" for number in own.get("workers", ()))
        self._others = others
        self._own_prefix = f"@{worker}/" if f"@{worker}/" in others else None
        self._leaves = {leaf.name: leaf for leaf in self._metadata.leaves}
        self.all_names: tuple[str, ...] = tuple(
            name for name in self._leaves if not name.startswith(others)
        )
        self.names: tuple[str, ...] = tuple(
            name for name in self.all_names if not name.startswith(states)
        )
        store = self._metadata.store
        self._store = directory / store if store else directory
        manifest = self._store / MANIFEST_FILE
        if self._metadata.in_store:
            # The manifest names data files by random names, so it differs between any two saves.
            data += _contents(manifest)
        self.fingerprint: int = int(crc32c(data))

    def array(self, name: str) -> ArrayOnDisk:
        """Returns an array."""
        if self._own_prefix is not None and self._own_prefix + name in self._leaves:
            name = self._own_prefix + name
        return self._array(name)

    def of_each_worker(self, name: str) -> list[SavedArray]:
        """Returns the array that each worker saved under a name."""
        others = [prefix + name for prefix in self._others]
        return [self._array(n) for n in (name, *others) if n in self._leaves]

    def _array(self, name: str) -> ArrayOnDisk:
        return ArrayOnDisk(
            self._store,
            array_key(self._leaves[name].keys),
            self._context,
            zarr3=self._metadata.zarr3,
            in_store=self._metadata.in_store,
        )

    def deferred(self, name: str, unbuilt: types.Leaf) -> DeferredValues:
        """Returns the values of an unbuilt object, by the keys of its variables."""
        return deferred_by_key(self, name, self._directory)

    def optimizer(self, name: str) -> OptimizerArrays:
        """Returns the arrays of an optimizer's state."""
        found = OptimizerArrays({}, {}, variables=self._variables[name])
        for leaf in self._leaves.values():
            keys = _keys_below(leaf, name)
            if keys is None:
                continue
            what, of, *variable = keys
            if what == SHARED:
                found.shared[of] = self.array(leaf.name)
            elif what == OF_VARIABLES:
                key = "/".join(variable)
                number = key.removeprefix(_NUMBERED)
                is_number = len(number) < len(key) and number.isdigit()
                of_leaf = found.of.setdefault(of, {})
                of_leaf[int(number) if is_number else key] = self.array(leaf.name)
        return found


def _contents(path: CheckpointPath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataLossError(
            f"The checkpoint's file {path} cannot be read: {error.strerror or error}."
        ) from error


def _keys_below(leaf: Leaf, name: str) -> list[str] | None:
    if not leaf.name.startswith(f"{name}/"):
        return None
    texts = [key.text for key in leaf.keys]
    for depth in range(1, len(texts)):
        if "/".join(texts[:depth]) == name:
            return texts[depth:]
    return None
