"""``unbatch``: the rows of batches, one by one."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.rows import concat_rows, num_rows, row, slice_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.sources.tensors import InMemory
from stratagem._src.data.structure import flatten, map_structure
from stratagem._src.data.transforms.batch import Batch

__all__ = ["Unbatch"]


class Unbatch(Node):
    """The rows of every element, in order."""

    batch_levels = -1

    def __init__(self, source: Node) -> None:
        self.inputs = (source,)

    def cardinality(self) -> int:
        """Returns the number of rows, if that is known without reading any."""
        below = self.inputs[0]
        size = below.cardinality()
        if not known(size) or size == 0:
            return size
        if isinstance(below, Batch):
            return below.num_rows()
        if isinstance(below, InMemory):
            return size * int(flatten(below.element_spec)[0].shape[0])
        return UNKNOWN_CARDINALITY

    def _compute_spec(self) -> Any:
        return map_structure(lambda spec: spec.row(), self.inputs[0].element_spec)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _UnbatchStream(self.inputs[0].open(run, epoch))


class _UnbatchStream(UnaryStream):
    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._before: State = None
        self._batch: Any = None
        self._position = 0
        self._size = 0

    @property
    def uniform(self) -> bool:
        return False

    def _refill(self) -> bool:
        while self._position >= self._size:
            before = self._source.get_state()
            batch = next(self._source, None)
            if batch is None:
                return False
            self._before, self._batch = before, batch
            self._position, self._size = 0, num_rows(batch)
        return True

    def __next__(self) -> Any:
        if not self._refill():
            raise StopIteration
        self._position += 1
        return row(self._batch, self._position - 1)

    def next_rows(self, count: int) -> Any | None:
        parts = []
        while count and self._refill():
            stop = min(self._size, self._position + count)
            parts.append(slice_rows(self._batch, self._position, stop))
            count -= stop - self._position
            self._position = stop
        return concat_rows(parts) if parts else None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and self._refill():
            step = min(self._size - self._position, count - skipped)
            self._position += step
            skipped += step
        return skipped

    def get_state(self) -> State:
        if self._position >= self._size:
            return {"input": self._source.get_state(), "position": 0}
        return {"input": self._before, "position": self._position}

    def set_state(self, state: State) -> None:
        self._source.set_state(state["input"])
        self.skip(state["position"])
