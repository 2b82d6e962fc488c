"""The TFRecord format: length (8 bytes), checksum of the length, data, checksum of the data.

Both checksums are masked CRC-32C (4 bytes): rotated, with an offset added. All numbers are little endian.
"""

from __future__ import annotations

import collections
import itertools
import struct
from collections.abc import Iterator
from operator import length_hint
from typing import Any, Self

import numpy as np
from google_crc32c import value as crc32c

from stratagem._src.core.errors import DataLossError
from stratagem._src.core.types import ArrayLike
from stratagem._src.data.compressed_files import ByteReader, open_bytes

__all__ = ["TFRecordReader", "encode_record"]

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_BLOCK = 1 << 20
_MAX_READ_BYTES = 1 << 26
_MASK_DELTA = 0xA282EAD8
_UINT32_MAX = 0xFFFFFFFF
_MAX_CACHED_HEADERS = 1 << 12

_Ends = np.ndarray[Any, np.dtype[np.int64]]


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _UINT32_MAX


def encode_record(record: bytes) -> bytes:
    """Returns a record framed with its length and checksums."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            _CHECKSUM.pack(_masked(crc32c(length))),
            record,
            _CHECKSUM.pack(_masked(crc32c(record))),
        )
    )


class TFRecordReader:
    """Reads the records of one file in large blocks.

    Args:
        path: The file.
        compression: ``""``, ``"GZIP"`` or ``"ZLIB"``.
    """

    def __init__(self, path: str, compression: str = "") -> None:
        self._path = path
        self._compression = compression
        self._file: ByteReader | None = None
        self._unparsed = b""
        self._offset = 0
        self._number = 0
        # A cache of headers with a valid checksum; most files have few different record lengths.
        self._lengths: dict[bytes, int] = {}
        self._set_records([], _ends([]))
        self._error: DataLossError | None = None
        self._has_failed = False
        self._ended = False

    def start_at(self, offset: int, number: int) -> None:
        """Sets the start position of a reader that has not read anything yet.

        Args:
            offset: The offset of the first record to read, in decompressed bytes.
            number: The index of that record.
        """
        self._offset, self._number = offset, number

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for record in self._rest:
            return record
        if not self._read_block():
            raise StopIteration
        return next(self._rest)

    def elements(self) -> Iterator[bytes]:
        """Returns an iterator over the remaining records; see ``Stream.elements``."""
        return itertools.chain.from_iterable(iter(self._next_part, None))

    def _next_part(self) -> Iterator[bytes] | None:
        return self._rest if length_hint(self._rest) or self._read_block() else None

    def take(self, count: int) -> list[bytes]:
        """Returns the next ``count`` records: fewer only at the end."""
        records = list(itertools.islice(self._rest, count))
        while len(records) < count and self._read_block():
            records += itertools.islice(self._rest, count - len(records))
        return records

    def skip(self, count: int) -> int:
        """Skips up to ``count`` records and returns how many were skipped."""
        left = count
        while left and (length_hint(self._rest) or self._read_block()):
            step = min(left, length_hint(self._rest))
            collections.deque(itertools.islice(self._rest, step), maxlen=0)
            left -= step
        return count - left

    @property
    def position(self) -> tuple[int, int]:
        """The offset and the index of the next record."""
        taken = len(self._ends) - length_hint(self._rest)
        offset = int(self._ends[taken - 1]) if taken else 0
        return self._offset + offset, self._number + taken

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    @property
    def has_failed(self) -> bool:
        """Whether a record could not be read; the records after it cannot be located."""
        return self._has_failed

    def end(self) -> None:
        """Ends the reader: it returns no more records."""
        self._set_records([], _ends([]))
        self._ended = True
        self.close()

    def _read_block(self) -> bool:
        """Parses the complete records of the next block, and returns whether there are any."""
        try:
            return not self._ended and self._parse_next_block()
        except Exception:
            self._has_failed = True
            raise

    def _parse_next_block(self) -> bool:
        if self._file is None:
            self._file = open_bytes(self._path, self._compression, self._offset)
        self._offset, self._number = self.position
        self._set_records([], _ends([]))
        while not length_hint(self._rest):
            if self._error is not None:
                raise self._error
            block = self._file.read(max(_BLOCK, min(self._missing_bytes(), _MAX_READ_BYTES)))
            if not block:
                if self._unparsed:
                    raise self._corrupt_record_error(self._number, self._offset, self._truncation())
                self._ended = True
                self.close()
                return False
            data = self._unparsed + block if self._unparsed else block
            self._unparsed = data[self._parse(data) :]
        return True

    def _set_records(self, records: list[bytes], ends: _Ends) -> None:
        """Sets the records to return next; ``ends`` are their end offsets in the block."""
        self._rest, self._ends = iter(records), ends

    def _parse(self, data: bytes) -> int:
        """Keeps the complete records of ``data`` and returns the offset of the first incomplete one."""
        records, problem = self._split(data)
        ends = _ends(records)
        first_bad = _first_bad_checksum(data, records, ends)
        if first_bad is not None:
            problem = "the checksum of its data does not match"
            records, ends = records[:first_bad], ends[:first_bad]
        stop = int(ends[-1]) if records else 0
        self._set_records(records, ends)
        if problem:
            self._error = self._corrupt_record_error(
                self._number + len(records), self._offset + stop, problem
            )
        return stop

    def _split(self, data: bytes) -> tuple[list[bytes], str]:
        """Returns the complete records before the first corrupt length, and a description of the error."""
        records: list[bytes] = []
        lengths = self._lengths
        position, size = 0, len(data)
        while position + 12 <= size:
            header = data[position : position + 12]
            length = lengths.get(header)
            if length is None:
                length, checksum = _HEADER.unpack(header)
                if _masked(crc32c(header[:8])) != checksum:
                    return records, "the checksum of its length does not match"
                if len(lengths) == _MAX_CACHED_HEADERS:
                    lengths.clear()
                lengths[header] = length
            start = position + 12
            stop = start + length
            position = stop + 4
            if position > size:
                break
            records.append(data[start:stop])
        return records, ""

    def _missing_bytes(self) -> int:
        """Returns how many bytes of the next record are missing, 0 if its header is incomplete."""
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

    def _corrupt_record_error(self, number: int, offset: int, problem: str) -> DataLossError:
        compressed = f" of the {self._compression} data" if self._compression else ""
        return DataLossError(
            f"{self._path}: record {number} at byte {offset}{compressed}: {problem}. The file is "
            "truncated or corrupt, or not a TFRecord file of this compression_type."
        )


def _ends(records: list[bytes]) -> _Ends:
    """Returns the end offsets of consecutive records."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    return np.cumsum(lengths + _HEADER.size + _CHECKSUM.size)


def _first_bad_checksum(data: bytes, records: list[bytes], ends: ArrayLike) -> int | None:
    """Returns the index of the first record in ``data`` with a bad data checksum, if any."""
    checksums = np.fromiter(map(crc32c, records), np.uint32, len(records))
    masked = (checksums >> 15 | checksums << 17) + np.uint32(_MASK_DELTA)
    places = ends[:, None] + np.arange(-_CHECKSUM.size, 0)
    stored = np.frombuffer(data, np.uint8)[places].view("<u4")[:, 0]
    wrong = np.flatnonzero(masked != stored)
    return int(wrong[0]) if len(wrong) else None
