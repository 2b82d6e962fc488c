"""Draws: elements of iterators that a compiled function takes, as inputs of its program.

While a function is traced, ``next(iterator)`` draws a real element, whose shapes the trace needs, and
returns a tracer for each of its arrays. A tracer is the result of a marker operation of the outermost
trace, which identifies the draw and the array; no array of the element itself ever reaches the trace. When
the trace has ended, each marker becomes a constant of the jaxpr, and each call provides its own value.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.input_kinds import Drawn
from stratagem._src.core.int64_guard import guard_int64
from stratagem._src.core.types import ArrayLike, ArraySpec, Jaxpr, Leaf, Trace
from stratagem._src.execution.input_placement import place_on
from stratagem._src.input.optional import MISSING
from stratagem._src.jax_compat.tracing import in_trace, jax_core, with_constvars
from stratagem._src.jaxpr.walk import mentioned_variables
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames

if TYPE_CHECKING:
    from stratagem._src.data.iterator import DatasetIterator
    from stratagem._src.input.distributed_iterator import DistributedIterator

__all__ = [
    "AnyIterator",
    "Draw",
    "DrawMiss",
    "DrawSpec",
    "EndMiss",
    "LiftedDraws",
    "RaggedElement",
    "draw_element",
    "lift_draws",
    "put_back",
]

AnyIterator: TypeAlias = "DistributedIterator | DatasetIterator"
"""The iterators that a compiled function can draw from: elements can be put back into them."""


class DrawMiss(Exception):
    """An element has another signature than the program was compiled for."""


class EndMiss(DrawMiss):
    """The data ends where the program expects an element.

    Args:
        draws: All draws of the program.
        position: The position of this draw among them.
    """

    def __init__(self, draws: list[DrawSpec], position: int) -> None:
        super().__init__()
        self._draws = draws
        self._position = position

    def is_not_caught(self) -> None:
        """Notes that the function does not catch the end: next time the program raises at once."""
        spec = self._draws[self._position]
        self._draws[self._position] = dataclasses.replace(spec, end_is_error=True)


class RaggedElement(Exception):
    """An element has shapes that differ between replicas, which no program can take."""


class Draw(Drawn):
    """An element that a compiled function draws; ``MISSING`` at the end of the data."""

    __slots__ = ()

    def arrays(self) -> list[Any]:
        """Returns the arrays of the element.

        Raises:
            RaggedElement: If the replicas' shapes differ.
        """
        if self.element is MISSING:
            return []
        return [_array(leaf) for leaf in structures.leaves_of(self.element, is_value_leaf)]

    def signature(self) -> tuple[Any, ...]:
        """Returns the signature of the element, which is equal for elements that one program can take."""
        if self.element is MISSING:
            return (MISSING,)
        leaves, structure = structures.flatten(self.element, is_value_leaf)
        kinds = [
            (leaf.local_shape if isinstance(leaf, PerReplica) else None, array.shape, array.dtype)
            for leaf, array in zip(leaves, self.arrays(), strict=True)
        ]
        return (structure, *kinds)

    def traced(self, number: int, trace: Trace) -> Any:
        """Returns the element as tracers.

        Args:
            number: The index of this draw in the trace.
            trace: The outermost trace, to which the tracers belong.
        """
        if self.element is MISSING:
            return MISSING
        leaves, structure = structures.flatten(self.element, is_value_leaf)
        staged = []
        for position, (leaf, array) in enumerate(zip(leaves, self.arrays(), strict=True)):
            with in_trace(trace):
                tracer = _primitive().bind(drawn=_DrawnArray(number, position, _aval(array)))
            if isinstance(leaf, PerReplica):
                assert leaf._group is not None
                tracer = PerReplica.from_global(leaf._group, tracer, scalar=leaf.scalar)
            staged.append(tracer)
        return jax.tree.unflatten(structure, staged)


class _DrawnArray(NamedTuple):
    """Identifies the array that a marker operation stands for: draw and position in the element."""

    draw: int
    position: int
    aval: ArraySpec


@functools.cache
def _primitive() -> Any:
    # It has no implementation: a marker that is left in a program raises rather than being a constant.
    primitive = jax_core().Primitive("drawn_array")

    def abstract_result(*, drawn: _DrawnArray) -> Any:
        return drawn.aval

    primitive.def_abstract_eval(abstract_result)
    return primitive


class LiftedDraws(NamedTuple):
    """A jaxpr whose last constants are the drawn arrays.

    Attributes:
        jaxpr: The jaxpr.
        specs: For each draw, how the program makes it.
        arrays: For each of those constants, the array that was drawn while tracing.
    """

    jaxpr: Jaxpr
    specs: list[DrawSpec]
    arrays: list[Any]


def lift_draws(
    jaxpr: Jaxpr, draws: Sequence[Draw], iterators: Sequence[AnyIterator]
) -> LiftedDraws:
    """Returns ``jaxpr`` with every drawn array that it uses as an additional constant.

    Args:
        jaxpr: The traced function.
        draws: The draws of the trace.
        iterators: The iterators in the call's arguments.
    """
    # After `images, labels = next(iterator)` the trace holds two markers:
    #     a:f32[8,28] = drawn_array[draw 0, position 0]
    #     b:i32[8]     = drawn_array[draw 0, position 1]
    # If only `a` is used, it becomes constant number n, and the draw's `const_positions` are `(n, None)`:
    # the element is drawn whole in each call, but the unused array is no input of the program.
    is_drawn = [eqn.primitive is _primitive() for eqn in jaxpr.eqns]
    mentioned = mentioned_variables(jaxpr)
    places: dict[tuple[int, int], int] = {}
    constvars, arrays = list(jaxpr.constvars), []
    drawn_arrays = [draw.arrays() for draw in draws]
    for eqn, drawn in zip(jaxpr.eqns, is_drawn, strict=True):
        if drawn and id(eqn.outvars[0]) in mentioned:
            number, position, _ = eqn.params["drawn"]
            places[number, position] = len(constvars)
            constvars.append(eqn.outvars[0])
            arrays.append(drawn_arrays[number][position])
    specs = [
        DrawSpec.of(draw, iterators, [places.get((number, i)) for i in range(len(arrays_of_draw))])
        for number, (draw, arrays_of_draw) in enumerate(zip(draws, drawn_arrays, strict=True))
    ]
    if draws:
        rest = [eqn for eqn, drawn in zip(jaxpr.eqns, is_drawn, strict=True) if not drawn]
        jaxpr = with_constvars(jaxpr, constvars, eqns=rest)
    return LiftedDraws(jaxpr, specs, arrays)


@dataclass(frozen=True, slots=True)
class DrawSpec:
    """How a program draws one element.

    Args:
        argument: Position among the iterators in the call's arguments, or ``None``.
        captured: The iterator, if it is not an argument; it is not kept alive.
        signature: The signature of the element that was traced.
        const_positions: For each array of the element, its position among the program's constants.
        end_is_error: Whether the function is known not to catch the end of the data here.
    """

    argument: int | None
    captured: weakref.ref[AnyIterator] | None
    signature: tuple[Any, ...]
    const_positions: tuple[int | None, ...]
    end_is_error: bool = False

    @classmethod
    def of(
        cls, draw: Draw, iterators: Sequence[AnyIterator], const_positions: Sequence[int | None]
    ) -> DrawSpec:
        """Returns the spec of a draw that was made while tracing."""
        argument = next((i for i, it in enumerate(iterators) if it is draw.iterator), None)
        return cls(
            argument,
            weakref.ref(draw.iterator) if argument is None else None,
            draw.signature(),
            tuple(const_positions),
        )

    def put_into(self, consts: list[Any], draw: Draw, group: ReplicaGroup | None) -> None:
        """Puts the arrays of a drawn element among the constants.

        Args:
            consts: The constants of the program.
            draw: The element.
            group: The replicas on whose devices the program runs, if any.

        Raises:
            DrawMiss: If its signature differs from the traced one.
        """
        try:
            fits = draw.signature() == self.signature
        except RaggedElement:
            fits = False
        if not fits:
            raise DrawMiss
        kinds = self.signature[1:]
        for position, array, kind in zip(self.const_positions, draw.arrays(), kinds, strict=True):
            if position is not None:
                if group is not None and kind[0] is None:  # not per-replica
                    array = place_on(group, array)
                consts[position] = array

    def iterator(self, arguments: Sequence[AnyIterator]) -> AnyIterator:
        """Returns the iterator to draw from, given those in the call's arguments.

        Raises:
            DrawMiss: If it has been garbage-collected.
        """
        if self.argument is not None:
            return arguments[self.argument]
        iterator = self.captured() if self.captured is not None else None
        if iterator is None:
            raise DrawMiss
        return iterator


def draw_element(iterator: AnyIterator, draws: list[Draw]) -> Draw:
    """Draws the next element; ``MISSING`` at the end of the data.

    Args:
        iterator: The iterator.
        draws: Gets the draw before it is made, so that an interrupt cannot lose the element.
    """
    draw = Draw(iterator, iterator.current_state())
    draws.append(draw)
    try:
        # The functions of the input pipeline run eagerly now: they are not part of the trace.
        with frames.outside_of_frames(), jax.core.eval_context():
            iterator.draw(draw)
    except StopIteration:
        draw.element = MISSING
    return draw


def put_back(draws: Sequence[Draw]) -> None:
    """Puts the elements back into their iterators, which return them again."""
    # The last one first: an iterator that gave elements 3 and 4 must return 3 next, and then 4.
    for draw in reversed(draws):
        if draw.element is not MISSING:
            draw.put_back()


def _array(leaf: Leaf) -> Any:
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
    # No copy: nothing else refers to the element.
    return guard_int64(leaf)


def _no_strings() -> ShapeMismatchError:
    return ShapeMismatchError(
        "An element with strings cannot be drawn inside a compiled function. Map them to numbers in "
        "the dataset, or call next(iterator) outside and pass what is needed."
    )


def _aval(array: ArrayLike) -> Any:
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.core.ShapedArray(array.shape, dtype, getattr(array, "weak_type", False))
