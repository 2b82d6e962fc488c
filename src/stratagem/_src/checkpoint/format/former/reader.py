"""Reads checkpoints of the former format: a ``.npy`` file for each array, and an index."""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

from google_crc32c import value as crc32c

from stratagem._src.checkpoint.format.former.array_file import ArrayFile
from stratagem._src.checkpoint.format.former.index import SavedState
from stratagem._src.checkpoint.format.former.index_reading import decode_index
from stratagem._src.checkpoint.format.saved_state import (
    DeferredValues,
    OptimizerArrays,
    SavedArray,
    deferred_by_key,
)
from stratagem._src.core.errors import DataLossError
from stratagem._src.core.types import Leaf

__all__ = ["INDEX_FILE", "FormerCheckpoint"]

INDEX_FILE = "checkpoint.json"
_NOTHING = "%"


class FormerCheckpoint:
    """A checkpoint in the format before Orbax.

    Args:
        directory: Its directory.
        worker: The index of this worker; it gets its own values where it saved them.

    Raises:
        DataLossError: If its index is corrupt.
        InvalidArgumentError: If its format is of a later version.
    """

    def __init__(self, directory: Path, worker: int = 0) -> None:
        self._directory = directory
        self._worker = worker
        path = directory / INDEX_FILE
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataLossError(
                f"The checkpoint's index {path} cannot be read: {error.strerror or error}."
            ) from error
        self._index = decode_index(data, path)
        states = tuple(f"{name}/" for name in self._index.optimizers)
        self.names = frozenset(name for name in self._index.arrays if not name.startswith(states))
        self.optimizers = frozenset(self._index.optimizers)
        self.fingerprint = int(crc32c(data))

    def array(self, name: str) -> ArrayFile:
        """Returns an array."""
        own = self._index.of_workers.get(self._worker, {})
        array = own[name] if name in own else self._index.arrays[name]
        folder = self._directory / f"@{self._worker}" if name in own else self._directory
        is_version_1 = array.checksum is None
        path = _file(folder, name, nothing="" if is_version_1 else _NOTHING)
        return ArrayFile(path, array.shape, array.dtype, array.checksum)

    def of_each_worker(self, name: str) -> list[SavedArray]:
        """Returns this worker's array only: the values of other workers are not available."""
        return [self.array(name)]

    def deferred(self, name: str, unbuilt: Leaf) -> DeferredValues:
        """Returns the values of an unbuilt object, by the keys of its variables."""
        return deferred_by_key(self, name, self._directory)

    def optimizer(self, name: str) -> OptimizerArrays:
        """Returns the arrays of an optimizer's state."""
        saved = self._index.optimizers[name]
        here = saved.here
        in_order, variables = None, None
        if here is not None and here.leaves is None:
            in_order = list(map(self.array, here.arrays))
        if here is not None and here.variables is not None:
            variables = [k if v is None else v for k, v in enumerate(here.variables)]
        in_order_on_servers = {
            variable: list(map(self.array, state.arrays))
            for variable, state in saved.on_servers.items()
            if state.leaves is None
        }
        found = OptimizerArrays({}, {}, in_order, in_order_on_servers, variables)
        if here is not None and here.leaves is not None:
            self._add_local(found, here, here.leaves)
        for variable, state in saved.on_servers.items():
            for leaf, array in zip(state.leaves or (), state.arrays, strict=bool(state.leaves)):
                found.of.setdefault(leaf, {})[variable] = self.array(array)
        return found

    def _add_local(
        self, found: OptimizerArrays, state: SavedState, leaves: tuple[str, ...]
    ) -> None:
        variables = found.variables or ()
        for leaf, name in zip(leaves, state.arrays, strict=True):
            # The state had one list entry per variable, so the trailing index is that of a variable.
            match = re.fullmatch(r"(.*)\[([0-9]+)\]", leaf, re.DOTALL)
            if match and int(match[2]) < len(variables):
                found.of.setdefault(match[1], {})[variables[int(match[2])]] = self.array(name)
            else:
                found.shared[leaf] = self.array(name)


def _file(directory: Path, name: str, nothing: str) -> Path:
    parts = [
        urllib.parse.quote(part, safe="", errors="surrogatepass").replace(".", "%2E")
        for part in name.split("/")
    ]
    folders = [part or nothing for part in parts[:-1]]
    return directory.joinpath(*folders, f"{parts[-1] or _NOTHING}.npy")
