"""The process monitor: what the processes of a multi-process job know about each other.

It checks that all processes are about to launch the same program, exchanges values between them, and turns
the loss of a process into an error instead of an endless wait. The control plane provides it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import Tensor

__all__ = [
    "Comparison",
    "Listing",
    "ProcessMonitor",
    "ProgramIdentity",
    "ProgramLine",
    "has_process_monitor",
    "process_monitor",
    "set_process_monitor",
]


class Comparison(NamedTuple):
    """The result of a comparison between processes.

    Attributes:
        said: The distinct values that the processes passed.
        num_common: The number of leading entries that are the same in all processes.
    """

    said: list[Any]
    num_common: int


class ProgramLine(NamedTuple):
    """A line of a program's text.

    Attributes:
        compared: The text to compare, equal in all processes with the same program.
        shown: The text to show, with the location in the user's code.
    """

    compared: str
    shown: str


Listing = Callable[[], Sequence[ProgramLine]]
"""Returns a program's text, line by line. Called only if programs differ."""


class ProgramIdentity(NamedTuple):
    """Identifies a multi-process program, so that processes can check that they launch the same one.

    Attributes:
        name: Its name in messages.
        fingerprint: Equal in two processes if their programs are equal.
        listing: Its text, to show where two programs differ.
    """

    name: str
    fingerprint: str
    listing: Listing | None = None


class ProcessMonitor(Protocol):
    """Monitors and coordinates the processes of a multi-process job."""

    waits_for_programs: bool
    """Whether ``run`` returns only when the results are ready; otherwise they may never become ready."""

    def before_launch(self, name: str, fingerprint: str, listing: Listing | None = None) -> None:
        """Checks that all processes are about to launch the same program.

        Args:
            name: The name of the program in messages.
            fingerprint: Equal for the same program in all processes.
            listing: The text of the program, to show the first line that differs.
        """

    def run(self, program: Callable[[], Any]) -> Any:
        """Launches a program and returns its results; raises if a process is lost."""

    def all_gather_object(
        self, topic: str, value: Tensor, what: str, *, in_sequence: bool = True
    ) -> list[Any]:
        """Returns the value of every process, in the order of the processes.

        Args:
            topic: Calls of one topic happen in the same order in all processes.
            value: Plain data of this process.
            what: The purpose, in messages.
            in_sequence: Whether the call belongs to the common sequence of programs.
        """

    def compare(
        self,
        topic: str,
        turn: int,
        said: Any,
        entries: list[Any],
        what: str,
        cancelled: Callable[[], bool],
    ) -> Comparison | None:
        """Returns how many entries of all processes agree, outside the common sequence of programs.

        The size of the answer does not grow with the number of processes.

        Args:
            topic: The topic of the comparison; no state of it is kept.
            turn: The number of this comparison within the topic.
            said: Plain data of this process, with few distinct values over all processes.
            entries: Plain data of this process, in order.
            what: The purpose, in messages.
            cancelled: Whether the result is no longer wanted; then ``None`` is returned.
        """

    def begin_input(self, dataset: str, number: int) -> Callable[[], None]:
        """Records that this thread begins an iteration over a dataset and waits for its first step.

        Returns:
            A function to call when the first step has arrived, or will not.
        """

    def contribute(self, topic: str, turn: int, said: Any) -> None:
        """Contributes to a comparison of other processes, without waiting for its result."""


_monitor: ProcessMonitor | None = None


def set_process_monitor(monitor: ProcessMonitor) -> None:
    """Sets the monitor of this multi-process job."""
    global _monitor
    _monitor = monitor


def has_process_monitor() -> bool:
    """Returns whether this process belongs to a multi-process job of a strategy."""
    return _monitor is not None


def process_monitor() -> ProcessMonitor:
    """Returns the monitor of this multi-process job."""
    if _monitor is None:
        raise ContextError(
            "Devices of other processes can only be used with failure detection, but nothing monitors "
            "these processes. Let MultiWorkerMirroredStrategy, TPUStrategy or "
            "experimental_connect_to_cluster() connect the processes, instead of "
            "jax.distributed.initialize()."
        )
    return _monitor
