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
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                found, _, stored = np.lib.format.read_array_header_2_0(file)
                self._begin = file.tell()
                num_bytes = os.fstat(file.fileno()).st_size - self._begin
        except (OSError, ValueError) as error:
            raise DataLossError(f"The checkpoint's file {path} cannot be read: {error}") from error
        wanted = _stored_dtype(self.dtype)
        expected = math.prod(self.shape) * wanted.itemsize
        if found != self.shape or stored != wanted or num_bytes != expected:
            raise DataLossError(
                f"The checkpoint's file {path} should hold {self.dtype.name}{list(self.shape)}, "
                f"{expected} bytes, but holds {stored.name}{list(found)}, {num_bytes} bytes."
            )

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows; everything of a scalar, and with ``end`` -1."""
        whole = end == -1 or not self.shape
        shape = self.shape if whole else (end - begin, *self.shape[1:])
        offset = 0 if whole else begin * math.prod(self.shape[1:]) * self.dtype.itemsize
        stored = _stored_dtype(self.dtype)
        # Not a memory map, whose pages would count as this process's memory.
        values = np.fromfile(self._path, stored, math.prod(shape), offset=self._begin + offset)
        return values.view(self.dtype).reshape(shape)

    def whole(self) -> Array:
        """Returns the array."""
        return self.rows(0, -1)


def _stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    known_to_numpy = dtype.isbuiltin == 1
    return dtype if known_to_numpy else np.dtype(f"<u{dtype.itemsize}")
