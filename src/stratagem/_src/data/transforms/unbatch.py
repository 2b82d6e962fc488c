"""``unbatch``: the rows of batches, one by one."""

from __future__ import annotations

from typing import Any

from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.block_rows import BlockRows
from stratagem._src.data.plan.node import Epoch, Node, known
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
        """Returns the number of rows, if it is known without reading any."""
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


class _UnbatchStream(BlockRows, UnaryStream):
    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._before: State = None

    @property
    def uniform(self) -> bool:
        return False

    def _next_block(self) -> Any | None:
        before = self._source.get_state()
        batch = next(self._source, None)
        if batch is not None:
            self._before = before
        return batch

    def get_state(self) -> State:
        if self._position >= self._size:
            return {"input": self._source.get_state(), "position": 0}
        return {"input": self._before, "position": self._position}

    def set_state(self, state: State) -> None:
        self._source.set_state(state["input"])
        self.skip(state["position"])
