"""Splits output into lines, and keeps the tail of an output."""

from __future__ import annotations

__all__ = ["LineSplitter", "Tail"]

_MAX_LINE_BYTES = 64 * 1024


class LineSplitter:
    r"""Splits chunks of output into complete lines.

    Of a progress bar, which rewrites its line with a carriage return, only the last state is kept.

    >>> from stratagem._src.launcher.lines import LineSplitter
    >>> splitter = LineSplitter()
    >>> splitter.feed(b"one\n10%\r20"), splitter.feed(b"%\r\nthr"), splitter.flush()
    (['one'], ['20%'], ['thr'])
    """

    def __init__(self) -> None:
        self._unfinished = b""

    def feed(self, chunk: bytes) -> list[str]:
        """Returns the lines that the chunk completes."""
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        self._unfinished = _without_earlier_states(self._unfinished)
        if len(self._unfinished) > _MAX_LINE_BYTES:
            lines.append(self._unfinished)
            self._unfinished = b""
        return [_shown(line) for line in lines]

    @property
    def progress(self) -> str:
        r"""The current state of a progress bar on the unfinished line, or an empty string.

        >>> from stratagem._src.launcher.lines import LineSplitter
        >>> splitter = LineSplitter()
        >>> splitter.feed(b"10%\r20%"), splitter.progress
        ([], '20%')
        """
        return _shown(self._unfinished) if b"\r" in self._unfinished else ""

    def flush(self) -> list[str]:
        """Returns the last line if it is unterminated."""
        last, self._unfinished = self._unfinished, b""
        return [_shown(last)] if last else []


class Tail:
    r"""Keeps the last bytes of an output, from the start of a line.

    >>> from stratagem._src.launcher.lines import Tail
    >>> tail = Tail(8)
    >>> tail.feed(b"one\ntwo\nthree\n")
    >>> tail.text()
    'three\n'
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()
        self._is_cut = False

    def feed(self, chunk: bytes) -> None:
        """Appends a chunk."""
        self._kept += chunk
        # Only when twice the size is reached, because cutting moves all kept bytes.
        if len(self._kept) > 2 * self._size:
            self._cut()

    def text(self) -> str:
        """Returns the kept tail."""
        if len(self._kept) > self._size:
            self._cut()
        kept = bytes(self._kept)
        if self._is_cut:
            kept = kept.partition(b"\n")[2] or kept
        return kept.decode("utf-8", "replace")

    def _cut(self) -> None:
        del self._kept[: -self._size]
        self._is_cut = True


def _without_earlier_states(line: bytes) -> bytes:
    state = line.rstrip(b"\r")
    _, returned, last = state.rpartition(b"\r")
    return returned + last + line[len(state) :][:1]


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
