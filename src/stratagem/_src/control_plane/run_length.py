"""Compact encodings of values that are mostly equal on all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["common_prefix_length", "distinct", "run_length_decode", "run_length_encode"]


def run_length_encode(values: Sequence[Any]) -> list[list[Any]]:
    """Returns values as pairs of a value and its number of consecutive occurrences.

    Usually all workers send the same value. Then the size of the reply does not grow with their number.

    >>> run_length_encode([4, 4, 4, 3])
    [[4, 3], [3, 1]]
    """
    runs: list[list[Any]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def run_length_decode(runs: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the values that ``run_length_encode`` encoded.

    >>> run_length_decode([[4, 3], [3, 1]])
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


def common_prefix_length(lists: Sequence[Sequence[Any]]) -> int:
    """Returns the length of the longest common prefix of all lists.

    >>> common_prefix_length([[4, 4, 4], [4, 4], [4, 4, 3]])
    2
    """
    first = lists[0]
    num_same = min(map(len, lists))
    for other in lists:
        while num_same and other[:num_same] != first[:num_same]:
            num_same -= 1
    return num_same
