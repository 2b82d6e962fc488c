"""``zip``: combines the elements of several datasets."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.types import PyTree
from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.random_access import Indices, RandomAccess
from stratagem._src.data.plan.rows import num_rows, slice_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.structure import pack_like

__all__ = ["Zip"]


class Zip(Node):
    """One nest of elements, one from each input, until the shortest ends.

    Args:
        inputs: The plans that are zipped.
        nest: A nest with one leaf per input.
    """

    def __init__(self, inputs: tuple[Node, ...], nest: PyTree) -> None:
        self.inputs = inputs
        self._nest = nest

    def _compute_spec(self) -> Any:
        return pack_like(self._nest, [node.element_spec for node in self.inputs])

    def cardinality(self) -> int:
        """Returns the smallest cardinality."""
        sizes = [node.cardinality() for node in self.inputs]
        if 0 in sizes:
            return 0
        if UNKNOWN_CARDINALITY in sizes:
            return UNKNOWN_CARDINALITY
        return min(filter(known, sizes), default=INFINITE_CARDINALITY)

    def random_access(self) -> RandomAccess | None:
        """Returns the zipped tables, if all inputs are tables."""
        tables = [node.random_access() for node in self.inputs]
        found = [table for table in tables if table is not None]
        return _ZipAccess(found, self._nest) if len(found) == len(tables) else None

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _ZipStream([node.open(run, epoch) for node in self.inputs], self._nest)


class _ZipAccess(RandomAccess):
    def __init__(self, tables: list[RandomAccess], nest: PyTree) -> None:
        self._tables = tables
        self._nest = nest
        self.read_ahead = any(table.read_ahead for table in tables)

    def __len__(self) -> int:
        return min(len(table) for table in self._tables)

    def gather(self, indices: Indices) -> Any:
        return pack_like(self._nest, [table.gather(indices) for table in self._tables])

    def element(self, index: int) -> Any:
        return pack_like(self._nest, [table.element(index) for table in self._tables])


class _ZipStream(Stream):
    def __init__(self, streams: list[Stream], nest: PyTree) -> None:
        self._streams = streams
        self._nest = nest

    @property
    def uniform(self) -> bool:
        return all(stream.uniform for stream in self._streams)

    def __next__(self) -> Any:
        return pack_like(self._nest, [next(stream) for stream in self._streams])

    def next_rows(self, count: int) -> Any | None:
        parts = []
        for stream in self._streams:
            rows = stream.next_rows(count)
            if rows is None:
                return None
            parts.append(rows)
        shortest = min(num_rows(rows) for rows in parts)
        return pack_like(self._nest, [slice_rows(rows, 0, shortest) for rows in parts])

    def skip(self, count: int) -> int:
        return min(stream.skip(count) for stream in self._streams)

    def get_state(self) -> State:
        return [stream.get_state() for stream in self._streams]

    def set_state(self, state: State) -> None:
        for stream, saved in zip(self._streams, state, strict=True):
            stream.set_state(saved)

    def skip_past_error(self) -> None:
        for stream in self._streams:
            stream.skip_past_error()

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
