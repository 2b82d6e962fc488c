"""How bytes travel: in records of limited size, which are encrypted unless TLS does it."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from stratagem._src.transport.byte_stream import ByteStream
from stratagem._src.transport.cipher import TAG_BYTES, Cipher

__all__ = ["Piece", "WireRecordReader", "WireRecordWriter"]

Piece: TypeAlias = bytes | memoryview

# Encrypting holds Python's lock, for a quarter of a millisecond per record.
_MOST_BYTES = 1024 * 1024
_SMALL_BYTES = 64 * 1024
_HEADER = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size
_SECONDS_WITHOUT_PROGRESS = 60.0


class WireRecordWriter:
    """The sending end. For one thread at a time.

    Args:
        stream: Where records go.

    Attributes:
        cipher: What encrypts; ``None`` in the clear.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.cipher: Cipher | None = None
        self._sealed = memoryview(bytearray())

    def protect(self, key: bytes | None) -> None:
        """Encrypts all that follows; with no key, sends it in the clear."""
        self.cipher = None if key is None else Cipher(key)

    def write(self, pieces: Sequence[Piece], deadline: float | None) -> None:
        """Sends pieces of memory one after the other. The reader has to expect the same cuts.

        The first piece and small ones after it go into one record, with 64 KiB at the most; what is
        larger is cut into records of its own.

        Raises:
            TimeoutError: If it takes too long; without a deadline, a minute without progress.
            OSError: If the connection breaks.
        """
        if len(pieces) == 1 and len(pieces[0]) <= _SMALL_BYTES:
            self._send([self._small(pieces[0])], deadline)
            return
        for record in _cut(pieces):
            if len(record) > 1 or len(record[0]) <= _SMALL_BYTES:
                self._send([self._small(b"".join(record))], deadline)
            else:
                self._send(self._large(record[0]), deadline)

    def _small(self, record: Piece) -> bytes:
        sealed = record if self.cipher is None else self.cipher.encrypt(record)
        return b"".join((_HEADER.pack(len(record)), sealed))

    def _large(self, record: Piece) -> list[Piece]:
        if self.cipher is None:
            return [_HEADER.pack(len(record)), record]
        end = _HEADER_BYTES + len(record) + TAG_BYTES
        if len(self._sealed) < end:
            self._sealed = memoryview(bytearray(end))
        _HEADER.pack_into(self._sealed, 0, len(record))
        self.cipher.encrypt_into(record, self._sealed[_HEADER_BYTES:end])
        return [self._sealed[:end]]

    def _send(self, pieces: list[Piece], deadline: float | None) -> None:
        while pieces:
            sent = self._stream.send(pieces, _limit(deadline))
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces[0])
                pieces = pieces[1:]
            if sent:
                pieces = [memoryview(pieces[0])[sent:], *pieces[1:]]


class WireRecordReader:
    """The receiving end. For one thread at a time.

    Args:
        stream: Where records come from.

    Attributes:
        cipher: What decrypts; ``None`` in the clear.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.cipher: Cipher | None = None
        self._ahead = memoryview(bytearray(_SMALL_BYTES))
        self._start = self._end = 0

    def protect(self, key: bytes | None) -> None:
        """Takes all that follows for encrypted, or with no key for sent in the clear."""
        self.cipher = None if key is None else Cipher(key)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was received has been read."""
        return self._start == self._end

    def wait(self, deadline: float | None) -> None:
        """Waits until there is something to read; ``None`` waits without an end.

        Raises:
            TimeoutError: If nothing comes before the deadline. One may wait again.
            OSError: If the connection breaks.
        """
        if self._start == self._end:
            self._start = 0
            self._end = self._stream.receive_into(self._ahead[:_SMALL_BYTES], deadline)

    def read(self, deadline: float | None) -> bytes:
        """Returns the next record.

        Raises:
            TimeoutError: If it takes too long; without a deadline, a minute without progress.
            TamperedError: If it is not what was sent.
            OSError: If the connection breaks.
            ValueError: If the other end is of another version.
        """
        sealed_bytes = self._next_size(_MOST_BYTES, deadline)
        if self.cipher is not None:
            sealed_bytes += TAG_BYTES
        self._receive(sealed_bytes, deadline)
        sealed = self._ahead[self._start : self._start + sealed_bytes]
        self._start += sealed_bytes
        return bytes(sealed) if self.cipher is None else self.cipher.decrypt(sealed)

    def read_into(self, view: memoryview, deadline: float | None) -> None:
        """Fills memory with the next records, which fit into it.

        Raises:
            TimeoutError: If it takes too long; without a deadline, a minute without progress.
            TamperedError: If it is not what was sent.
            OSError: If the connection breaks.
            ValueError: If the other end is of another version.
        """
        filled = 0
        while filled < len(view):
            size = self._next_size(len(view) - filled, deadline)
            self._open_into(view[filled : filled + size], deadline)
            filled += size

    def _next_size(self, most: int, deadline: float | None) -> int:
        self._receive(_HEADER_BYTES, deadline)
        (size,) = _HEADER.unpack_from(self._ahead, self._start)
        if not 0 < size <= min(most, _MOST_BYTES):
            raise ValueError(f"a record must have 1 to {min(most, _MOST_BYTES)} bytes, got {size}")
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
            filled += self._stream.receive_into(view[filled:], _limit(deadline), _awaited(missing))

    def _receive(self, num_bytes: int, deadline: float | None) -> None:
        """Makes so many bytes lie ahead, and after a large record the header of the next one too."""
        if self._end - self._start >= num_bytes:
            return
        most = max(num_bytes + _HEADER_BYTES, _SMALL_BYTES)
        waiting = self._ahead[self._start : self._end]
        if most > len(self._ahead):
            self._ahead = memoryview(bytearray(most))
        self._ahead[: len(waiting)] = waiting
        self._start, self._end = 0, len(waiting)
        while self._end < num_bytes:
            view, missing = self._ahead[self._end : most], num_bytes - self._end
            self._end += self._stream.receive_into(view, _limit(deadline), _awaited(missing))


def _cut(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    num_bytes = 0
    for piece in pieces:
        if group and num_bytes + len(piece) > _SMALL_BYTES:
            yield group
            group, num_bytes = [], 0
        if len(piece) > _SMALL_BYTES:
            whole = memoryview(piece)
            for start in range(0, len(whole), _MOST_BYTES):
                yield [whole[start : start + _MOST_BYTES]]
        else:
            group.append(piece)
            num_bytes += len(piece)
    if group:
        yield group


def _limit(deadline: float | None) -> float:
    return time.monotonic() + _SECONDS_WITHOUT_PROGRESS if deadline is None else deadline


def _awaited(missing: int) -> int:
    return missing if missing >= _SMALL_BYTES else 1
