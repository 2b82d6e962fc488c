"""``NodeStarter``: starts the nodes of a job whose launcher runs no tasks itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

from stratagem._src.launcher.event_loop import EventLoop

__all__ = ["NodeStarter"]


class NodeStarter(Protocol):
    """Starts a node for each task of a job; the nodes join the launcher, which is node 0."""

    def start(self, loop: EventLoop, give_up: Callable[[str], None]) -> None:
        """Starts all nodes, without waiting for them.

        Args:
            loop: The event loop of the launcher.
            give_up: Called in the loop, with the reason, when no node can join any more.
        """

    def rejoin(self, lost: list[int]) -> None:
        """Makes all nodes join the next attempt.

        Args:
            lost: The nodes to start again; the others rejoin by themselves.
        """

    def __enter__(self) -> Self:
        """Prepares the starter."""

    def __exit__(self, *_: object) -> None:
        """Stops the nodes that still run."""
