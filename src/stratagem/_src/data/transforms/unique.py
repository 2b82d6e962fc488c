"""``unique``: drops duplicate elements."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import DataLossError, InvalidArgumentError
from stratagem._src.core.types import Leaf
from stratagem._src.data.dataset_spec import spec_of
from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.resume_points import shrunk_input_message
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.structure import flatten
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["Unique"]


class Unique(Node):
    """The elements that did not occur before."""

    def __init__(self, source: Node) -> None:
        self.inputs = (source,)

    def cardinality(self) -> int:
        """Returns unknown, unless the input is empty."""
        return 0 if self.inputs[0].cardinality() == 0 else UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _UniqueStream(self.inputs[0].open(run, epoch))


class _UniqueStream(UnaryStream):
    """Keeps a set of all elements seen. The state does not contain it: restoring reads the input again."""

    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._seen: set[Any] = set()
        self._read = 0

    def __next__(self) -> Any:
        for element in self._source:
            self._read += 1
            key = tuple(map(_key, flatten(element)))
            if key not in self._seen:
                self._seen.add(key)
                return element
        raise StopIteration

    def get_state(self) -> State:
        return self._read

    def set_state(self, state: State) -> None:
        while self._read < state:
            try:
                next(self)
            except StopIteration:
                if self._read < state:
                    raise DataLossError(shrunk_input_message(state)) from None


def _key(leaf: Leaf) -> Any:
    if isinstance(leaf, bytes):
        return leaf
    spec = spec_of(leaf)
    if not isinstance(spec, TensorSpec) or spec.dtype.kind not in "biuO":
        raise InvalidArgumentError(
            f"unique compares integers, bools and strings, got an element with {spec}."
        )
    if leaf.ndim == 0:
        return leaf.item()
    return leaf.shape, tuple(leaf.flat) if spec.dtype.kind == "O" else leaf.tobytes()
