"""``window``: sliding windows of consecutive elements, each a dataset."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from stratagem._src.core.types import PyTree
from stratagem._src.data.checks import at_least
from stratagem._src.data.dataset_spec import DatasetSpec
from stratagem._src.data.plan.node import Epoch, Node, known
from stratagem._src.data.plan.random_access import ArrayAccess
from stratagem._src.data.plan.resume_points import ResumePoints
from stratagem._src.data.plan.rows import concat_rows, num_rows, slice_rows
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.sources.elements import Elements
from stratagem._src.data.sources.tensors import InMemory
from stratagem._src.data.structure import flatten, map_structure, pack_like
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["Window"]


class Window(Node):
    """Windows of ``size`` elements, each a nest with one dataset per component.

    Args:
        source: The plan whose elements are windowed.
        size: Elements per window.
        shift: The distance between the starts of two windows; ``size`` for ``None``.
        stride: The distance between two elements of a window in the input.
        drop_remainder: Whether incomplete windows at the end are dropped.
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
        """The number of input elements that a full window spans."""
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

    def datasets(self, like: PyTree, plans: list[Node]) -> Any:
        """Returns one dataset per component, in the structure of an element."""
        return pack_like(like, [self._make_dataset(plan) for plan in plans])

    def spec_of_component(self, index: int) -> Any:
        """Returns the spec of one component of the elements."""
        return flatten(self.inputs[0].element_spec)[index]


class _WindowStream(UnaryStream):
    """Holds a buffer of the elements from the start of the next window on.

    The state does not contain them; they are read again from the input.
    """

    def __init__(self, source: Stream, node: Window) -> None:
        super().__init__(source)
        self._node = node
        self._resume_points = ResumePoints(source, node.span)
        kind = _Rows if source.uniform else _Elements
        self._buffer: _Buffer = kind(source, self._resume_points)
        self._gap = 0

    @property
    def uniform(self) -> bool:
        return False

    def _start(self) -> int:
        return self._resume_points.read - len(self._buffer)

    def _fill(self) -> bool:
        """Reads the missing elements of the next window, and returns whether there is one."""
        if self._gap:
            self._resume_points.before_read(self._gap)
            self._resume_points.read -= self._gap - self._source.skip(self._gap)
            self._gap = 0
        self._resume_points.discard_before(self._start())
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
        return {"start": start, "gap": self._gap, "input": self._resume_points.get_state(start)}

    def set_state(self, state: State) -> None:
        self._resume_points.resume(state["input"], state["start"])
        self._gap = state["gap"]


class _Buffer(ABC):
    """The buffered elements from the start of the next window on."""

    def __init__(self, source: Stream, resume_points: ResumePoints) -> None:
        self._source = source
        self._resume_points = resume_points

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
        """Returns the window that starts here: one dataset per component."""


class _Elements(_Buffer):
    """Elements of any shapes."""

    def __init__(self, source: Stream, resume_points: ResumePoints) -> None:
        super().__init__(source, resume_points)
        self._elements: list[Any] = []

    def __len__(self) -> int:
        return len(self._elements)

    def read(self, count: int) -> None:
        for element in itertools.islice(self._counted(), count):
            self._elements.append(element)

    def _counted(self) -> Any:
        while True:
            self._resume_points.before_read()
            try:
                element = next(self._source)
            except StopIteration:
                self._resume_points.read -= 1
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
    """Elements of one shape, stored as rows, so that windows have random access."""

    def __init__(self, source: Stream, resume_points: ResumePoints) -> None:
        super().__init__(source, resume_points)
        self._rows: Any = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def read(self, count: int) -> None:
        if not count:
            return
        self._resume_points.before_read(count)
        rows = self._source.next_rows(count)
        found = 0 if rows is None else num_rows(rows)
        self._resume_points.read -= count - found
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
