"""Rows for blocks of time: within a row, two blocks lie in each other or apart."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["lanes"]


def lanes(blocks: Sequence[tuple[float, float]]) -> list[int]:
    """Returns a row for each block, given by its begin and end; as few rows as a quick look finds.

    >>> from stratagem._src.profiling.task.lanes import lanes
    >>> lanes([(0, 10), (2, 3), (5, 12), (12, 13)])
    [0, 0, 1, 0]
    """
    # Of each row, the ends of the blocks that enclose the present moment.
    rows: list[list[float]] = []
    chosen = [0] * len(blocks)
    for number in sorted(range(len(blocks)), key=lambda i: (blocks[i][0], -blocks[i][1])):
        begin, end = blocks[number]
        for ends in rows:
            while ends and ends[-1] <= begin:
                ends.pop()
        fitting = (row for row, ends in enumerate(rows) if not ends or end <= ends[-1])
        chosen[number] = row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(end)
    return chosen
