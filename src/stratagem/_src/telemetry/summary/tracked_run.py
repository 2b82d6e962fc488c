"""``TrackedRun``: the life of a run of an experiment tracker that summaries are logged to."""

from __future__ import annotations

import abc
import importlib
from typing import Any

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.process.fork import ProcessOwner
from stratagem._src.telemetry.summary.summaries import Summary

__all__ = ["TrackedRun", "import_tracker"]


class TrackedRun(abc.ABC):
    """A run that was started here, or that the user has started and ends.

    In a forked child it does nothing but raise: the connection belongs to the parent.

    Args:
        is_mine: Whether the run was started here, so that ``close`` ends it.
    """

    def __init__(self, *, is_mine: bool) -> None:
        self._is_mine = is_mine
        self._is_closed = False
        self._owner = ProcessOwner("a summary writer")

    def write(self, name: str, summary: Summary, step: int) -> None:
        """Logs one summary; a no-op once the run is closed."""
        self._owner.check()
        if not self._is_closed:
            self._log(name, summary, step)

    def flush(self) -> None:
        """Waits for what is sent in the background."""
        if self._owner.is_here:
            self._wait()

    def close(self) -> None:
        """Flushes, and ends the run if it was started here."""
        if not self._owner.is_here:
            return
        self._wait()
        is_open, self._is_closed = not self._is_closed, True
        if is_open and self._is_mine:
            self._end()

    @abc.abstractmethod
    def _log(self, name: str, summary: Summary, step: int) -> None:
        """Logs one summary."""

    @abc.abstractmethod
    def _wait(self) -> None:
        """Waits for what is sent in the background."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Ends the run."""


def import_tracker(library: str, title: str) -> Any:
    """Returns the module of an experiment tracker.

    Args:
        library: Its name, which is also that of our extra and of the function that creates a writer.
        title: How the tracker calls itself.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingExtraError(
            f"create_{library}_writer needs {title}, which is not installed. {install_hint(library)}"
        ) from error
