"""Lowering: transformations select and order row numbers, and a gather reads the elements last.

``shuffle``, ``repeat``, ``take``, ``skip``, ``shard``, ``batch``, ``unbatch`` and ``rebatch``
never inspect an element. Above a table they are moved onto the stream of its row numbers: they shuffle and
batch integers, and each batch is read from the table with one gather per array. For example::

    Batch(Shuffle(TensorSlices))   becomes   _Gather(Batch(Shuffle(_RowNumbers)), depth=1)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.random_access import Indices, RandomAccess
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.structure import map_structure
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.data.transforms.prefetch import Prefetch

__all__ = ["lower"]


_READ_AHEAD = 2


def lower(node: Node) -> Node:
    """Returns a plan with the same elements that runs on row numbers as far as possible."""
    return _read_ahead(_lower(node))


def _lower(node: Node) -> Node:
    access = node.random_access()
    if access is not None:
        return _Gather(_RowNumbers(len(access)), access, 0, node)
    inputs = tuple(_lower(child) for child in node.inputs)
    moved = _move_below(node, inputs[0]) if inputs and isinstance(inputs[0], _Gather) else None
    return moved or node.with_inputs(tuple(_read_ahead(child) for child in inputs))


def _move_below(node: Node, gather: _Gather) -> Node | None:
    """Returns the gather with the node moved into its order or its table, or ``None`` if impossible."""
    if node.batch_levels is not None and gather.depth + node.batch_levels >= 0:
        order = node.on_row_numbers(gather.inputs[0], gather.depth)
        return _Gather(order, gather.access, gather.depth + node.batch_levels, node)
    table = node.over_table(gather.access) if gather.depth == 0 else None
    return None if table is None else _Gather(gather.inputs[0], table, 0, node)


def _read_ahead(node: Node) -> Node:
    """Prefetches the gathers of a parallel ``map``, in place of the threads that ``map`` would use."""
    wanted = isinstance(node, _Gather) and node.access.read_ahead
    return Prefetch(node, _READ_AHEAD) if wanted else node


class _RowNumbers(Node):
    def __init__(self, count: int) -> None:
        self._count = count

    def _compute_spec(self) -> Any:
        return TensorSpec((), np.int64)

    def cardinality(self) -> int:
        return self._count

    def open(self, run: Run, epoch: Epoch) -> Stream:
        return _RowNumberStream(self._count)


class _RowNumberStream(Stream):
    def __init__(self, count: int) -> None:
        self._next = 0
        self._count = count

    def __next__(self) -> Any:
        if self._next >= self._count:
            raise StopIteration
        self._next += 1
        return np.int64(self._next - 1)

    def next_rows(self, count: int) -> Indices | None:
        start = self._next
        self.skip(count)
        return np.arange(start, self._next) if self._next > start else None

    def skip(self, count: int) -> int:
        skipped = min(count, self._count - self._next)
        self._next += skipped
        return skipped

    def get_state(self) -> State:
        return self._next

    def set_state(self, state: State) -> None:
        self._next = state


class _Gather(Node):
    """Reads a table in the order and the batches of a plan over its row numbers.

    Args:
        order: The plan over row numbers.
        access: The table.
        depth: The levels of batches in ``order``: 0 for row numbers, 1 for vectors of them.
        replaces: The node of the original plan with the same elements.
    """

    def __init__(self, order: Node, access: RandomAccess, depth: int, replaces: Node) -> None:
        self.inputs = (order,)
        self.access = access
        self.depth = depth
        self._replaces = replaces

    def _compute_spec(self) -> Any:
        return self._replaces.element_spec

    def cardinality(self) -> int:
        return self.inputs[0].cardinality()

    def open(self, run: Run, epoch: Epoch) -> Stream:
        return _GatherStream(self.inputs[0].open(run, epoch), self.access, self.depth)


class _GatherStream(UnaryStream):
    def __init__(self, order: Stream, access: RandomAccess, depth: int) -> None:
        super().__init__(order)
        self._access = access
        self._depth = depth

    @property
    def uniform(self) -> bool:
        return self._depth == 0

    def __next__(self) -> Any:
        index = next(self._source)
        return self._gather(index) if self._depth else self._access.element(int(index))

    def next_rows(self, count: int) -> Any | None:
        indices = self._source.next_rows(count)
        return None if indices is None else self._gather(indices)

    def skip(self, count: int) -> int:
        return self._source.skip(count)

    def _gather(self, indices: Indices) -> Any:
        if indices.ndim == 1:
            return self._access.gather(indices)
        rows = self._access.gather(indices.reshape(-1))
        return map_structure(lambda leaf: leaf.reshape(indices.shape + leaf.shape[1:]), rows)
