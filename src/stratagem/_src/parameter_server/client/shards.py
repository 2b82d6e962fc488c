"""The shards of a variable: which rows are where, and how to split and combine values by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratagem._src.core.types import DTypeLike
from stratagem._src.parameter_server.server.row_updates import drop_out_of_range
from stratagem._src.parameter_server.server.stored_array import Array, aligned_empty

__all__ = ["ShardedRows", "VariableShard", "make_shards", "shard_name", "split_operands"]


class VariableShard(NamedTuple):
    """Consecutive rows of a variable on one server.

    Attributes:
        id: Its id on the server.
        server: Index of the server.
        start: The first row.
        stop: One past the last row.
    """

    id: str
    server: int
    start: int
    stop: int


def make_shards(
    variable: str, servers: Sequence[int], sizes: Sequence[int]
) -> tuple[VariableShard, ...]:
    """Returns shards of the given sizes on the given servers.

    >>> [(shard.server, shard.start, shard.stop) for shard in make_shards("w", [0, 1, 0], [3, 2, 2])]
    [(0, 0, 3), (1, 3, 5), (0, 5, 7)]
    """
    stops = np.cumsum(sizes).tolist()
    return tuple(
        VariableShard(f"{variable}/{index}", server, stop - size, stop)
        for index, (server, size, stop) in enumerate(zip(servers, sizes, stops, strict=True))
    )


def shard_name(variable: str, index: int) -> str:
    """Returns the name of a shard."""
    return f"{variable}/part_{index}"


class ShardedRows:
    """Row indices in any order, grouped by shard.

    Args:
        shards: All shards of the variable.
        rows: Row indices, each of them in some shard.
    """

    def __init__(self, shards: Sequence[VariableShard], rows: Array) -> None:
        self._shards = shards
        self._rows = rows
        if len(shards) == 1:
            self._order: Any = slice(None)
            self._stops = [len(rows)]
            return
        owner = np.searchsorted([shard.stop for shard in shards], rows, side="right")
        self._order = np.argsort(owner, kind="stable")
        self._stops = np.cumsum(np.bincount(owner, minlength=len(shards))).tolist()

    def parts(self) -> Iterator[tuple[VariableShard, Array, Any]]:
        """Yields each shard that contains some of the rows, their local indices, and their positions."""
        start = 0
        for shard, stop in zip(self._shards, self._stops, strict=True):
            if stop > start:
                positions = self._order[start:stop] if len(self._shards) > 1 else self._order
                yield shard, self._rows[positions] - shard.start, positions
            start = stop

    def combine(self, parts: Sequence[Array], row_shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Returns the rows in the order of their indices, from those of each shard."""
        if len(self._shards) == 1:
            return parts[0]
        combined = aligned_empty((len(self._rows), *row_shape), np.dtype(dtype))
        for (_, _, positions), part in zip(self.parts(), parts, strict=True):
            combined[positions] = part
        return combined


def split_operands(
    shards: Sequence[VariableShard],
    shape: Sequence[int],
    operands: tuple[Array, ...],
    *,
    rows: bool,
) -> Iterator[tuple[VariableShard, tuple[Array, ...]]]:
    """Yields an update's operands for each shard that it changes.

    Args:
        shards: All shards of the variable.
        shape: The variable's shape.
        operands: With ``rows``, values and indices, which go to the shards that contain the rows, and
            others, which go along; else arrays, which are split if they have the variable's shape, and go
            to all shards otherwise.
        rows: Whether the update is a row update.
    """
    if rows:
        values, indices, *others = operands
        indices, values = drop_out_of_range(indices, values, shards[-1].stop)
        for shard, local, positions in ShardedRows(shards, indices).parts():
            yield shard, (values[positions], local, *others)
        return
    for shard in shards:
        part = slice(shard.start, shard.stop)
        yield shard, tuple(x[part] if x.shape == tuple(shape) else x for x in operands)
