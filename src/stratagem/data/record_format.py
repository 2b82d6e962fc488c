"""The TFRecord format: length, checksum of the length, data, checksum of the data.

Both checksums are CRC-32C, rotated and offset.
"""

from __future__ import annotations

import struct
from typing import Any

from google_crc32c import value as crc32c

from stratagem.core.errors import DataLossError
from stratagem.data.byte_files import ByteReader, open_bytes

__all__ = ["RecordReader", "frame"]

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_BLOCK = 1 << 20
_LARGEST_READ = 1 << 26
_MASK = 0xA282EAD8
_WORD = 0xFFFFFFFF


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK) & _WORD


def frame(record: bytes) -> bytes:
    """Returns a record with its length and checksums."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            _CHECKSUM.pack(_masked(crc32c(length))),
            record,
            _CHECKSUM.pack(_masked(crc32c(record))),
        )
    )


class RecordReader:
    """The records of one file, read in large blocks.

    Args:
        path: The file.
        compression: ``""``, ``"GZIP"`` or ``"ZLIB"``.
        offset: Where the first record to read starts, in decompressed bytes.
        number: The number of that record.
    """

    def __init__(self, path: str, compression: str = "", offset: int = 0, number: int = 0) -> None:
        self._path = path
        self._compression = compression
        self._file: ByteReader | None = None
        self._unparsed = b""
        self._offset = offset
        self._number = number
        self._ready: list[bytes] = []
        self._ends: list[int] = []
        self._taken = 0
        self._error: DataLossError | None = None
        self._ended = False

    def __iter__(self) -> RecordReader:
        return self

    def __next__(self) -> bytes:
        taken = self._taken
        if taken >= len(self._ready):
            self._read_block()
            taken = 0
        self._taken = taken + 1
        return self._ready[taken]

    def skip(self, count: int) -> int:
        """Drops up to ``count`` records and returns how many there were."""
        skipped = 0
        while skipped < count:
            if self._taken >= len(self._ready):
                try:
                    self._read_block()
                except StopIteration:
                    break
            step = min(count - skipped, len(self._ready) - self._taken)
            self._taken += step
            skipped += step
        return skipped

    @property
    def position(self) -> tuple[int, int]:
        """The offset and the number of the next record."""
        offset = self._ends[self._taken - 1] if self._taken else self._offset
        return offset, self._number + self._taken

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _read_block(self) -> None:
        """Parses the records that are complete in the next block, so there is at least one."""
        if self._ended:
            raise StopIteration
        if self._file is None:
            self._file = open_bytes(self._path, self._compression, self._offset)
        self._offset, self._number = self.position
        self._ready, self._ends, self._taken = [], [], 0
        while not self._ready:
            if self._error is not None:
                raise self._error
            block = self._file.read(max(_BLOCK, min(self._missing_bytes(), _LARGEST_READ)))
            if not block:
                if self._unparsed:
                    raise self._broken(self._number, self._offset, self._truncation())
                self._ended = True
                self.close()
                raise StopIteration
            data = self._unparsed + block if self._unparsed else block
            self._unparsed = data[self._parse(data) :]

    def _parse(self, data: bytes) -> int:
        """Appends the complete records of ``data`` and returns where the first other starts."""
        ready, ends, base = self._ready, self._ends, self._offset
        unpack_header, unpack_checksum = _HEADER.unpack_from, _CHECKSUM.unpack_from
        position, size = 0, len(data)
        while position + 12 <= size:
            length, length_checksum = unpack_header(data, position)
            checksum = crc32c(data[position : position + 8])
            if ((checksum >> 15 | checksum << 17) + _MASK) & _WORD != length_checksum:
                self._fail(position, "the checksum of its length does not match")
                break
            start = position + 12
            stop = start + length
            if stop + 4 > size:
                break
            record = data[start:stop]
            checksum = crc32c(record)
            (stored,) = unpack_checksum(data, stop)
            if ((checksum >> 15 | checksum << 17) + _MASK) & _WORD != stored:
                self._fail(position, "the checksum of its data does not match")
                break
            position = stop + 4
            ready.append(record)
            ends.append(base + position)
        return position

    def _fail(self, position: int, problem: str) -> None:
        number = self._number + len(self._ready)
        self._error = self._broken(number, self._offset + position, problem)
        if not self._ready:
            raise self._error

    def _missing_bytes(self) -> int:
        """Returns how much of a record whose header is read is still to come."""
        if len(self._unparsed) < _HEADER.size:
            return 0
        length: int = _HEADER.unpack_from(self._unparsed)[0]
        return length + _HEADER.size + _CHECKSUM.size - len(self._unparsed)

    def _truncation(self) -> str:
        have = len(self._unparsed)
        need: Any = "12 bytes of header"
        if have >= _HEADER.size:
            need = f"{_HEADER.unpack_from(self._unparsed)[0] + 16} bytes"
        return f"it needs {need}, the file ends after {have}"

    def _broken(self, number: int, offset: int, problem: str) -> DataLossError:
        compressed = f" of the {self._compression} data" if self._compression else ""
        return DataLossError(
            f"{self._path}: record {number} at byte {offset}{compressed}: {problem}. The file is "
            "truncated or corrupt, or not a TFRecord file of this compression_type."
        )
