"""``shard``: every ``num_shards``-th element."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.checks import as_integer, at_least
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.rows import slice_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream, rows_or_zero

__all__ = ["Shard", "ShardHint"]


class Shard(Node):
    """The elements at ``index``, ``index + num_shards``, ``index + 2 * num_shards``, ..."""

    batch_levels = 0

    def __init__(self, source: Node, num_shards: int, index: int) -> None:
        self.inputs = (source,)
        self._num_shards = at_least(1, "num_shards", num_shards)
        self._index = as_integer("index", index)
        self._on_row_numbers = False
        if not 0 <= self._index < self._num_shards:
            raise InvalidArgumentError(
                f"index must be in [0, num_shards), got index={index} and num_shards={num_shards}."
            )

    def cardinality(self) -> int:
        """Returns the number of elements in this shard."""
        size = self.inputs[0].cardinality()
        if not known(size):
            return size
        return max(0, (size - self._index + self._num_shards - 1) // self._num_shards)

    def on_row_numbers(self, order: Node, depth: int) -> Node:
        """Returns the shard over row numbers, which reads them in blocks."""
        node = self.with_inputs((order,))
        node._on_row_numbers = depth == 0
        return node

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        kind = _RowNumberShardStream if self._on_row_numbers else _ShardStream
        return kind(self.inputs[0].open(run, epoch), self._num_shards, self._index)


class ShardHint(Node):
    """Marks where ``AutoShardPolicy.HINT`` shards a distributed dataset."""

    batch_levels = 0

    def __init__(self, source: Node) -> None:
        self.inputs = (source,)

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass over all elements, to infer the spec; iterators reject the plan."""
        return self.inputs[0].open(run, epoch)


class _ShardStream(UnaryStream):
    def __init__(self, source: Stream, num_shards: int, index: int) -> None:
        super().__init__(source)
        self._num_shards = num_shards
        self._gap = index

    def __next__(self) -> Any:
        if self._gap and self._source.skip(self._gap) < self._gap:
            raise StopIteration
        self._gap = self._num_shards - 1
        return next(self._source)

    def get_state(self) -> State:
        return {"gap": self._gap, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._gap = state["gap"]
        self._source.set_state(state["input"])


class _RowNumberShardStream(_ShardStream):
    def next_rows(self, count: int) -> Any | None:
        wanted = self._gap + 1 + (count - 1) * self._num_shards
        rows = self._source.next_rows(wanted)
        if rows_or_zero(rows) <= self._gap:
            return None
        mine = slice_rows(rows, self._gap, None, self._num_shards)
        self._gap = self._num_shards - 1
        return mine

    def skip(self, count: int) -> int:
        return rows_or_zero(self.next_rows(count)) if count else 0
