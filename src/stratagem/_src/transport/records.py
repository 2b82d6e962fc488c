"""Records: the units in which bytes are framed and, unless TLS does it, encrypted.

A record is a 4-byte length followed by that many bytes of plaintext, or of ciphertext plus its tag.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from stratagem._src.transport.byte_stream import ByteStream
from stratagem._src.transport.cipher import TAG_BYTES, Cipher

__all__ = ["Buffer", "WireRecordReader", "WireRecordWriter"]

Buffer: TypeAlias = bytes | memoryview

# Encryption holds the GIL, for a quarter of a millisecond per record of this size.
_MAX_RECORD_BYTES = 1024 * 1024
_SMALL_BYTES = 64 * 1024
_HEADER = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size
_STALL_TIMEOUT = 60.0
_MIN_BYTES_PER_SECOND = 125_000  # 1 Mbit/s


class WireRecordWriter:
    """Writes records to a stream. Not thread-safe.

    Args:
        stream: The stream.

    Attributes:
        cipher: Encrypts the records; ``None`` for plaintext.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.cipher: Cipher | None = None
        self._sealed = memoryview(bytearray())

    def protect(self, key: bytes | None) -> None:
        """Encrypts all following records; with ``None``, sends them as plaintext."""
        self.cipher = None if key is None else Cipher(key)

    def write(self, buffers: Sequence[Buffer], deadline: float | None) -> None:
        """Sends buffers one after the other. The reader must expect the same record boundaries.

        The first buffer and small ones after it share one record of at most 64 KiB. Larger buffers are
        split into records of their own.

        Raises:
            TimeoutError: If the deadline passes. Without one, after a minute without progress, or a minute
                later than the bytes take at 1 Mbit/s.
            OSError: If the connection breaks.
        """
        if deadline is None:
            # A peer that reads a byte now and then would otherwise hold the thread forever.
            seconds = sum(map(len, buffers)) / _MIN_BYTES_PER_SECOND
            self._write(buffers, time.monotonic() + _STALL_TIMEOUT + seconds, _STALL_TIMEOUT)
        else:
            self._write(buffers, deadline, math.inf)

    def _write(self, buffers: Sequence[Buffer], deadline: float, stall_timeout: float) -> None:
        if len(buffers) == 1 and len(buffers[0]) <= _SMALL_BYTES:
            self._send([self._small(buffers[0])], deadline, stall_timeout)
            return
        for record in _split_into_records(buffers):
            if len(record) > 1 or len(record[0]) <= _SMALL_BYTES:
                self._send([self._small(b"".join(record))], deadline, stall_timeout)
            else:
                self._send(self._large(record[0]), deadline, stall_timeout)

    def _small(self, record: Buffer) -> bytes:
        sealed = record if self.cipher is None else self.cipher.encrypt(record)
        return b"".join((_HEADER.pack(len(record)), sealed))

    def _large(self, record: Buffer) -> list[Buffer]:
        if self.cipher is None:
            return [_HEADER.pack(len(record)), record]
        end = _HEADER_BYTES + len(record) + TAG_BYTES
        if len(self._sealed) < end:
            self._sealed = memoryview(bytearray(end))
        _HEADER.pack_into(self._sealed, 0, len(record))
        self.cipher.encrypt_into(record, self._sealed[_HEADER_BYTES:end])
        return [self._sealed[:end]]

    def _send(self, buffers: list[Buffer], deadline: float, stall_timeout: float) -> None:
        while buffers:
            until = min(deadline, time.monotonic() + stall_timeout)
            sent = self._stream.send(buffers, until)
            while buffers and sent >= len(buffers[0]):
                sent -= len(buffers[0])
                buffers = buffers[1:]
            if sent:
                buffers = [memoryview(buffers[0])[sent:], *buffers[1:]]


