"""Elements of iterators that a compiled function draws: inputs of its program.

While a function is traced, ``next(iterator)`` draws a real element and hands out tracers of it. The
element's arrays show up among the constants of the trace; from then on a new element takes their place
at every call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import OutOfRangeError, ShapeMismatchError
from stratagem._src.core.tracing import is_tracer
from stratagem._src.distributed_input.distributed_iterator import DistributedIterator
from stratagem._src.distributed_input.optional import MISSING
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica

__all__ = ["Draw", "DrawMiss", "DrawSpec", "RaggedElement", "draw_element", "put_back"]


class DrawMiss(Exception):
    """An element of another kind than the program was made for."""


class RaggedElement(Exception):
    """An element whose shapes differ between replicas, which no program can take."""


@dataclass(frozen=True, slots=True)
class Draw:
    """An element that was drawn, and where its iterator stood before.

    Attributes:
        iterator: Where it was drawn from.
        before: The state of the iterator before.
        element: The element; ``MISSING`` if there was none.
        optional: Whether there need not be one.
    """

    iterator: DistributedIterator
    before: Any
    element: Any
    optional: bool = False

    def arrays(self) -> list[Any]:
        """Returns the arrays of the element.

        Raises:
            RaggedElement: If the replicas' shapes differ.
        """
        if self.element is MISSING:
            return []
        return [_array(leaf) for leaf in structures.leaves_of(self.element, is_value_leaf)]

    def signature(self) -> tuple[Any, ...]:
        """Returns what must be equal for elements that one program can take."""
        if self.element is MISSING:
            return (MISSING,)
        leaves, structure = structures.flatten(self.element, is_value_leaf)
        kinds = [
            (leaf.local_shape if isinstance(leaf, PerReplica) else None, array.shape, array.dtype)
            for leaf, array in zip(leaves, self.arrays(), strict=True)
        ]
        return (structure, *kinds)

    def traced(self) -> Any:
        """Returns the element as tracers of the active trace."""
        if self.element is MISSING:
            return MISSING
        leaves, structure = structures.flatten(self.element, is_value_leaf)
        staged = []
        for leaf, array in zip(leaves, self.arrays(), strict=True):
            tracer = _stage(array)
            if isinstance(leaf, PerReplica):
                assert leaf._group is not None
                tracer = PerReplica.from_global(leaf._group, tracer, scalar=leaf.scalar)
            staged.append(tracer)
        return jax.tree.unflatten(structure, staged)


@dataclass(frozen=True, slots=True)
class DrawSpec:
    """How a program draws one element.

    Args:
        argument: Position among the iterators in the call's arguments, or ``None``.
        captured: The iterator, if it is not an argument; it is not kept alive.
        signature: Of the element that was traced.
        const_positions: For each array of the element, its place among the program's constants.
        optional: Whether there need not be an element.
    """

    argument: int | None
    captured: weakref.ref[DistributedIterator] | None
    signature: tuple[Any, ...]
    const_positions: tuple[int | None, ...]
    optional: bool

    @classmethod
    def of(
        cls, draw: Draw, iterators: Sequence[DistributedIterator], consts: Sequence[Any]
    ) -> DrawSpec:
        """Returns the spec of a draw that was made while tracing."""
        positions = {id(const): position for position, const in enumerate(consts)}
        argument = next((i for i, it in enumerate(iterators) if it is draw.iterator), None)
        return cls(
            argument,
            weakref.ref(draw.iterator) if argument is None else None,
            draw.signature(),
            tuple(positions.get(id(array)) for array in draw.arrays()),
            draw.optional,
        )

    def arrays_of(self, draw: Draw) -> list[Any]:
        """Returns the arrays of an element that was drawn for this.

        Raises:
            DrawMiss: If it is not of the kind that was traced.
        """
        try:
            fits = draw.signature() == self.signature
        except RaggedElement:
            fits = False
        if not fits:
            raise DrawMiss
        return draw.arrays()

    def iterator(self, arguments: Sequence[DistributedIterator]) -> DistributedIterator:
        """Returns the iterator to draw from, given those in the call's arguments.

        Raises:
            DrawMiss: If it does not exist any more.
        """
        if self.argument is not None:
            return arguments[self.argument]
        iterator = self.captured() if self.captured is not None else None
        if iterator is None:
            raise DrawMiss
        return iterator


def draw_element(iterator: DistributedIterator, *, optional: bool = False) -> Draw:
    """Draws the next element.

    Args:
        iterator: Where to draw from.
        optional: Whether there need not be an element.

    Raises:
        OutOfRangeError: At the end of the data.
    """
    before = iterator.current_state()
    try:
        return Draw(iterator, before, iterator.draw(optional=optional), optional)
    except StopIteration:
        raise OutOfRangeError("End of the distributed dataset.") from None


def put_back(draws: Sequence[Draw]) -> None:
    """Makes the iterators give these elements again."""
    for draw in reversed(draws):
        if draw.element is not MISSING:
            draw.iterator.put_back([(draw.element, draw.before)])


def _array(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        group = leaf._group
        array = leaf.global_array(group) if group is not None else None
        if array is None:
            if all(is_host_only(getattr(v, "dtype", np.dtype(object))) for v in leaf.values):
                raise _no_strings()
            raise RaggedElement
        return array
    if is_host_only(getattr(leaf, "dtype", np.dtype(object))):
        raise _no_strings()
    return leaf


def _no_strings() -> ShapeMismatchError:
    return ShapeMismatchError(
        "An element with strings cannot be drawn inside a compiled function. Map them to numbers in "
        "the dataset, or call next(iterator) outside and pass what is needed."
    )


def _stage(array: Any) -> Any:
    """Returns a tracer of a concrete array; XLA drops the operation that makes it one."""
    shape = np.shape(array)
    if shape:
        staged = jax.lax.broadcast_in_dim(array, shape, tuple(range(len(shape))))
    else:
        staged = jax.lax.squeeze(jax.lax.broadcast(array, (1,)), (0,))
    assert is_tracer(staged)
    return staged
