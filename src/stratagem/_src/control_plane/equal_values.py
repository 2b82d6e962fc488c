"""What many workers say alike, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["distinct", "num_common", "runs_of", "values_of"]


def runs_of(values: Sequence[Any]) -> list[list[Any]]:
    """Returns values as pairs of a value and how often it follows itself.

    Mostly all workers say the same. Then what each of them is told does not grow with their number.

    >>> runs_of([4, 4, 4, 3])
    [[4, 3], [3, 1]]
    """
    runs: list[list[Any]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def values_of(runs: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the values that ``runs_of`` made runs of.

    >>> values_of([[4, 3], [3, 1]])
    [4, 4, 4, 3]
    """
    return [value for value, count in runs for _ in range(count)]


def distinct(values: Sequence[Any]) -> list[Any]:
    """Returns each value once.

    >>> distinct([{"a": 1}, 2, {"a": 1}])
    [{'a': 1}, 2]
    """
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
    return seen


def num_common(lists: Sequence[Sequence[Any]]) -> int:
    """Returns how many of their first entries are the same in all lists.

    >>> num_common([[4, 4, 4], [4, 4], [4, 4, 3]])
    2
    """
    first = lists[0]
    num_same = min(map(len, lists))
    for other in lists:
        while num_same and other[:num_same] != first[:num_same]:
            num_same -= 1
    return num_same
