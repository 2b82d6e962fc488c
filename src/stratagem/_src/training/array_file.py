"""Arrays in ``.npy`` files with checksums, written and read piece by piece."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google_crc32c import extend

from stratagem._src.core.errors import DataLossError, InvalidArgumentError

__all__ = ["ArrayFile", "write_array"]

Array = np.ndarray[Any, Any]

_CHUNK = 16 << 20


def write_array(path: Path, shape: Sequence[int], dtype: Any, blocks: Iterable[Array]) -> int:
    """Writes an array whose rows come in consecutive blocks, and sees it to the disk.

    NumPy knows no ``bfloat16``; such types are stored as unsigned integers of the same bytes.

    Returns:
        The CRC-32C of the file.

    Raises:
        InvalidArgumentError: If there is such a file.
    """
    stored = _stored_dtype(np.dtype(dtype))
    header = io.BytesIO()
    described = {"descr": stored.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_2_0(header, described)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("xb")
    except FileExistsError:
        raise InvalidArgumentError(
            f"Two names of a checkpoint need the same file {path.name!r}: this file system does not tell "
            "apart capital and small letters. Rename one."
        ) from None
    with file:
        file.write(header.getvalue())
        checksum = extend(0, header.getvalue())
        for block in blocks:
            raw = np.ascontiguousarray(block, dtype).reshape(-1).view(np.uint8)
            file.write(raw.data)
            checksum = extend(checksum, raw)
        file.flush()
        os.fsync(file.fileno())
    return int(checksum)


class ArrayFile:
    """An array in a file, of which only what is asked for is read.

    Args:
        path: The file.
        shape: The shape it must have.
        dtype: The element type it was written with.
        checksum: The CRC-32C that the file must have; ``None`` if it was not noted.

    Raises:
        DataLossError: In all methods, if the file is not what was written.
    """

    def __init__(
        self, path: Path, shape: Sequence[int], dtype: Any, checksum: int | None = None
    ) -> None:
        self._path = path
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self._checksum = checksum
        self._begin = 0

    def verify(self) -> None:
        """Checks all of the file, without holding more than a piece of it."""
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

    def whole(self) -> Array:
        """Returns the array, when all of the file has been checked."""
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise self._loss(f"cannot be read: {error.strerror or error}") from error
        self._check_checksum(extend(0, content))
        self._check_header(io.BytesIO(content), len(content))
        stored = np.frombuffer(content, _stored_dtype(self.dtype), offset=self._begin)
        return stored.view(self.dtype).reshape(self.shape)

    def rows(self, begin: int, end: int) -> Array:
        """Returns consecutive rows, after ``verify``; everything of a scalar, and with ``end`` -1."""
        whole = end == -1 or not self.shape
        shape = self.shape if whole else (end - begin, *self.shape[1:])
        offset = 0 if whole else begin * math.prod(self.shape[1:]) * self.dtype.itemsize
        stored = _stored_dtype(self.dtype)
        count = math.prod(shape)
        try:
            # Not a memory map, whose pages would count as this process's memory.
            values = np.fromfile(self._path, stored, count, offset=self._begin + offset)
        except OSError as error:
            raise self._loss(f"cannot be read: {error.strerror or error}") from error
        if values.size != count:
            raise self._loss("has become shorter while it was read")
        return values.view(self.dtype).reshape(shape)

    def _check_checksum(self, found: int) -> None:
        if self._checksum is not None and found != self._checksum:
            raise self._loss(
                f"is damaged: its CRC-32C is {found:08x}, and was {self._checksum:08x} when it was saved"
            )

    def _check_header(self, file: Any, num_bytes: int) -> None:
        try:
            np.lib.format.read_magic(file)
            found, in_columns, stored = np.lib.format.read_array_header_2_0(file)
        except Exception as error:  # NumPy's parser raises many things
            raise self._loss(f"has a damaged header: {error}") from error
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
