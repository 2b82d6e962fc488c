"""A step made anew with other values, and what it does to them done to the user's own objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.tracing import is_tracer
from stratagem._src.execution.dataset_loops.captured_parts import Leaf, Part, Place

__all__ = ["Rebuilding", "TracedEffectError"]


class TracedEffectError(Exception):
    """A step keeps a value that exists only while it is traced in an object that it captures."""


class Rebuilding:
    """Makes a step anew, as far as other values come into it.

    Args:
        opened: The parts of the step.
        values: What takes the place of each leaf.
    """

    def __init__(self, opened: Sequence[Part], values: Sequence[Any]) -> None:
        self._values = values
        self._made: dict[int, Any] = {}
        self._stand_ins: dict[int, tuple[Any, Any]] = {}
        self._given: list[tuple[Part, Any, dict[Any, Any]]] = []
        self._changed = {
            id(leaf)
            for part in opened
            for leaf in part.children
            if isinstance(leaf, Leaf) and values[leaf.position] is not leaf.original
        }
        grown = -1
        while grown != len(self._changed):
            grown = len(self._changed)
            for part in opened:
                if any(id(child) in self._changed for child in part.children):
                    self._changed.add(id(part))

    def get(self, part: Part) -> Any:
        """Returns the object that takes the place of a part."""
        if id(part) not in self._changed:
            return part.original
        if isinstance(part, Leaf):
            return self._stand_in(self._values[part.position], part.original)
        if id(part) not in self._made:
            begun = self._made[id(part)] = part.begin()
            made = part.finish(begun, [self.get(child) for child in part.children])
            self._made[id(part)] = self._stand_in(made, part.original)
            self._given.append((part, made, part.slots(made)))
        return self._made[id(part)]

    def give_back(self) -> set[Place]:
        """Does to the originals what was done to what took their places; returns where.

        Raises:
            TracedEffectError: If a traced value would have to be kept; nothing is changed then.
        """
        effects = [
            (part, slot, self._original(value))
            for part, made, given in self._given
            for slot, value in part.slots(made).items()
            if slot not in given or value is not given[slot]
        ]
        if any(is_tracer(leaf) for *_, value in effects for leaf in jax.tree.leaves(value)):
            raise TracedEffectError
        removed = [
            (part, slot)
            for part, made, given in self._given
            for slot in given.keys() - part.slots(made).keys()
        ]
        places = {part.set_slot(slot, value) for part, slot, value in effects}
        # From the end, so that the positions of what is still to be removed stay what they are.
        for part, slot in sorted(removed, key=lambda each: str(each[1]).zfill(9), reverse=True):
            places.add(part.remove_slot(slot))
        return places

    def _stand_in(self, value: Any, original: Any) -> Any:
        self._stand_ins[id(value)] = value, original
        return value

    def _original(self, value: Any) -> Any:
        known = self._stand_ins.get(id(value))
        return known[1] if known is not None and known[0] is value else value
