"""Labels that distinguish strategies of the same class in messages: a number and the creation site."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator

__all__ = ["new_strategy_label"]

_LIBRARY = __name__.partition(".")[0]
_numbers: dict[str, Iterator[int]] = {}


def new_strategy_label(kind: str) -> str:
    """Returns a label for a strategy that is being created: its number and its creation site.

    The creation site is the innermost caller outside of this library. A notebook cell that runs again
    creates another strategy at the same site, so the label has a number too.

    >>> from stratagem._src.strategies.strategy_label import new_strategy_label
    >>> [new_strategy_label("SomeStrategy").partition(" ")[0] for _ in range(2)]
    ['1', '2']
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
