"""Weights that Keras 2 has written to an HDF5 file, by ``save_weights`` or ``save`` with a name in ``.h5``.

The file has a group for each layer, and in it an array for each weight. It has no checksums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google_crc32c import extend as extend_checksum

from stratagem._src.checkpoint.tensorflow.sstable import corrupt
from stratagem._src.core.errors import InvalidArgumentError, MissingExtraError, NotFoundError

__all__ = ["H5Weights", "is_h5_file"]

Array = np.ndarray[Any, Any]

_SUFFIXES = (".h5", ".hdf5")
_WHOLE_MODEL = "model_weights"
_BLOCK_BYTES = 1 << 20


def is_h5_file(path: Path) -> bool:
    """Returns whether a path is that of an HDF5 file, by its name."""
    return path.name.endswith(_SUFFIXES) and path.is_file()


class H5Weights:
    """The weights of an HDF5 file by their paths in it.

    Args:
        path: The file.

    Attributes:
        layers: The names of the weights of each layer that has some, in the model's order.
        shapes: The shape of each weight.
        fingerprint: A number that differs for files with other content.

    Raises:
        InvalidArgumentError: If it is not a file of Keras 2.
        DataLossError: If it is corrupt.
        MissingExtraError: If h5py is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.layers: list[list[str]] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        with self._opened() as file:
            prefix = f"{_WHOLE_MODEL}/" if _WHOLE_MODEL in file else ""
            root = file[prefix] if prefix else file
            if "layer_names" not in root.attrs and "layer_names0" not in root.attrs:
                raise InvalidArgumentError(
                    f"{path} does not have the layout of Keras 2 weights. Load it by model.load_weights() "
                    "or keras.saving.load_model()."
                )
            for layer in _names(root, "layer_names"):
                names = [f"{prefix}{layer}/{name}" for name in _names(root[layer], "weight_names")]
                if names:
                    self.layers.append(names)
                for name in names:
                    self.shapes[name] = tuple(file[name].shape)
                    self._dtypes[name] = np.dtype(file[name].dtype)
        self.fingerprint: int = _checksum(path)

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def dtype(self, name: str) -> np.dtype[Any]:
        """Returns the element type of a weight."""
        return self._dtypes[name]

    def readable_names(self) -> list[str]:
        """Returns the names of all weights, sorted."""
        return sorted(self.shapes)

    def tensor(self, name: str) -> H5Tensor:
        """Returns a weight, which is still in the file.

        Raises:
            NotFoundError: If there is no such weight.
        """
        if name not in self.shapes:
            raise NotFoundError(
                f"The file {self._path} has no weight {name!r}; it has {self.readable_names()}."
            )
        return H5Tensor(self, name)

    def read(self, name: str) -> Array:
        """Reads a weight."""
        with self._opened() as file:
            return np.asarray(file[name][()])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            import h5py
        except ImportError as error:
            raise MissingExtraError(
                "Keras weights in .h5 files need h5py: pip install stratagem[keras]."
            ) from error
        try:
            with h5py.File(self._path, "r") as file:
                yield file
        except (OSError, KeyError, RuntimeError, TypeError, UnicodeDecodeError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise corrupt(
                self._path, f"it is truncated or not an HDF5 file of Keras ({error})"
            ) from error


class H5Tensor:
    """A weight in an HDF5 file. See ``SavedArray``."""

    def __init__(self, weights: H5Weights, name: str) -> None:
        self._weights, self._name = weights, name
        self.shape: tuple[int, ...] = weights.shapes[name]
        self.dtype: np.dtype[Any] = weights.dtype(name)

    def start_read(self) -> None:
        """Does nothing: it is read when it is asked for."""

    def read(self) -> Array:
        """Returns the weight."""
        return self._weights.read(self._name)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows."""
        return self.read() if end == -1 or not self.shape else self.read()[begin:end]

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Reads it: there is no checksum."""
        self.read()


def _names(group: Any, attribute: str) -> list[str]:
    """Returns names from an attribute, which Keras splits when it has more than 64 kB."""
    if attribute in group.attrs:
        found = list(group.attrs[attribute])
    else:
        found, number = [], 0
        while f"{attribute}{number}" in group.attrs:
            found += list(group.attrs[f"{attribute}{number}"])
            number += 1
    return [name.decode() if isinstance(name, bytes) else str(name) for name in found]


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = extend_checksum(checksum, block)
    return int(checksum)
