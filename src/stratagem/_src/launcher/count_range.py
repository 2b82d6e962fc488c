"""``CountRange``: how many there are to be, and how few may be left."""

from __future__ import annotations

import argparse
from typing import NamedTuple

__all__ = ["ONE", "CountRange", "parse_range"]


class CountRange(NamedTuple):
    """How many there are to be.

    Attributes:
        least: How few may go on when others are lost; ``None`` if none may be.
        most: How many there are at the start.
    """

    least: int | None
    most: int


ONE = CountRange(None, 1)


def parse_range(text: str) -> CountRange:
    """Returns what a flag says as ``N`` or ``MIN:MAX``.

    >>> parse_range("3"), parse_range("2:3")
    (CountRange(least=None, most=3), CountRange(least=2, most=3))

    Raises:
        ArgumentTypeError: If it says something else.
    """
    least, colon, most = text.rpartition(":")
    try:
        found = CountRange(int(least) if colon else None, int(most))
    except ValueError:
        found = None
    if found is None or (found.least is not None and not 1 <= found.least <= found.most):
        raise argparse.ArgumentTypeError(
            f"must be a whole number, or MIN:MAX with 1 <= MIN <= MAX, got {text!r}"
        )
    return found
