"""``Beginnings``: the iterations over distributed datasets that a worker has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from stratagem._src.control_plane.worker_status import InputIteration

__all__ = ["Beginnings"]


class Beginnings:
    """Knows which iterations have begun, and which of them still wait for their first step.

    An iteration has its first step when all workers have begun it, and whoever began it waits until then.

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
        """For each dataset the number of its latest iteration; those before it began earlier."""
        return self._latest

    def begin(self, dataset: str, number: int) -> Callable[[], None]:
        """Notes that this thread begins an iteration.

        Returns:
            To be called when the first step is there, or will not come.
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
