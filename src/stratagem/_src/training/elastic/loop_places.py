"""``LoopPlaces``: where a program stands in its loops, and how it comes there again. No devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratagem._src.core.errors import ContextError

__all__ = ["LoopPlaces", "Opened"]

Place = list[list[Any]]
"""For each loop that is open, the outermost first: the how manyth it is in the body around it, and its
position."""


class Opened(NamedTuple):
    """How a loop begins.

    Attributes:
        depth: How many loops are around it.
        position: Where it goes on or begins.
        is_done: Whether it came to its end before, so that nothing is left of it.
        is_there: Whether the program has come to the place that it was to come to.
    """

    depth: int
    position: Any
    is_done: bool
    is_there: bool


class LoopPlaces:
    """Follows the loops of a program that is run again from its beginning to a place inside them.

    >>> places = LoopPlaces([[0, 3], [1, 20]])  # fourth epoch, second loop of its body
    >>> places.open()
    Opened(depth=0, position=3, is_done=False, is_there=False)
    >>> places.open()  # the first loop of the epoch's body came to its end before
    Opened(depth=1, position=None, is_done=True, is_there=False)
    >>> places.open()
    Opened(depth=1, position=20, is_done=False, is_there=True)
    >>> places.advance(1, 21)
    >>> places.place
    [[0, 3], [1, 21]]

    Args:
        goal: The place to come to.
        num_ended: If no loop is open there: how many outermost loops came to their end before.
    """

    def __init__(self, goal: Sequence[Sequence[Any]] = (), num_ended: int = 0) -> None:
        self._goal: Place = [list(level) for level in goal]
        self._num_ended = num_ended
        self._open: Place = []
        self._begun = [0]

    @property
    def place(self) -> Place:
        """Where the program stands."""
        return [list(level) for level in self._open]

    @property
    def path(self) -> str:
        """Which loops are open, whatever their positions."""
        return "/".join(str(ordinal) for ordinal, _ in self._open)

    @property
    def depth(self) -> int:
        """How many loops are open."""
        return len(self._open)

    @property
    def is_on_the_way(self) -> bool:
        """Whether the program has not come to its goal yet."""
        return bool(self._goal)

    @property
    def num_ended(self) -> int:
        """Where no loop is open, how many outermost loops came to their end, now or before."""
        return max(self._begun[0], self._num_ended)

    @property
    def has_begun(self) -> bool:
        """Whether a loop has begun."""
        return self._begun[0] > 0

    def open(self, first: Any = None) -> Opened:
        """Begins a loop inside those that are open.

        Args:
            first: The position of a loop that does not go on, but begins.

        Raises:
            ContextError: If the program has other loops than when it was there.
        """
        depth = self.depth
        ordinal, self._begun[depth] = self._begun[depth], self._begun[depth] + 1
        if depth == 0 and ordinal < self._num_ended:
            return Opened(depth, None, True, False)
        position: Any = first
        is_there = False
        if self._goal:
            goal_ordinal, goal_position = self._goal[depth]
            if ordinal < goal_ordinal:
                return Opened(depth, None, True, False)
            if ordinal > goal_ordinal:
                raise ContextError(
                    f"The program was in loop {goal_ordinal} of its body when workers were lost, and came "
                    f"to loop {ordinal} without passing it. Have the same loops in every run."
                )
            position = goal_position
            is_there = depth == len(self._goal) - 1
        self._open.append([ordinal, position])
        self._begun.append(0)
        if is_there:
            self._goal = []
        return Opened(depth, position, False, is_there)

    def advance(self, depth: int, position: Any) -> None:
        """Notes that a loop comes to another position; those inside it are over.

        Raises:
            ContextError: If the loop around it has gone on meanwhile.
        """
        if depth >= self.depth:
            raise ContextError(
                "Loops of an elastic run are one inside the other, but one was advanced after the loop "
                "around it had gone on. Write them as nested for statements, without zip()."
            )
        del self._open[depth + 1 :], self._begun[depth + 1 :]
        self._open[depth][1] = position
        self._begun.append(0)
        if self._goal:  # a loop that was to lead there came to its end before
            raise ContextError(
                "The program was inside a loop when workers were lost, and did not come to it again. Have "
                "the same loops in every run."
            )

    def begin_at(self, depth: int, position: Any) -> None:
        """Notes where a loop begins that was opened without a position."""
        self._open[depth][1] = position

    def close(self, depth: int) -> None:
        """Ends a loop; what comes after it belongs to the body around it."""
        del self._open[depth:], self._begun[depth + 1 :]
