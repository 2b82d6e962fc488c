"""How bytes travel: in records of limited size, which are encrypted unless TLS does it."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence

from stratagem.cluster.transport.cipher import TAG_BYTES, Cipher, TamperedError
from stratagem.cluster.transport.stream import Stream

__all__ = ["MOST_RECORD_BYTES", "RecordReader", "RecordWriter", "send_all"]

# Encrypting holds Python's lock, and what stays in the processor's cache is encrypted faster.
MOST_RECORD_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_HEADER = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size
_SECONDS_WITHOUT_PROGRESS = 60.0
_NOTHING = memoryview(b"")


class RecordWriter:
    """The sending end. For one thread at a time.

    Args:
        stream: Where records go.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._cipher: Cipher | None = None
        self._sealed = memoryview(bytearray())

    def protect(self, key: bytes) -> None:
        """Encrypts all that follows."""
        self._cipher = Cipher(key)

    def write(self, pieces: Sequence[memoryview], deadline: float | None) -> None:
        """Sends pieces of memory one after the other.

        Raises:
            TimeoutError: If it takes too long.
            OSError: If the connection breaks.
        """
        for record in _cut(pieces):
            send_all(self._stream, self._wrapped(record), deadline)

    def _wrapped(self, record: list[memoryview]) -> list[memoryview]:
        size = sum(map(len, record))
        if self._cipher is None:
            header = _HEADER.pack(size)
            if size <= _SMALL_BYTES:
                return [memoryview(b"".join((header, *record)))]
            return [memoryview(header), *record]
        end = _HEADER_BYTES + size + TAG_BYTES
        if len(self._sealed) < end:
            self._sealed = memoryview(bytearray(end))
        _HEADER.pack_into(self._sealed, 0, size)
        data = record[0] if len(record) == 1 else b"".join(record)
        self._cipher.encrypt_into(data, self._sealed[_HEADER_BYTES:end])
        return [self._sealed[:end]]


class RecordReader:
    """The receiving end. For one thread at a time.

    Args:
        stream: Where records come from.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._cipher: Cipher | None = None
        self._ahead = memoryview(bytearray(_SMALL_BYTES))
        self._start = self._end = 0
        self._opened = _NOTHING

    def protect(self, key: bytes) -> None:
        """Takes all that follows for encrypted."""
        self._cipher = Cipher(key)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was received has been read."""
        return self._start == self._end and not self._opened

    def wait(self, deadline: float | None) -> None:
        """Waits until there is something to read; ``None`` waits without an end.

        Raises:
            TimeoutError: If nothing comes before the deadline. One may wait again.
            OSError: If the connection breaks.
        """
        if self.is_empty:
            self._start = 0
            self._end = self._stream.receive_into(self._ahead[:_SMALL_BYTES], deadline)

    def read_into(self, view: memoryview, deadline: float | None) -> None:
        """Fills memory with what was sent.

        Raises:
            TimeoutError: If it takes too long.
            TamperedError: If it is not what was sent.
            OSError: If the connection breaks.
        """
        filled = self._take_opened(view)
        while filled < len(view):
            size = self._next_size(deadline)
            if size <= len(view) - filled:
                self._open_into(view[filled : filled + size], deadline)
                filled += size
            else:
                self._opened = memoryview(bytearray(size))
                self._open_into(self._opened, deadline)
                filled += self._take_opened(view[filled:])

    def _take_opened(self, view: memoryview) -> int:
        taken = min(len(view), len(self._opened))
        view[:taken] = self._opened[:taken]
        self._opened = self._opened[taken:] if taken < len(self._opened) else _NOTHING
        return taken

    def _next_size(self, deadline: float | None) -> int:
        self._receive(_HEADER_BYTES, deadline)
        (size,) = _HEADER.unpack_from(self._ahead, self._start)
        if not 0 < size <= MOST_RECORD_BYTES:
            raise TamperedError(f"a record of {size} bytes came")
        self._start += _HEADER_BYTES
        return int(size)

    def _open_into(self, view: memoryview, deadline: float | None) -> None:
        if self._cipher is not None:
            size = len(view) + TAG_BYTES
            self._receive(size, deadline)
            self._cipher.decrypt_into(self._ahead[self._start : self._start + size], view)
            self._start += size
            return
        filled = min(len(view), self._end - self._start)
        view[:filled] = self._ahead[self._start : self._start + filled]
        self._start += filled
        while filled < len(view):
            limit = _limit(deadline)
            filled += self._stream.receive_into(view[filled:], limit, _awaited(len(view) - filled))

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


def send_all(stream: Stream, pieces: list[memoryview], deadline: float | None) -> None:
    """Sends all of the pieces; without a deadline, the stream must not stand still for a minute."""
    while pieces:
        sent = stream.send(pieces, _limit(deadline))
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces[0])
            pieces = pieces[1:]
        if sent:
            pieces = [pieces[0][sent:], *pieces[1:]]


def _cut(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yields pieces in groups that fit into a record; large ones are cut and not joined with others."""
    group: list[memoryview] = []
    num_bytes = 0
    for piece in pieces:
        if num_bytes + len(piece) > _SMALL_BYTES and group:
            yield group
            group, num_bytes = [], 0
        if len(piece) > _SMALL_BYTES:
            for start in range(0, len(piece), MOST_RECORD_BYTES):
                yield [piece[start : start + MOST_RECORD_BYTES]]
        elif piece:
            group.append(piece)
            num_bytes += len(piece)
    if group:
        yield group


def _limit(deadline: float | None) -> float:
    return time.monotonic() + _SECONDS_WITHOUT_PROGRESS if deadline is None else deadline


def _awaited(missing: int) -> int:
    return missing if missing >= _SMALL_BYTES else 1
