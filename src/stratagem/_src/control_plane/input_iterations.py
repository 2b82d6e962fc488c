"""``InputIterations``: the iterations over distributed datasets that this worker has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from stratagem._src.control_plane.worker_status import InputIteration

__all__ = ["InputIterations"]


class InputIterations:
    """Tracks which iterations have begun, and which of them still wait for their first step.

    An iteration delivers its first step when all workers have begun it. A worker that begins it waits.

    Args:
        tell: Called with the iterations that wait, and the one that the main thread waits in, if any.
    """

    def __init__(
        self, tell: Callable[[tuple[InputIteration, ...], InputIteration | None], None]
    ) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._latest: dict[str, int] = {}
        self._waiting: list[InputIteration] = []
        self.of_main_thread: InputIteration | None = None

    @property
    def latest(self) -> Mapping[str, int]:
        """The number of the latest iteration over each dataset."""
        return self._latest

    def begin(self, dataset: str, number: int) -> Callable[[], None]:
        """Records that this thread begins an iteration.

        Returns:
            A function to call when the first step is available, or never will be.
        """
        iteration = InputIteration(dataset, number)
        is_main = threading.current_thread() is threading.main_thread()
        with self._lock:
            self._latest[dataset] = number
            self._waiting.append(iteration)
            if is_main:
                self.of_main_thread = iteration
            self._tell(tuple(self._waiting), self.of_main_thread)
        return lambda: self._end(iteration)

    def _end(self, iteration: InputIteration) -> None:
        with self._lock:
            if iteration in self._waiting:
                self._waiting.remove(iteration)
            if self.of_main_thread == iteration:
                self.of_main_thread = None
            self._tell(tuple(self._waiting), self.of_main_thread)
