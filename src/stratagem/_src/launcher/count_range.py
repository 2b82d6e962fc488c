"""``CountRange``: the maximum and, for elastic jobs, the minimum number of workers or nodes."""

from __future__ import annotations

import argparse
from typing import NamedTuple

__all__ = ["ONE", "CountRange", "parse_range"]


class CountRange(NamedTuple):
    """A number of workers or nodes.

    Attributes:
        minimum: The number with which an elastic job continues; ``None`` if the job is not elastic.
        maximum: The number at the start.
    """

    minimum: int | None
    maximum: int


ONE = CountRange(None, 1)


def parse_range(text: str) -> CountRange:
    """Returns the range in a flag value of the form ``N`` or ``MIN:MAX``.

    >>> parse_range("3"), parse_range("2:3")
    (CountRange(minimum=None, maximum=3), CountRange(minimum=2, maximum=3))

    Raises:
        ArgumentTypeError: If the value has another form.
    """
    minimum, colon, maximum = text.rpartition(":")
    try:
        found = CountRange(int(minimum) if colon else None, int(maximum))
    except ValueError:
        found = None
    if found is None or (found.minimum is not None and not 1 <= found.minimum <= found.maximum):
        raise argparse.ArgumentTypeError(
            f"must be an integer, or MIN:MAX with 1 <= MIN <= MAX, got {text!r}"
        )
    return found
