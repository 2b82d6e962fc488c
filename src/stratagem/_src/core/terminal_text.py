r"""Escapes control characters in untrusted text that is printed on a terminal.

A terminal executes escape sequences: one in the name of a metric or in a task's log line can change the
window title, fill the clipboard, or overwrite earlier output.
"""

from __future__ import annotations

import re

__all__ = ["plain_output", "printable", "printable_output"]

# C0 and C1 controls, marks that reorder or hide text, and surrogates, which cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_COLOUR = re.compile("(\x1b\\[[0-9;:]*m)")
_CURSOR_MOVE = re.compile("\x1b\\[[0-9;:?]*[A-KSTfhl]")


def printable(text: str) -> str:
    r"""Returns text with control characters escaped; line breaks are kept.

    >>> from stratagem._src.core.terminal_text import printable
    >>> print(printable("loss\x1b[2J\x07"))
    loss\x1b[2J\x07

    Args:
        text: Any text. Tabs become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").expandtabs().split("\n")
    return "\n".join(_CONTROL.sub(_spell, line) for line in lines)


def printable_output(text: str) -> str:
    r"""Returns a line of program output with its colours, but without other escape sequences.

    Programs that move the cursor, such as progress bars, would overwrite the lines of other tasks: cursor
    moves are removed.

    >>> from stratagem._src.core.terminal_text import printable_output
    >>> printable_output("\x1b[32mdone\x1b[0m\x1b[A \x1b]0;title\x07")
    '\x1b[32mdone\x1b[0m \\x1b]0;title\\x07'
    """
    if text.isascii() and text.isprintable():
        return text
    pieces = _COLOUR.split(_CURSOR_MOVE.sub("", text))
    # Every second piece is a colour.
    return "".join(p if n % 2 else printable(p) for n, p in enumerate(pieces))


def plain_output(text: str) -> str:
    r"""Returns a line of program output without escape sequences.

    >>> from stratagem._src.core.terminal_text import plain_output
    >>> plain_output("\x1b[32m50 %\x1b[0m")
    '50 %'
    """
    return printable(_COLOUR.sub("", _CURSOR_MOVE.sub("", text)))


def _spell(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
