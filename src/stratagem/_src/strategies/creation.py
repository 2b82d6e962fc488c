"""Which strategy of its kind one is, and where it was made: messages about two of them need that."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator

__all__ = ["label_of_new"]

_LIBRARY = __name__.partition(".")[0]
_numbers: dict[str, Iterator[int]] = {}


def label_of_new(kind: str) -> str:
    """Returns what tells a strategy that is being made from others of its kind.

    The place is that of the innermost call from outside of this library. A notebook's cell that is run
    again makes another strategy in the same place, so there is a number too.

    >>> from stratagem._src.strategies.creation import label_of_new
    >>> label_of_new("SomeStrategy").partition(" ")[0], label_of_new("SomeStrategy").partition(" ")[0]
    ('1', '2')
    """
    number = next(_numbers.setdefault(kind, itertools.count(1)))
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if _is_ours(frame.f_globals.get("__name__", "")):
        return str(number)
    return f"{number} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _is_ours(module: object) -> bool:
    return str(module).partition(".")[0] == _LIBRARY
