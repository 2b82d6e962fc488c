"""Cutting output into lines, and keeping the end of it."""

from __future__ import annotations

__all__ = ["LineSplitter", "Tail"]

_LONGEST_LINE = 64 * 1024


class LineSplitter:
    r"""Turns chunks of output into whole lines.

    Of a progress bar, which returns to the start of its line, the last state remains.

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
        if len(self._unfinished) > _LONGEST_LINE:
            lines.append(self._unfinished)
            self._unfinished = b""
        return [_shown(line) for line in lines]

    @property
    def progress(self) -> str:
        r"""The last state of an unfinished line that returns to its start, else nothing.

        >>> from stratagem._src.launcher.lines import LineSplitter
        >>> splitter = LineSplitter()
        >>> splitter.feed(b"10%\r20%"), splitter.progress
        ([], '20%')
        """
        return _shown(self._unfinished) if b"\r" in self._unfinished else ""

    def flush(self) -> list[str]:
        """Returns the last line if nothing ended it."""
        last, self._unfinished = self._unfinished, b""
        return [_shown(last)] if last else []


class Tail:
    r"""The last bytes of an output, from the start of a line.

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
        """Adds to the end."""
        self._kept += chunk
        # Rarely, because it moves what is kept.
        if len(self._kept) > 2 * self._size:
            self._cut()

    def text(self) -> str:
        """Returns what is kept."""
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
