"""``Node``: one source or transformation in the plan of a dataset."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options

if TYPE_CHECKING:
    from stratagem._src.data.plan.random_access import RandomAccess
    from stratagem._src.data.plan.run import Run
    from stratagem._src.data.plan.stream import Stream

__all__ = ["Epoch", "Node", "known", "rewrite", "walk"]

Epoch = tuple[int, ...]
"""The repetition of each enclosing ``repeat`` that a stream belongs to, outermost first."""


class Node(ABC):
    """One source or transformation; immutable except for its caches.

    The class name and the names of attributes are part of iterator states and fingerprints.

    Attributes:
        inputs: The nodes it reads from.
        batch_levels: The number of batch levels it adds: 1 if it batches, -1 if it unbatches, 0 if
            neither; ``None`` if it inspects elements instead of only selecting, ordering and grouping
            them. A node with a number runs on row numbers if its input has random access.
        derived_attributes: The attributes that do not affect which elements it yields, such as caches.
    """

    inputs: tuple[Node, ...] = ()
    batch_levels: int | None = None
    derived_attributes: ClassVar[tuple[str, ...]] = ()
    _spec: Any = None

    @property
    def element_spec(self) -> Any:
        """The nest of ``TensorSpec`` of an element."""
        if self._spec is None:
            self._spec = self._compute_spec()
        return self._spec

    def _compute_spec(self) -> Any:
        return self.inputs[0].element_spec

    @abstractmethod
    def cardinality(self) -> int:
        """Returns the number of elements, ``INFINITE_CARDINALITY`` or ``UNKNOWN_CARDINALITY``."""

    @abstractmethod
    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass over the elements."""

    def random_access(self) -> RandomAccess | None:
        """Returns the elements as a table, if each can be read directly by its index."""
        return None

    def over_table(self, table: RandomAccess) -> RandomAccess | None:
        """Returns the table of transformed rows, if a result does not depend on the order of the rows.

        Then rows are selected and ordered first, and transformed only when they are gathered.
        """
        return None

    def options(self) -> Options:
        """Returns the options set on this plan."""
        merged = Options()
        for node in self.inputs:
            merged = merged.merge(node.options())
        return merged

    def with_inputs(self, inputs: tuple[Node, ...]) -> Self:
        """Returns this node over inputs with the same elements; caches are shared."""
        if all(a is b for a, b in zip(inputs, self.inputs, strict=True)):
            return self
        node = copy.copy(self)
        node.inputs = inputs
        node._spec = None
        return node

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """Returns this node over inputs with other elements; nothing is shared."""
        return self.with_inputs(inputs)

    def fork(self) -> Node:
        """Returns the same node with its own iteration count; only random nodes have one."""
        return self

    def on_row_numbers(self, order: Node, depth: int) -> Node:
        """Returns this node over the row numbers of a table, in ``depth`` levels of batches."""
        return self.with_inputs((order,))

    def describe(self) -> str:
        """Returns the names of the nodes, which identify the plan in iterator states."""
        inner = ", ".join(node.describe() for node in self.inputs)
        return f"{type(self).__name__}({inner})" if inner else type(self).__name__


def walk(node: Node) -> Iterator[Node]:
    """Yields every node of a plan, inputs first."""
    for child in node.inputs:
        yield from walk(child)
    yield node


def rewrite(node: Node, change: Callable[[Node], Node]) -> Node:
    """Returns the plan with ``change`` applied to every node, inputs first."""
    return change(node.over(tuple(rewrite(child, change) for child in node.inputs)))


def known(cardinality: int) -> bool:
    """Returns whether a cardinality is known and finite."""
    return cardinality not in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY)
