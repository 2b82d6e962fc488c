"""``Elements``: a source of elements that are already in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.dataset_spec import any_size, spec_of
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.rows import copy_containers, read_only_view, stack_elements
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.structure import map_structure

__all__ = ["Elements"]


class Elements(Node):
    """Elements in memory, of any shapes; their arrays are read-only.

    Args:
        elements: The elements.
        element_spec: Returns their spec. If it cannot be inferred from the input, it is inferred from these
            elements.
    """

    def __init__(self, elements: list[Any], element_spec: Callable[[], Any]) -> None:
        self._elements = [map_structure(read_only_view, element) for element in elements]
        self._known_spec = element_spec

    def _compute_spec(self) -> Any:
        try:
            return self._known_spec()
        except InvalidArgumentError:
            if not self._elements:
                raise
            return map_structure(lambda leaf: any_size(spec_of(leaf)), self._elements[0])

    def describe(self) -> str:
        """Returns the name with the number of elements, which is part of the identity of the source."""
        return f"{super().describe()}[{len(self._elements)}]"

    def cardinality(self) -> int:
        """Returns the number of elements."""
        return len(self._elements)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _ElementsStream(self._elements)


class _ElementsStream(Stream):
    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements
        self._next = 0

    def __next__(self) -> Any:
        if self._next >= len(self._elements):
            raise StopIteration
        self._next += 1
        return copy_containers(self._elements[self._next - 1])

    def next_rows(self, count: int) -> Any | None:
        part = self._elements[self._next : self._next + count]
        self._next += len(part)
        return stack_elements(part) if part else None

    def skip(self, count: int) -> int:
        skipped = min(count, len(self._elements) - self._next)
        self._next += skipped
        return skipped

    def get_state(self) -> State:
        return self._next

    def set_state(self, state: State) -> None:
        self._next = state
