"""``Node``: one step of the plan that a dataset is."""

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
"""Which repetition of each enclosing ``repeat`` a stream belongs to, outermost first."""


class Node(ABC):
    """One source or transformation; immutable but for what it remembers.

    Attributes:
        inputs: The nodes it reads from.
        batch_levels: By how many levels it batches (1), unbatches (-1) or neither (0), if all it
            does is to choose, order and group elements without looking into them; else ``None``.
            Such a node runs on indices when what is below has random access.
        remembers: The attributes that say nothing about which elements it gives.
    """

    inputs: tuple[Node, ...] = ()
    batch_levels: int | None = None
    remembers: ClassVar[tuple[str, ...]] = ()
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
        """Returns the number of elements, or one of the two special constants."""

    @abstractmethod
    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass over the elements."""

    def random_access(self) -> RandomAccess | None:
        """Returns the elements as a table, if any of them can be had at once by its index."""
        return None

    def over_table(self, table: RandomAccess) -> RandomAccess | None:
        """Returns a table of what the step makes of each row, if that does not depend on the order.

        Then the step can run after the choice and the order of the rows.
        """
        return None

    def options(self) -> Options:
        """Returns the options set on this plan."""
        merged = Options()
        for node in self.inputs:
            merged = merged.merge(node.options())
        return merged

    def with_inputs(self, inputs: tuple[Node, ...]) -> Self:
        """Returns this step over inputs with the same elements; it shares what it remembers."""
        if all(a is b for a, b in zip(inputs, self.inputs, strict=True)):
            return self
        node = copy.copy(self)
        node.inputs = inputs
        node._spec = None
        return node

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """Returns this step over inputs that give other elements; it shares nothing."""
        return self.with_inputs(inputs)

    def fork(self) -> Node:
        """Returns the same step with iterations of its own; most have nothing to count."""
        return self

    def on_row_numbers(self, order: Node, depth: int) -> Node:
        """Returns this step over the row numbers of a table, in ``depth`` levels of batches."""
        return self.with_inputs((order,))

    def describe(self) -> str:
        """Returns the names of the steps, to tell one plan from another."""
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
    """Returns whether a cardinality is a finite, known number."""
    return cardinality not in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY)
