"""Arrays in ``.npy`` files, written and read piece by piece."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.core.errors import DataLossError

__all__ = ["ArrayFile", "write_array"]

Array = np.ndarray[Any, Any]


def write_array(path: Path, shape: Sequence[int], dtype: Any, blocks: Iterable[Array]) -> None:
    """Writes an array whose rows come in consecutive blocks, and sees it to the disk.

    NumPy knows no ``bfloat16``; such types are stored as unsigned integers of the same bytes.
    """
    stored = _stored_dtype(np.dtype(dtype))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        header = {"descr": stored.str, "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_2_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype).reshape(-1).view(stored).data)
        file.flush()
        os.fsync(file.fileno())


class ArrayFile:
    """An array in a file, of which only what is asked for is read.

    Args:
        path: The file.
        shape: The shape it must have.
        dtype: The element type it was written with.

    Raises:
        DataLossError: If the file is not what was written.
    """

    def __init__(self, path: Path, shape: Sequence[int], dtype: Any) -> None:
        self._path = path
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        try:
            array = np.load(path, mmap_mode="r" if math.prod(self.shape) else None)
        except (OSError, ValueError, EOFError) as error:
            raise DataLossError(f"The checkpoint's file {path} cannot be read: {error}") from error
        if array.shape != self.shape or array.dtype != _stored_dtype(self.dtype):
            raise DataLossError(
                f"The checkpoint's file {path} should hold {self.dtype.name}{list(self.shape)}, but "
                f"holds {array.dtype.name}{list(array.shape)}."
            )
        self._array = array

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows; everything of a scalar, and with ``end`` -1."""
        part = self._array if end == -1 or not self.shape else self._array[begin:end]
        return np.array(part).view(self.dtype)

    def whole(self) -> Array:
        """Returns the array."""
        return self.rows(0, -1)


def _stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    known_to_numpy = dtype.isbuiltin == 1
    return dtype if known_to_numpy else np.dtype(f"<u{dtype.itemsize}")
