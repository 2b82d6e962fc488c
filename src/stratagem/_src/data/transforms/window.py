"""``window``: datasets of neighbouring elements."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from stratagem._src.data.checks import at_least
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.plan.anchors import Anchors
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.random_access import ArrayAccess
from stratagem._src.data.plan.rows import concat_rows, num_rows, slice_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.sources.elements import Elements
from stratagem._src.data.sources.tensors import InMemory
from stratagem._src.data.structure import flatten, map_structure, pack_like
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["Window"]


class Window(Node):
    """Windows of ``size`` elements, each a nest of datasets, one for each component.

    Args:
        source: The plan whose elements are windowed.
        size: Elements in a window.
        shift: By how many elements the next window begins later; ``size`` for ``None``.
        stride: Distance of neighbouring elements of a window in the input.
        drop_remainder: Whether windows at the end that lack elements are left out.
        make_dataset: Returns the dataset of a plan.
    """

    def __init__(
        self,
        source: Node,
        size: int,
        shift: int | None,
        stride: int,
        drop_remainder: bool,
        make_dataset: Callable[[Node], Any],
    ) -> None:
        self.inputs = (source,)
        self._size = at_least(1, "size", size)
        self.shift = self._size if shift is None else at_least(1, "shift", shift)
        self.stride = at_least(1, "stride", stride)
        self.drop_remainder = bool(drop_remainder)
        self._make_dataset = make_dataset

    @property
    def span(self) -> int:
        """How many elements of the input a full window reaches over."""
        return (self._size - 1) * self.stride + 1

    def _compute_spec(self) -> Any:
        return map_structure(DatasetSpec, self.inputs[0].element_spec)

    def cardinality(self) -> int:
        """Returns the number of windows."""
        size = self.inputs[0].cardinality()
        if not known(size):
            return size
        if self.drop_remainder:
            return max(0, (size - self.span) // self.shift + 1)
        return -(-size // self.shift)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _WindowStream(self.inputs[0].open(run, epoch), self)

    def datasets(self, like: Any, plans: list[Node]) -> Any:
        """Returns one dataset for each component, in the nest of an element."""
        return pack_like(like, [self._make_dataset(plan) for plan in plans])

    def spec_of_component(self, index: int) -> Any:
        """Returns the spec of one component of the elements."""
        return flatten(self.inputs[0].element_spec)[index]


class _WindowStream(UnaryStream):
    """A buffer of the elements from the start of the next window on.

    Its state does not hold them: they are read again from the input.
    """

    def __init__(self, source: Stream, node: Window) -> None:
        super().__init__(source)
        self._node = node
        self._anchors = Anchors(source, node.span)
        kind = _Rows if source.uniform else _Elements
        self._buffer: _Buffer = kind(source, self._anchors)
        self._gap = 0

    @property
    def uniform(self) -> bool:
        return False

    def _start(self) -> int:
        return self._anchors.read - len(self._buffer)

    def _fill(self) -> bool:
        """Reads what the next window lacks, and returns whether there is one."""
        if self._gap:
            self._anchors.before_read(self._gap)
            self._anchors.read -= self._gap - self._source.skip(self._gap)
            self._gap = 0
        self._anchors.forget_before(self._start())
        self._buffer.read(self._node.span - len(self._buffer))
        is_full = len(self._buffer) == self._node.span
        return is_full or (len(self._buffer) > 0 and not self._node.drop_remainder)

    def _advance(self) -> None:
        dropped = min(self._node.shift, len(self._buffer))
        self._buffer.drop(dropped)
        self._gap = self._node.shift - dropped

    def __next__(self) -> Any:
        if not self._fill():
            raise StopIteration
        window = self._buffer.window(self._node)
        self._advance()
        return window

    def skip(self, count: int) -> int:
        for skipped in range(count):
            if not self._fill():
                return skipped
            self._advance()
        return count

    def get_state(self) -> State:
        start = self._start()
        return {"start": start, "gap": self._gap, "input": self._anchors.get_state(start)}

    def set_state(self, state: State) -> None:
        self._anchors.resume(state["input"], state["start"])
        self._gap = state["gap"]


class _Buffer(ABC):
    """The elements of the input that the next window begins with."""

    def __init__(self, source: Stream, anchors: Anchors) -> None:
        self._source = source
        self._anchors = anchors

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, count: int) -> None:
        """Adds up to ``count`` elements."""

    @abstractmethod
    def drop(self, count: int) -> None:
        """Removes the first ``count`` elements."""

    @abstractmethod
    def window(self, node: Window) -> Any:
        """Returns the window that begins here: a dataset for each component."""


class _Elements(_Buffer):
    """Elements of any shapes."""

    def __init__(self, source: Stream, anchors: Anchors) -> None:
        super().__init__(source, anchors)
        self._elements: list[Any] = []

    def __len__(self) -> int:
        return len(self._elements)

    def read(self, count: int) -> None:
        for element in itertools.islice(self._counted(), count):
            self._elements.append(element)

    def _counted(self) -> Any:
        while True:
            self._anchors.before_read()
            try:
                element = next(self._source)
            except StopIteration:
                self._anchors.read -= 1
                return
            yield element

    def drop(self, count: int) -> None:
        del self._elements[:count]

    def window(self, node: Window) -> Any:
        elements = self._elements[:: node.stride]
        columns = zip(*(flatten(element) for element in elements), strict=True)
        plans: list[Node] = [
            Elements(list(column), functools.partial(node.spec_of_component, index))
            for index, column in enumerate(columns)
        ]
        return node.datasets(elements[0], plans)


class _Rows(_Buffer):
    """Elements of one shape, as rows: what is in a window can be had by index."""

    def __init__(self, source: Stream, anchors: Anchors) -> None:
        super().__init__(source, anchors)
        self._rows: Any = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def read(self, count: int) -> None:
        if not count:
            return
        self._anchors.before_read(count)
        rows = self._source.next_rows(count)
        found = 0 if rows is None else num_rows(rows)
        self._anchors.read -= count - found
        if found:
            self._rows = concat_rows([self._rows, rows]) if self._size else rows
            self._size += found

    def drop(self, count: int) -> None:
        self._size -= count
        self._rows = slice_rows(self._rows, count) if self._size else None

    def window(self, node: Window) -> Any:
        rows = slice_rows(self._rows, 0, None, node.stride)
        plans: list[Node] = [
            InMemory(ArrayAccess(leaf, len(leaf)), TensorSpec(leaf.shape[1:], leaf.dtype))
            for leaf in flatten(rows)
        ]
        return node.datasets(rows, plans)
