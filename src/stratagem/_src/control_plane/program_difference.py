"""Finds where the programs of several workers differ, when they have the same name."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.mesh.process_monitor import Listing

__all__ = ["first_difference"]

_MAX_SHOWN = 300


def first_difference(
    names: Sequence[str], gather: Callable[[Any], Sequence[Any]], listing: Listing | None
) -> str:
    """Returns a sentence with the first line in which the programs differ. All workers call it.

    Workers gather checksums of all lines, then one line: a large program has megabytes of text.

    Args:
        names: The names of all workers.
        gather: Returns the values of all workers.
        listing: Returns the lines of this worker's program, if its text is available.
    """
    lines = [] if listing is None else listing()
    every = gather([zlib.crc32(line.compared.encode()) for line in lines])
    differing = (
        number
        for number, column in enumerate(itertools.zip_longest(*every))
        if any(checksum != column[0] for checksum in column)
    )
    number = next(differing, None)
    if number is None:
        return ""
    mine = lines[number].shown if number < len(lines) else "no such line"
    shown = gather(" ".join(mine.split())[:_MAX_SHOWN])
    parts = (f"{name} has `{line}`" for name, line in zip(names, shown, strict=True))
    return f" They differ first in line {number + 1}: {'; '.join(parts)}."
