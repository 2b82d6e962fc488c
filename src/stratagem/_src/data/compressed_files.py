"""Reads the bytes of plain, GZIP and ZLIB files, with errors that name the file."""

from __future__ import annotations

import gzip
import os
import zlib
from typing import Any, BinaryIO, Protocol

from stratagem._src.core.errors import DataLossError, InvalidArgumentError, NotFoundError

__all__ = ["ByteReader", "as_path", "check_compression", "open_bytes"]

_COMPRESSED_BLOCK = 1 << 18
COMPRESSIONS = ("", "GZIP", "ZLIB")


class ByteReader(Protocol):
    """A file that is open for reading."""

    def read(self, size: int) -> bytes:
        """Returns up to ``size`` bytes, and ``b""`` only at the end."""

    def close(self) -> None:
        """Closes the file."""


def check_compression(compression_type: str | None) -> str:
    """Returns the name of a compression, ``""`` for none.

    Raises:
        InvalidArgumentError: If the name is unknown.
    """
    name = compression_type or ""
    if name not in COMPRESSIONS:
        raise InvalidArgumentError(
            f"compression_type must be None, '', 'GZIP' or 'ZLIB', got {compression_type!r}."
        )
    return name


def as_path(name: Any) -> str:
    """Returns a file name as ``str``; accepts text, bytes and paths.

    Raises:
        InvalidArgumentError: If it is anything else.
    """
    item = name.item() if hasattr(name, "item") else name
    if isinstance(item, bytes | str | os.PathLike):
        return os.fsdecode(item)
    raise InvalidArgumentError(f"A file name must be text, bytes or a path, got {name!r}.")


def open_bytes(path: str, compression: str = "", offset: int = 0) -> ByteReader:
    """Opens a file at an offset into its (decompressed) bytes.

    Raises:
        NotFoundError: If there is no such file.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.") from None
    if not compression:
        file.seek(offset)
        return file
    reader = _DecompressingReader(file, path, compression)
    while offset:
        skipped = len(reader.read(min(offset, _COMPRESSED_BLOCK)))
        if not skipped:
            break
        offset -= skipped
    return reader


class _DecompressingReader:
    def __init__(self, file: BinaryIO, path: str, compression: str) -> None:
        self._file = file
        self._path = path
        self._compression = compression
        zlib_reader: Any = _ZlibReader(file)
        self._bytes = gzip.GzipFile(fileobj=file) if compression == "GZIP" else zlib_reader

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._bytes.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise DataLossError(
                f"{self._path}: not a complete {self._compression} file ({error}). "
                "Check compression_type, or write the file again."
            ) from error
        return data

    def close(self) -> None:
        self._bytes.close()
        self._file.close()


class _ZlibReader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        while not self._inflate.eof:
            compressed = self._inflate.unconsumed_tail or self._file.read(_COMPRESSED_BLOCK)
            if not compressed:
                raise EOFError("unexpected end of file")
            data = self._inflate.decompress(compressed, size)
            if data:
                return data
        return b""

    def close(self) -> None:
        self._inflate = zlib.decompressobj()
