"""What a step captures, taken apart: values that a program can take as inputs, and all the rest.

A step that a loop makes anew in every iteration, or whose surroundings change between iterations, is
the same step if its code is. What it finds in its closure, in default arguments, in arguments of
``functools.partial``, in the attributes of its ``self`` and in globals becomes an input of its program
if it is a number or an array. What cannot be an input is compared, by value or by identity.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
import numpy as np

from stratagem._src.execution.bound_function import BoundFunction, CompiledFunction
from stratagem._src.execution.call_signature import static_key
from stratagem._src.execution.dataset_loops.captured_parts import (
    CallPart,
    CompiledPart,
    FunctionPart,
    Items,
    Leaf,
    ObjectPart,
    Part,
    Place,
    is_closed,
    is_named,
    is_open,
    kind_of,
)
from stratagem._src.execution.dataset_loops.rebuilding import Rebuilding
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.variable import Variable

__all__ = ["CapturedValue", "Captures"]

_NUMBERS = (int, float, complex)
_PLAIN = frozenset([str, bytes, bool, type(None), np.dtype, types.BuiltinFunctionType])
_LARGEST_OPENED = 10_000


class CapturedValue:
    """A number or an array that a step captures.

    Attributes:
        value: It.
        number: Whether it is a Python number.
        changing: Whether it has to be expected to change between iterations.
    """

    __slots__ = ("changing", "number", "value")

    def __init__(self, value: Any, *, number: bool, changing: bool) -> None:
        self.value = value
        self.number = number
        self.changing = changing


class Captures:
    """A step, taken apart.

    Args:
        fn: The step.
        changing: Names that the code around the step gives other values again and again.
        effects: Places whose contents are not looked at, because the step itself changes them.

    Attributes:
        fn: The step.
        key: Equal for steps that differ in nothing but ``values``.
        needs: References to what the key compares by identity.
        values: The numbers and arrays.
    """

    def __init__(
        self, fn: Callable[..., Any], changing: frozenset[str], effects: Set[Place] = frozenset()
    ) -> None:
        self.fn = fn
        self._effects = effects
        self.values: list[CapturedValue] = []
        self.needs: list[weakref.ref[Any]] = []
        self._changing = changing
        self._opened: dict[int, tuple[int, Part]] = {}
        self._key: list[Any] = []
        self._given_back: set[Place] = set()
        self._root = self._open(fn, None, changing=True)
        self.key = tuple(self._key)

    def call_with(self, values: Sequence[Any], call: Callable[[Any], Any]) -> Any:
        """Calls ``call`` with the step as it is with other values in place of those it has captured.

        What the step does to objects that it captures is done to the originals afterwards.

        Raises:
            TracedEffectError: If it keeps one of these values in an object.
        """
        rebuilding = Rebuilding([part for _, part in self._opened.values()], values)
        result = call(rebuilding.get(self._root))
        self._given_back |= rebuilding.give_back()
        return result

    def changed_places(self) -> set[Place]:
        """Returns the places whose contents are not what they were, because the step has run."""
        return self._given_back | {
            part.place_of(i)
            for _, part in self._opened.values()
            for i, (now, _) in enumerate(part.contents(self._changing, False))
            if i >= len(part.children) or part.children[i].original is not now
        }

    def _open(self, value: Any, place: Place, *, changing: bool = False) -> Part:
        """Takes an object apart; its numbers probably change if it is ``changing``."""
        if place in self._effects:
            return Part(value)
        kind = type(value)
        if kind in _NUMBERS:
            return self._leaf(value, number=True, changing=changing)
        if kind in _PLAIN or isinstance(value, (Variable, types.ModuleType)):
            return self._constant(value)
        if isinstance(value, (jax.Array, PerReplica, Mirrored)):
            return self._leaf(value, number=False, changing=True)
        if isinstance(value, (np.ndarray, np.generic)):
            numeric = value.dtype.kind in "biufc"
            return self._leaf(value, number=False, changing=True) if numeric else self._text(value)
        known = self._opened.get(id(value))
        if known is not None:
            self._key.append(known[0])
            return known[1]
        part = self._part_of(value)
        if part is None:
            return self._constant(value)
        self._opened[id(value)] = len(self._opened), part
        part.place = place
        self._key.append(part.identity())
        for i, (child, child_changing) in enumerate(part.contents(self._changing, changing)):
            part.children.append(self._open(child, part.place_of(i), changing=child_changing))
        return part

    def _part_of(self, value: Any) -> Part | None:
        if len(self._opened) >= _LARGEST_OPENED:
            return None
        if isinstance(value, types.FunctionType):
            return None if is_closed(value.__module__) else FunctionPart(value)
        if isinstance(value, (functools.partial, types.MethodType, BoundFunction)):
            return CallPart(value)
        if isinstance(value, CompiledFunction):
            return CompiledPart(value)
        if isinstance(value, dict) or type(value) in (list, tuple) or is_named(value):
            return Items(value) if len(value) <= _LARGEST_OPENED else None
        return ObjectPart(value) if is_open(kind_of(value)) else None

    def _leaf(self, value: Any, *, number: bool, changing: bool) -> Part:
        self._key.append(type(value))
        leaf = Leaf(value, len(self.values))
        self.values.append(CapturedValue(value, number=number, changing=changing))
        return leaf

    def _constant(self, value: Any) -> Part:
        self._key.append(static_key(value, self.needs))
        if isinstance(value, type) and not is_closed(value.__module__):
            numbers = [(k, v) for k, v in vars(value).items() if type(v) in (*_NUMBERS, bool, str)]
            self._key.append(tuple(static_key(pair, self.needs) for pair in numbers))
        return Part(value)

    def _text(self, value: Any) -> Part:
        self._key.append((value.shape, value.dtype, value.tobytes()))
        return Part(value)
