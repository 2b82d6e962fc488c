"""Arrays in ``.npy`` files with checksums, read in blocks."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google_crc32c import extend

from stratagem._src.core.errors import DataLossError
from stratagem._src.core.types import DTypeLike

__all__ = ["ArrayFile"]

Array = np.ndarray[Any, Any]

_CHUNK = 16 << 20


class ArrayFile:
    """An array in a file that is read lazily, by rows.

    Args:
        path: The file.
        shape: The expected shape.
        dtype: The dtype it was written with.
        checksum: The expected CRC-32C of the file; ``None`` if it was not recorded.

    Raises:
        DataLossError: In all methods, if the file is corrupt.
    """

    def __init__(
        self, path: Path, shape: Sequence[int], dtype: DTypeLike, checksum: int | None = None
    ) -> None:
        self._path = path
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self._checksum = checksum
        self._begin = 0

    def start_read(self) -> None:
        """Does nothing: files are read one after the other."""

    def verify(self, begin: int = 0, end: int = -1) -> None:
        """Checks the whole file in blocks, regardless of the rows."""
        try:
            with self._path.open("rb") as file:
                checksum = 0
                while chunk := file.read(_CHUNK):
                    checksum = extend(checksum, chunk)
                num_bytes = file.tell()
                self._check_checksum(checksum)
                file.seek(0)
                self._check_header(file, num_bytes)
        except OSError as error:
            raise self._loss(f"cannot be read: {error.strerror or error}") from error

    def read(self) -> Array:
        """Returns the full array, after a check of the whole file."""
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise self._loss(f"cannot be read: {error.strerror or error}") from error
        self._check_checksum(extend(0, content))
        self._check_header(io.BytesIO(content), len(content))
        stored = np.frombuffer(content, _stored_dtype(self.dtype), offset=self._begin)
        return stored.view(self.dtype).reshape(self.shape)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows, after ``verify``; the full array if ``end`` is -1 or it is a scalar."""
        is_full = end == -1 or not self.shape
        shape = self.shape if is_full else (end - begin, *self.shape[1:])
        offset = 0 if is_full else begin * math.prod(self.shape[1:]) * self.dtype.itemsize
        stored = _stored_dtype(self.dtype)
        count = math.prod(shape)
        try:
            # Not a memory map: its pages would count as resident memory of this process.
            values = np.fromfile(self._path, stored, count, offset=self._begin + offset)
        except OSError as error:
            raise self._loss(f"cannot be read: {error.strerror or error}") from error
        if values.size != count:
            raise self._loss("was truncated while it was read")
        return values.view(self.dtype).reshape(shape)

    def _check_checksum(self, found: int) -> None:
        if self._checksum is not None and found != self._checksum:
            raise self._loss(
                f"is corrupt: its CRC-32C is {found:08x}, and was {self._checksum:08x} when it was saved"
            )

    def _check_header(self, file: Any, num_bytes: int) -> None:
        try:
            np.lib.format.read_magic(file)
            found, in_columns, stored = np.lib.format.read_array_header_2_0(file)
        except Exception as error:  # NumPy's parser raises many things
            raise self._loss(f"has a corrupt header: {error}") from error
        self._begin = file.tell()
        wanted = _stored_dtype(self.dtype)
        expected = math.prod(self.shape) * wanted.itemsize
        num_bytes -= self._begin
        if found != self.shape or stored != wanted or in_columns or num_bytes != expected:
            raise self._loss(
                f"should hold {self.dtype.name}{list(self.shape)}, {expected} bytes, but holds "
                f"{stored.name}{list(found)}, {num_bytes} bytes"
            )

    def _loss(self, what: str) -> DataLossError:
        return DataLossError(f"The checkpoint's file {self._path} {what}.")


def _stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    known_to_numpy = dtype.isbuiltin == 1
    return dtype if known_to_numpy else np.dtype(f"<u{dtype.itemsize}")
