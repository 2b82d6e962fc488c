"""How a checkpoint is stored: a directory with a ``.npy`` file for each array, and an index."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.core.errors import DataLossError, NotFoundError
from stratagem._src.training.array_file import ArrayFile, write_array
from stratagem._src.training.checkpoint_index import CheckpointIndex, SavedArray, SavedOptimizer
from stratagem._src.training.checkpoint_index_reading import decode_index

__all__ = ["INDEX_FILE", "CheckpointReader", "CheckpointWriter"]

INDEX_FILE = "checkpoint.json"
_NOTHING = "%"


class CheckpointWriter:
    """Writes a checkpoint, or one worker's part of it, into a directory.

    Args:
        directory: The directory.
        worker: The number of the worker whose part it is; ``None`` for what is common, or the leader's.

    Attributes:
        arrays: What has been written.
    """

    def __init__(self, directory: Path, worker: int | None = None) -> None:
        self._directory = directory
        self._folder = _folder(directory, worker)
        self.arrays: dict[str, SavedArray] = {}

    def add(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        blocks: Iterable[np.ndarray[Any, Any]],
    ) -> None:
        """Writes an array, whose rows come in consecutive blocks."""
        checksum = write_array(_file(self._folder, name), shape, dtype, blocks)
        self.arrays[name] = SavedArray(tuple(shape), dtype.name, checksum)

    def finish(
        self,
        optimizers: Mapping[str, SavedOptimizer],
        of_workers: Mapping[int, Mapping[str, SavedArray]],
    ) -> None:
        """Writes the index, which makes the checkpoint complete.

        Args:
            optimizers: The optimizers, by name.
            of_workers: What other workers have written of their own.
        """
        index = CheckpointIndex(self.arrays, optimizers, of_workers)
        with (self._directory / INDEX_FILE).open("xb") as file:
            file.write(index.encode())
            file.flush()
            os.fsync(file.fileno())


class CheckpointReader:
    """A checkpoint that was saved.

    Args:
        directory: Where it is.
        worker: The number of the worker that asks, whose part it is given if it has saved one.

    Attributes:
        index: What it holds.

    Raises:
        NotFoundError: If there is none.
        DataLossError: If its index is damaged.
        InvalidArgumentError: If its format is of a later version.
    """

    def __init__(self, directory: Path, worker: int = 0) -> None:
        self._directory = directory
        self._worker = worker
        path = directory / INDEX_FILE
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(
                f"There is no checkpoint at {directory}: {error.strerror}."
            ) from error
        except OSError as error:
            raise DataLossError(
                f"The checkpoint's index {path} cannot be read: {error.strerror or error}."
            ) from error
        self.index = decode_index(data, path)

    def file(self, name: str) -> ArrayFile:
        """Returns the file of an array."""
        own = self.index.of_workers.get(self._worker, {})
        array = own[name] if name in own else self.index.arrays[name]
        folder = _folder(self._directory, self._worker if name in own else None)
        is_version_1 = array.checksum is None
        path = _file(folder, name, nothing="" if is_version_1 else _NOTHING)
        return ArrayFile(path, array.shape, array.dtype, array.checksum)


def _folder(directory: Path, worker: int | None) -> Path:
    # No name of an array has an "@" in its file's path.
    return directory if worker is None else directory / f"@{worker}"


def _file(directory: Path, name: str, nothing: str = _NOTHING) -> Path:
    parts = [
        urllib.parse.quote(part, safe="", errors="surrogatepass").replace(".", "%2E")
        for part in name.split("/")
    ]
    folders = [part or nothing for part in parts[:-1]]
    return directory.joinpath(*folders, f"{parts[-1] or _NOTHING}.npy")
