"""``LoopTracker``: tracks the position of a program in its loops, to resume there. Pure, no devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import IteratorState

__all__ = ["LoopEntry", "LoopTracker"]

Place = list[list[Any]]
"""For each open loop, outermost first: its index in the enclosing body, and its position."""


class LoopEntry(NamedTuple):
    """How a loop starts or resumes.

    Attributes:
        depth: Number of enclosing loops.
        position: Where it starts or resumes.
        is_done: Whether it had finished before, so that nothing is left of it.
        is_there: Whether the program has reached the place at which it resumes.
    """

    depth: int
    position: IteratorState
    is_done: bool
    is_there: bool


class LoopTracker:
    """Tracks the loops of a program that runs again from its start to a place inside its loops.

    >>> loops = LoopTracker([[0, 3], [1, 20]])  # fourth epoch, second loop of its body
    >>> loops.open()
    LoopEntry(depth=0, position=3, is_done=False, is_there=False)
    >>> loops.open()  # the first loop of the epoch's body had finished before
    LoopEntry(depth=1, position=None, is_done=True, is_there=False)
    >>> loops.open()
    LoopEntry(depth=1, position=20, is_done=False, is_there=True)
    >>> loops.advance(1, 21)
    >>> loops.place
    [[0, 3], [1, 21]]

    Args:
        goal: The place at which to resume.
        num_ended: If no loop is open there, the number of outermost loops that had finished.
    """

    def __init__(self, goal: Sequence[Sequence[Any]] = (), num_ended: int = 0) -> None:
        self._goal: Place = [list(level) for level in goal]
        self._num_ended = num_ended
        self._open: Place = []
        self._begun = [0]

    @property
    def place(self) -> Place:
        """The current place."""
        return [list(level) for level in self._open]

    @property
    def path(self) -> str:
        """Which loops are open, without their positions."""
        return "/".join(str(ordinal) for ordinal, _ in self._open)

    @property
    def depth(self) -> int:
        """Number of open loops."""
        return len(self._open)

    @property
    def is_replaying(self) -> bool:
        """Whether the program has not reached the place at which it resumes yet."""
        return bool(self._goal)

    @property
    def num_ended(self) -> int:
        """Number of outermost loops that have finished, in this run or before; valid if no loop is open."""
        return max(self._begun[0], self._num_ended)

    @property
    def has_begun(self) -> bool:
        """Whether a loop has started."""
        return self._begun[0] > 0

    def open(self, first: IteratorState = None) -> LoopEntry:
        """Starts or resumes a loop inside the open ones.

        Args:
            first: The initial position of a loop that starts rather than resumes.

        Raises:
            ContextError: If the program has other loops than in the run that it resumes.
        """
        depth = self.depth
        # `_begun` counts the loops that have started in each open body: [1, 2, 0] inside the second loop
        # in the body of the function's first loop. The number finds the loop again in the next run, where
        # it has no name.
        ordinal, self._begun[depth] = self._begun[depth], self._begun[depth] + 1
        if depth == 0 and ordinal < self._num_ended:
            return LoopEntry(depth, None, True, False)
        position: Any = first
        is_there = False
        if self._goal:
            goal_ordinal, goal_position = self._goal[depth]
            if ordinal < goal_ordinal:
                return LoopEntry(depth, None, True, False)
            if ordinal > goal_ordinal:
                raise ContextError(
                    f"The program was in loop {goal_ordinal} of its body when workers were lost, and now "
                    f"reached loop {ordinal} without passing it. Write the same loops in every run."
                )
            position = goal_position
            is_there = depth == len(self._goal) - 1
        self._open.append([ordinal, position])
        self._begun.append(0)
        if is_there:
            self._goal = []
        return LoopEntry(depth, position, False, is_there)

    def advance(self, depth: int, position: IteratorState) -> None:
        """Advances a loop to its next position and closes the loops inside it.

        Raises:
            ContextError: If an enclosing loop has advanced meanwhile.
        """
        if depth >= self.depth:
            raise ContextError(
                "Loops of an elastic run must be nested, but one was advanced after its enclosing loop had "
                "advanced. Write them as nested for statements, without zip()."
            )
        del self._open[depth + 1 :], self._begun[depth + 1 :]
        self._open[depth][1] = position
        self._begun.append(0)
        if self._goal:  # the loop that contains the place to resume at did not start
            raise ContextError(
                "The program was inside a loop when workers were lost, and did not reach it again. Write "
                "the same loops in every run."
            )

    def begin_at(self, depth: int, position: IteratorState) -> None:
        """Sets the initial position of a loop that was opened without one."""
        self._open[depth][1] = position

    def close(self, depth: int) -> None:
        """Closes a loop; loops that follow belong to the enclosing body."""
        del self._open[depth:], self._begun[depth + 1 :]