class WireRecordReader:
    """Reads records from a stream. Not thread-safe.

    Args:
        stream: The stream.

    Attributes:
        cipher: Decrypts the records; ``None`` for plaintext.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.cipher: Cipher | None = None
        self._ahead = memoryview(bytearray(_SMALL_BYTES))
        self._start = self._end = 0

    def protect(self, key: bytes | None) -> None:
        """Decrypts all following records; with ``None``, reads them as plaintext."""
        self.cipher = None if key is None else Cipher(key)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was received has been read."""
        return self._start == self._end

    def wait(self, deadline: float | None) -> None:
        """Waits until there is data to read; without a deadline, indefinitely.

        Raises:
            TimeoutError: If nothing arrives before the deadline. The caller may wait again.
            OSError: If the connection breaks.
        """
        if self._start == self._end:
            self._start = 0
            self._end = self._stream.receive_into(self._ahead[:_SMALL_BYTES], deadline)

    def read(self, deadline: float | None) -> bytes:
        """Returns the next record.

        Raises:
            TimeoutError: If the deadline passes; without one, after a minute without progress.
            TamperedError: If the data was modified in transit.
            OSError: If the connection breaks.
            ValueError: If the peer runs another version.
        """
        sealed_bytes = self._next_size(_MAX_RECORD_BYTES, deadline)
        if self.cipher is not None:
            sealed_bytes += TAG_BYTES
        self._receive(sealed_bytes, deadline)
        sealed = self._ahead[self._start : self._start + sealed_bytes]
        self._start += sealed_bytes
        return bytes(sealed) if self.cipher is None else self.cipher.decrypt(sealed)

    def read_into(self, view: memoryview, deadline: float | None) -> None:
        """Fills ``view`` with the next records, whose sizes add up to it.

        Raises:
            TimeoutError: If the deadline passes; without one, after a minute without progress.
            TamperedError: If the data was modified in transit.
            OSError: If the connection breaks.
            ValueError: If the peer runs another version.
        """
        filled = 0
        while filled < len(view):
            size = self._next_size(len(view) - filled, deadline)
            self._open_into(view[filled : filled + size], deadline)
            filled += size

    def _next_size(self, max_bytes: int, deadline: float | None) -> int:
        self._receive(_HEADER_BYTES, deadline)
        (size,) = _HEADER.unpack_from(self._ahead, self._start)
        # Checked before anything is allocated: the length comes from the peer.
        if not 0 < size <= min(max_bytes, _MAX_RECORD_BYTES):
            raise ValueError(
                f"a record must have 1 to {min(max_bytes, _MAX_RECORD_BYTES)} bytes, got {size}"
            )
        self._start += _HEADER_BYTES
        return int(size)

    def _open_into(self, view: memoryview, deadline: float | None) -> None:
        if self.cipher is not None:
            size = len(view) + TAG_BYTES
            self._receive(size, deadline)
            self.cipher.decrypt_into(self._ahead[self._start : self._start + size], view)
            self._start += size
            return
        filled = min(len(view), self._end - self._start)
        view[:filled] = self._ahead[self._start : self._start + filled]
        self._start += filled
        while filled < len(view):
            missing = len(view) - filled
            filled += self._stream.receive_into(
                view[filled:], _deadline_or_stall(deadline), _low_watermark(missing)
            )

    def _receive(self, num_bytes: int, deadline: float | None) -> None:
        """Buffers at least ``num_bytes`` ahead, and after a large record the header of the next one too."""
        if self._end - self._start >= num_bytes:
            return
        capacity = max(num_bytes + _HEADER_BYTES, _SMALL_BYTES)
        waiting = self._ahead[self._start : self._end]
        if capacity > len(self._ahead):
            self._ahead = memoryview(bytearray(capacity))
        self._ahead[: len(waiting)] = waiting
        self._start, self._end = 0, len(waiting)
        while self._end < num_bytes:
            view, missing = self._ahead[self._end : capacity], num_bytes - self._end
            self._end += self._stream.receive_into(
                view, _deadline_or_stall(deadline), _low_watermark(missing)
            )


def _split_into_records(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    group: list[Buffer] = []
    num_bytes = 0
    for buffer in buffers:
        if group and num_bytes + len(buffer) > _SMALL_BYTES:
            yield group
            group, num_bytes = [], 0
        if len(buffer) > _SMALL_BYTES:
            view = memoryview(buffer)
            for start in range(0, len(view), _MAX_RECORD_BYTES):
                yield [view[start : start + _MAX_RECORD_BYTES]]
        else:
            group.append(buffer)
            num_bytes += len(buffer)
    if group:
        yield group


def _deadline_or_stall(deadline: float | None) -> float:
    return time.monotonic() + _STALL_TIMEOUT if deadline is None else deadline


def _low_watermark(missing: int) -> int:
    return missing if missing >= _SMALL_BYTES else 1
