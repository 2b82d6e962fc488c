"""``NodeStarter``: who starts the nodes of a job whose launcher runs no tasks itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from stratagem._src.launcher.task_loop import TaskLoop

__all__ = ["NodeStarter"]


class NodeStarter(Protocol):
    """Starts a node for each task of a job; they join the launcher, which is node 0."""

    def start(self, loop: TaskLoop, give_up: Callable[[str], None]) -> None:
        """Has all nodes started. Returns at once.

        Args:
            loop: The loop in which the launcher waits.
            give_up: To be called, in the loop, with the reason when no node can come any more.
        """

    def join_again(self, lost: list[int]) -> None:
        """Sees to it that all nodes join the next attempt.

        Args:
            lost: The nodes that are gone; the others come by themselves.
        """

    def __enter__(self) -> Self:
        """Prepares."""

    def __exit__(self, *_: object) -> None:
        """Ends whatever it started and is still there."""
