"""Text files, line by line."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.compressed_files import ByteReader, check_compression, open_bytes
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.sources.files import FileFormat
from stratagem._src.data.tensor_spec import STRING, TensorSpec

__all__ = ["TextLineFormat"]

_BLOCK = 1 << 20


class TextLineFormat(FileFormat):
    """Reads lines as ``bytes``, without line endings."""

    def __init__(self, compression_type: str | None) -> None:
        self._compression = check_compression(compression_type)

    def element_spec(self, path: str) -> Any:
        """Returns the spec of one string."""
        return TensorSpec((), STRING)

    def open(self, path: str) -> Stream:
        """Starts a pass over the lines."""
        return _LineStream(path, self._compression)


class _LineStream(Stream):
    def __init__(self, path: str, compression: str) -> None:
        self._path = path
        self._compression = compression
        self._file: ByteReader | None = None
        self._lines: list[bytes] = []
        self._taken = 0
        self._rest = b""
        self._offset = 0
        self._ended = False
        self._has_failed = self._gave_up = False

    def _read_block(self) -> None:
        self._lines, self._taken = [], 0
        if self._file is None and not self._ended:
            self._file = open_bytes(self._path, self._compression, self._offset)
        while not self._lines and not self._ended:
            assert self._file is not None
            block = self._file.read(_BLOCK)
            self._ended = not block
            pieces = (self._rest + block).split(b"\n")
            self._rest = pieces.pop()
            if self._ended and self._rest:
                pieces.append(self._rest)
            self._lines = pieces

    def __next__(self) -> Any:
        if self._taken >= len(self._lines):
            self._has_failed = True
            self._read_block()
            self._has_failed = False
            if not self._lines:
                raise StopIteration
        line = self._lines[self._taken]
        self._taken += 1
        self._offset += len(line) + 1
        return line.removesuffix(b"\r")

    def get_state(self) -> State:
        return None if self._gave_up else self._offset

    def set_state(self, state: State) -> None:
        if state is None:
            self._ended = self._gave_up = True
        else:
            self._offset = state

    def skip_past_error(self) -> None:
        if self._has_failed:
            self._ended = self._gave_up = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
